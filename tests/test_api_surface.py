"""The public names, compared with a list; change it on purpose only. And what importing them costs."""

import ast
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import maxup
import maxup.diagnostics
import maxup.lab
import maxup.objectives
import maxup.perturb
import maxup.smoothing

PUBLIC = """
Adversarial Affine AutoAugment Average ColorJitter Compose CropFlip CutMix Cutout EmbeddingDropout FeatureNoise Gaussian
HardExamples LabelNoise Lighting ManifoldMixup MaxUp MaxUpWarning MixUp Objective Outcome Perturbation RandAugment
Report SharedDraw Smooth SmoothAdv TokenDropout Transform TrivialAugment UniformBall Views ViewsDataset captured
cross_entropy diagnostics load next_token_cross_entropy theory token_cross_entropy train warmup
""".split()
PACKAGES = [maxup, maxup.diagnostics, maxup.objectives, maxup.perturb, maxup.smoothing]


def test_public_names():
    assert sorted(maxup.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(maxup, name) is not None
    assert set(PUBLIC) <= set(dir(maxup))


def test_every_perturbation_and_objective_comes_from_its_package_too():
    for base, package in ((maxup.Perturbation, maxup.perturb), (maxup.Objective, maxup.objectives)):
        classes = {n for n in PUBLIC if inspect.isclass(c := getattr(maxup, n)) and issubclass(c, base)}
        assert classes <= set(package.__all__)
    for package in PACKAGES[1:]:
        for name in package.__all__:
            assert name in dir(package)
            assert getattr(package, name) is getattr(maxup, name, getattr(package, name))
    from maxup.perturb import Cutout

    assert Cutout is maxup.Cutout


def test_maxup_has_these_arguments_and_no_others():
    arguments = list(inspect.signature(maxup.MaxUp).parameters)
    assert (
        arguments
        == """
        perturbation m norm strategy chunk_size masks dropout compile capture fast shortlist dtype score forward loss_fn
        generator
    """.split()
    )


def test_every_public_name_has_an_example():
    for name in set(PUBLIC) - {"theory", "Objective", "Report", "SharedDraw", "MaxUpWarning"}:
        assert ">>>" in inspect.getdoc(getattr(maxup, name)), name


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_type_checkers_see_the_public_names(package):
    """`import X as X` counts as public for mypy and pyright, and so does a star."""
    tree = ast.parse(inspect.getsource(package))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and node.test.id == "TYPE_CHECKING")
    names = set()
    for statement in block.body:
        for alias in statement.names:
            star = sys.modules[statement.module].__all__ if alias.name == "*" else [alias.asname]
            assert alias.name in (alias.asname, "*")
            names.update(star)
    assert names == set(package.__all__)


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_touches_nothing_heavy_and_names_touch_no_extra():
    code = """
import sys, maxup, maxup.diagnostics, maxup.objectives, maxup.perturb, maxup.smoothing
assert not {"torch", "numpy"} & set(sys.modules), "import maxup imported torch or numpy"
import torch
before = set(sys.modules)
for name in maxup.__all__:
    getattr(maxup, name)
extra = {m.partition(".")[0] for m in set(sys.modules) - before} - {"maxup"} - set(sys.stdlib_module_names)
assert extra <= {"numpy", "torch"}, extra
try:
    maxup.Nothing
except AttributeError as error:
    print(error)
"""
    assert "no attribute 'Nothing'" in run_python(code)


def test_without_the_lab_the_core_works_and_the_lab_says_how_to_install_it():
    code = f"""
import sys
for name in {maxup.lab.REQUIRES!r}:
    sys.modules[name] = None  # as if it were not installed
import maxup
from maxup import *
assert set(maxup.__all__) <= set(globals()) and hasattr(maxup, "load")
import torch
model, x, y = torch.nn.Linear(5, 3), torch.rand(8, 5), torch.randint(3, (8,))
maxup.MaxUp(maxup.Gaussian(0.1), m=2)(model, x, y).backward()
maxup.Smooth(model, num_classes=3, sigma=0.5).certify(x[0], n0=10, n=100, alpha=0.01, batch_size=50)
maxup.theory.penalty(model, x, y, m=4, sigma=0.2)
for access in ("maxup.load(1)", "__import__('maxup.lab.recipes.load')"):
    try:
        eval(access)
    except ImportError as error:
        print(error)
"""
    load, lab = run_python(code).splitlines()
    assert load == "maxup.load needs the lab: pip install 'maxup[lab]'"
    assert lab.startswith("maxup.lab needs packages that are not installed (accelerate, ")
    assert lab.endswith("): pip install 'maxup[lab]'")


def test_the_lab_checks_for_its_requirements():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    required = project["optional-dependencies"].get("lab", project["dependencies"])
    modules = {"pyyaml": "yaml", "scikit-learn": "sklearn", "pillow": "PIL"}
    names = {requirement.partition(">")[0].strip().lower() for requirement in required}
    assert {modules.get(name, name) for name in names - {"torch", "numpy", "jinja2"}} == set(maxup.lab.REQUIRES)

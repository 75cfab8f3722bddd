"""The public names, compared with a list; change it on purpose only. And what importing them costs."""

import inspect
import subprocess
import sys

import maxup

PUBLIC = """
Adversarial Affine AutoAugment Average ColorJitter Compose CropFlip CutMix Cutout EmbeddingDropout FeatureNoise Gaussian
HardExamples LabelNoise Lighting ManifoldMixup MaxUp MaxUpWarning MixUp Objective Outcome Perturbation RandAugment
Report SharedDraw Smooth SmoothAdv Transform TrivialAugment UniformBall Views ViewsDataset cross_entropy load
next_token_cross_entropy theory token_cross_entropy warmup
""".split()


def test_public_names():
    assert sorted(maxup.__all__, key=str) == PUBLIC
    for name in PUBLIC:
        assert getattr(maxup, name) is not None
    assert set(PUBLIC) <= set(dir(maxup))


def test_maxup_has_these_knobs_and_no_others():
    knobs = list(inspect.signature(maxup.MaxUp).parameters)
    assert knobs == [
        "perturbation", "m", "norm", "strategy", "chunk_size", "masks", "dtype", "score", "forward", "loss_fn", "generator",
    ]  # fmt: skip


def test_every_public_name_has_an_example():
    for name in set(PUBLIC) - {"theory", "Objective", "Report", "SharedDraw", "MaxUpWarning"}:
        assert ">>>" in inspect.getdoc(getattr(maxup, name)), name


def test_the_names_type_checkers_see_are_the_ones_there_are():
    source = inspect.getsource(maxup).split("if TYPE_CHECKING:")[1].split("# Where each")[0]
    seen = {n.strip() for line in source.splitlines() if "import" in line for n in line.split("import")[1].split(",")}
    assert seen == set(maxup.__all__)


def test_importing_touches_nothing_heavy_and_names_touch_no_extra():
    code = """
import sys, maxup
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no attribute 'Nothing'" in done.stdout

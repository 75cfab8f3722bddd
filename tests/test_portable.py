"""The library works where only torch and numpy are: no other package, no Unix module, no CUDA at import."""

import ast
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import maxup as mu
from tests.test_imports import FILES, ROOT
from tests.tiny import ALL_CASES, case

UNIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
CORE = {name: path for name, path in FILES.items() if not name.startswith(("maxup.lab", "maxup.cli"))}
PORTABLE = sys.stdlib_module_names - UNIX | {"torch", "numpy", "maxup"}
BLOCKED = """
import sys
for name in {names}:
    sys.modules[name] = None  # an import raises ImportError
import torch
torch.cuda.is_available = torch.cuda.current_device = torch.cuda.init = None  # a call raises TypeError
import maxup
for name in maxup.__all__:
    if name != "load":  # it is the lab's
        getattr(maxup, name)
model, x, y = torch.nn.Linear(5, 3), torch.rand(8, 5), torch.randint(3, (8,))
maxup.MaxUp(maxup.Gaussian(0.1), m=4)(model, x, y).backward()
maxup.Smooth(model, num_classes=3, sigma=0.25).certify(x[0], n0=10, n=100, alpha=0.01, batch_size=50)
"""


def imported(path, *, top):
    """The packages that a file imports, anywhere or only when it is imported itself."""
    tree = ast.parse(path.read_text())
    inner = {
        id(node)
        for scope in ast.walk(tree)
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(scope, ast.If) and "TYPE_CHECKING" in ast.unparse(scope.test))
        for node in ast.walk(scope)
    }
    for node in ast.walk(tree):
        if top and id(node) in inner:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_core_files_import_torch_numpy_and_the_portable_standard_library():
    """Integrations may import their package, which their users have."""
    found = {(n, one) for n, path in CORE.items() for one in imported(path, top=True) if one not in PORTABLE}
    assert {pair for pair in found if not pair[0].startswith("maxup.integrations")} == set()


def test_no_core_file_imports_a_unix_module_anywhere():
    assert {(name, one) for name, path in CORE.items() for one in imported(path, top=False) if one in UNIX} == set()


def test_no_core_file_moves_tensors_to_cuda():
    """`maxup.cuda` is for CUDA; the rest follows the device of the batch."""
    pattern = re.compile(r"\.cuda\(|device=[\"']cuda|\.to\([\"']cuda")
    wrong = [name for name, path in CORE.items() if pattern.search(path.read_text())]
    assert [name for name in wrong if not name.startswith("maxup.cuda")] == []


def test_the_library_runs_without_unix_modules_the_lab_and_cuda():
    absent = sorted(UNIX - {"posix", "pwd"} | {"accelerate", "scipy", "sklearn", "matplotlib", "yaml", "tensorboard"})
    done = subprocess.run([sys.executable, "-c", BLOCKED.format(names=absent)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class LikeAppleGPU(TorchDispatchMode):
    """Fail at what Apple's GPUs do not have: float64, normal quantiles, and random integers above 31 bits."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        assert not any(isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64 for leaf in tree_leaves(out)), (
            func
        )
        assert "ndtri" not in str(func)
        if "randint" in str(func):
            assert max(number for number in args if isinstance(number, int)) < 2**31
        return out


@pytest.mark.parametrize("name", ALL_CASES)
def test_float32_data_need_only_what_apple_gpus_have(name):
    perturbation, model, x, y = case(name)
    x, model = x.float() if x.is_floating_point() else x, model.float()
    with LikeAppleGPU():
        outcome = mu.MaxUp(perturbation, m=3).run(model, x, y)
        outcome.loss.backward()
        assert outcome.report.copies == 3


def test_the_long_description_has_absolute_links_only():
    spec = spec_from_file_location("setup_file", ROOT / "setup.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    text, readme = module.long_description(), (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", readme)) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert f"]({module.REPOSITORY}/raw/main/results/copies.png)" in text
    for link in links:
        if (match := re.match(f"{module.REPOSITORY}/(?:blob|raw)/main/([^#]+)", link)) is not None:
            assert (ROOT / match[1]).exists(), link


@pytest.mark.parametrize("name", ["fcntl", "termios"])
def test_the_check_would_find_it(name, tmp_path):
    (tmp_path / "a.py").write_text(f"def f():\n    import {name}\n")
    assert list(imported(tmp_path / "a.py", top=False)) == [name]
    assert list(imported(tmp_path / "a.py", top=True)) == []

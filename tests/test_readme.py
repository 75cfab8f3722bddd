"""What the README and the docs show works, and their numbers are those of results/."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import maxup
from benchmarks.tables import PAGES, ROOT, fill
from tests.oracles import torchvision_v2

BLOCKS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in [
        *PAGES,
        *(ROOT / "docs" / f"{name}.md" for name in ("perturbations", "command", "trainers")),
    ]
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


class Keywords(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, *, pixel_values):
        return {"logits": self.net(pixel_values)}


@pytest.mark.parametrize("code", BLOCKS)
def test_code_runs(code):
    """Every block, with the names a reader would have: a model, a loader, an optimizer."""
    torchvision_v2()
    import kornia.augmentation

    if "albumentations" in code:
        pytest.importorskip("albumentations")

    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))
    data = [(torch.rand(3, 16, 16), i % 10) for i in range(8)]
    names = {name: getattr(maxup, name) for name in maxup.__all__}
    names |= {"torch": torch, "F": F, "DataLoader": lambda d, **k: DataLoader(d, **{**k, "num_workers": 0})}
    names |= {"model": model, "keyword_model": Keywords(model), "loader": DataLoader(data, batch_size=4)}
    names |= {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "dataset": data}
    names |= {"x": torch.rand(4, 3, 16, 16), "y": torch.randint(10, (4,)), "transform": lambda i: i * torch.rand(())}
    names |= {"text_model": nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(20, 2))}
    names |= {"tokens": torch.randint(50, (4, 5)), "labels": torch.randint(2, (4,))}
    names |= {"photographs": [(Image.fromarray(numpy.full((16, 16, 3), i, numpy.uint8)), i) for i in range(8)]}
    names |= {"kornia_augmentation": kornia.augmentation.RandomHorizontalFlip()}
    exec(code, names)


def test_there_is_code_to_run():
    assert len(BLOCKS) > 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_numbers_are_those_of_the_results(page):
    assert fill(page.read_text()) == page.read_text(), "run: python -m benchmarks.tables"


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def run(*command, cwd):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *map(str, command)], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_demo(tmp_path):
    """What `make demo` runs, with fewer seeds and epochs."""
    command = re.search(r"\.venv/bin/python (-m maxup compare .*)", (ROOT / "Makefile").read_text())[1].split()
    printed = run(*command, "--seeds", 2, "--epochs", 1, cwd=tmp_path)
    assert "m = 1, time of m = 4" in printed
    assert "95 % interval" in printed
    assert (tmp_path / "out" / "compare.json").exists()
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_plain_loop(tmp_path):
    printed = run(ROOT / "examples" / "plain_loop.py", "--epochs", 3, cwd=tmp_path)
    assert float(re.findall(r"accuracy ([\d.]+)", printed)[-1]) > 70


def test_certify_one_image(tmp_path):
    printed = run(ROOT / "examples" / "certify_one_image.py", cwd=tmp_path)
    answer, radius = re.search(r"answered (\d), and no change of l2 norm below ([\d.]+)", printed).groups()
    assert float(radius) > 0.1
    assert f"answered {answer}" in printed.splitlines()[1]


def test_certification_benchmarks_run_and_write(tmp_path):
    quick = ["--network", "resnet20", "--out", tmp_path]
    run("-m", "benchmarks.certify", "speed", *quick, "--n", 100, "--batch", 50, "--images", 1, "--usual_images", 1,
        "--seconds", 0, cwd=ROOT)  # fmt: skip
    run("-m", "benchmarks.certify", "epochs", *quick, "--count", 16, "--batch_size", 8, "--steps", 1, "--rounds", 1,
        cwd=ROOT)  # fmt: skip
    ways = json.loads((tmp_path / "certify_speed-cpu.json").read_text())["ways"]
    assert {"fixed, float32", "adaptive, bfloat16", "usual loop, float32", "bare network, float32"} <= set(ways)
    ratio = json.loads((tmp_path / "certify_epochs-cpu.json").read_text())["ratio"]
    assert ratio["Gaussian"] == 1


def test_benchmarks_run_and_write(tmp_path):
    run("-m", "benchmarks.overhead", "--batch", 4, "--rounds", 1, "--out", tmp_path, cwd=ROOT)
    run("-m", "benchmarks.memory", "--batch", 2, "--out", tmp_path, cwd=ROOT)
    small = ["--scale", 0.02, "--columns", 2, "--length", 5, "--rounds", 1, "--steps", 1]
    run("-m", "benchmarks.language", *small, "--out", tmp_path, cwd=ROOT)
    assert {p.name.split("-")[0] for p in Path(tmp_path).iterdir()} == {"overhead", "memory", "language"}

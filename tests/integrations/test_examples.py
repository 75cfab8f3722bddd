"""The examples of the integrations run, and learn."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.oracles import torchvision_v2

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.filterwarnings("ignore")  # warnings of the packages
@pytest.mark.parametrize(
    ("name", "package", "epochs", "accuracy"),
    [
        ("lightning_digits", "pytorch_lightning", 3, 70),
        ("hf_image", "transformers", 3, 40),
        ("hf_text", "transformers", 5, 40),
        ("timm_digits", "timm", 3, 50),
    ],
)
def test_example(name, package, epochs, accuracy, monkeypatch, capsys, tmp_path):
    torchvision_v2()
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "--epochs", str(epochs), "--m", "2"])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert float(re.findall(r"test accuracy ([\d.]+) %", capsys.readouterr().out)[-1]) > accuracy
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60
    assert not list(tmp_path.iterdir())

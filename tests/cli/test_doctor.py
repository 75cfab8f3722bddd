"""`maxup doctor`: findings for a user's function, and one message for a bad one."""

import pytest

from maxup.cli.main import main

MINE = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))

batch = torch.rand(8, 1, 4, 4), torch.arange(8) % 4

def good():
    return {"model": model(), "batch": batch}

def in_order():
    return model(), batch, lambda output, y: nn.functional.cross_entropy(output, y, reduction="none")

def scalar():
    return {"model": model(), "batch": batch, "loss_fn": nn.functional.cross_entropy}

def raises():
    raise KeyError("my own words")

def leaves():
    raise SystemExit(3)

def nothing():
    return None

def broken():
    class Broken(nn.Linear):
        def forward(self, x):
            raise RuntimeError("my bug")
    return {"model": Broken(16, 4), "batch": batch}

def misspelt():
    return {"model": model(), "batch": batch, "perturbatoin": None}

def lacking():
    return {"model": model()}

def no_module():
    return {"model": lambda x: x, "batch": batch}

def no_pair():
    return {"model": model(), "batch": batch[0]}

def uneven():
    return {"model": model(), "batch": (batch[0], batch[1][:3])}
"""


@pytest.fixture(autouse=True)
def _mine(tmp_path, monkeypatch):
    (tmp_path / "my_setup.py").write_text(MINE)
    (tmp_path / "my_broken.py").write_text("import maxup_has_no_such_friend\n")
    (tmp_path / "my_typo.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("function", ["my_setup:good", "my_setup:in_order", "my_setup.py:good"])
def test_a_good_setup_is_well(function, capsys):
    assert main(["doctor", function]) == 0
    printed = capsys.readouterr().out
    assert "No errors." in printed
    assert printed.count("ok  ") >= 8


def test_a_scalar_loss_is_an_error(capsys):
    assert main(["doctor", "my_setup:scalar"]) == 1
    printed = capsys.readouterr().out
    assert "error   a forward pass on the batch failed: ValueError: the loss returned shape ()" in printed
    assert printed.endswith("\n1 error\n")


def test_an_error_of_the_model_names_its_line(capsys):
    line = MINE.splitlines().index('            raise RuntimeError("my bug")') + 1
    assert main(["doctor", "my_setup:broken"]) == 1
    printed = capsys.readouterr().out
    assert f"a forward pass on the batch failed: RuntimeError: my bug (my_setup.py, line {line})\n" in printed


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("my_setup", "not of the form MODULE:FUNCTION"),
        ("my_setup:", "not of the form MODULE:FUNCTION"),
        ("my_nowhere:good", "there is no module my_nowhere"),
        (
            "my_broken:good",
            "importing my_broken failed: ModuleNotFoundError: No module named 'maxup_has_no_such_friend'",
        ),
        ("my_typo:f", "importing my_typo failed: SyntaxError"),
        ("my_setup:godo", "did you mean 'good'"),
        ("my_setup:raises", "my_setup:raises raised KeyError: 'my own words' (my_setup.py, line "),
        ("my_setup:leaves", "my_setup:leaves raised SystemExit: 3"),
        ("my_setup:nothing", "returned a NoneType"),
        ("my_setup:misspelt", "did you mean 'perturbation'"),
        ("my_setup:lacking", "the returned dict has no 'batch'"),
        ("my_setup:no_module", "not an nn.Module"),
        ("my_setup:no_pair", "must be the pair (x, y)"),
        ("my_setup:uneven", "x holds 8 examples"),
    ],
)
def test_a_bad_setup_gets_one_message(function, message, capsys):
    assert main(["doctor", function]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1

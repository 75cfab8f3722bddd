"""Every example runs, is short, and does what it says. tests/distributed/test_agents.py runs slurm.sh."""

import json
import os
import re
import runpy
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import maxup as mu
from tests.distributed.launch import ROOT
from tests.waiting import PATIENCE

EXAMPLES = ROOT / "examples"
SHORT = [path for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".sh", ".yaml")]


def run(name, *arguments, monkeypatch, capsys):
    """Run an example as a program in this process, and return what it prints."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("path", SHORT, ids=lambda path: path.name)
def test_examples_are_short_and_say_how_to_run_them(path):
    text = path.read_text()
    assert len(text.splitlines()) < 60
    assert re.search(r"(python|torchrun|sbatch|accelerate launch) .*examples/", text)


def test_segmentation(monkeypatch, capsys):
    printed = run("segmentation.py", "--epochs", 4, monkeypatch=monkeypatch, capsys=capsys)
    assert float(re.findall(r"IoU ([\d.]+)", printed)[-1]) > 60  # the background alone: 28


def test_semi_supervised(monkeypatch, capsys):
    both, labeled = (
        run("semi_supervised.py", "--weight", weight, "--steps", 200, monkeypatch=monkeypatch, capsys=capsys)
        for weight in (1, 0)
    )
    assert float(re.search(r"([\d.]+) %", both)[1]) > float(re.search(r"([\d.]+) %", labeled)[1]) > 70


def test_semi_supervised_uses_the_draws_of_the_worst_copies():
    """The loss of the example, against the draws written out: the noise that is worst of three for the labeled data."""
    loss_of = runpy.run_path(str(EXAMPLES / "semi_supervised.py"))["semi_supervised_loss"]
    model = nn.Linear(5, 3).double()
    x, y, unlabeled = torch.rand(4, 5).double(), torch.tensor([0, 1, 2, 0]), torch.rand(4, 5).double()
    drawn = []

    class Recorded(mu.Gaussian):
        def draw(self, batch, generator):
            drawn.append(super().draw(batch, generator))
            return drawn[-1]

    found = loss_of(model, mu.MaxUp(Recorded(0.3), m=3), (x, y), unlabeled, 2.0)
    noise = torch.stack([mu.Gaussian(0.3).apply((torch.zeros_like(x), y), draw)[0] for draw in drawn])  # (3, 4, 5)
    losses = torch.stack([F.cross_entropy(model(x + n), y, reduction="none") for n in noise])
    worst = noise[losses.argmax(0), torch.arange(4)]
    moved = (model(unlabeled + worst).log_softmax(1) * model(unlabeled).softmax(1)).sum(1)
    expected = losses.amax(0).mean() - 2.0 * moved.mean()
    torch.testing.assert_close(found, expected)


def optuna_stub():
    """The few names of Optuna that the example uses, with fixed suggestions."""

    class Trial:
        def __init__(self, number):
            self.number, self.params, self.user_attrs, self.value = number, {}, {}, None
            self.reported = []

        def suggest_int(self, name, low, high, log=False):
            return self.params.setdefault(name, [low, high // 2, high][self.number])

        def suggest_float(self, name, low, high, log=False):
            return self.params.setdefault(name, (low * high) ** 0.5)

        def report(self, value, step):
            self.reported.append((step, value))

        def should_prune(self):
            return self.number == 2

        def set_user_attr(self, name, value):
            self.user_attrs[name] = value

    class TrialPruned(Exception):  # noqa: N818
        pass

    class Study:
        def optimize(self, function, n_trials):
            self.trials = [Trial(number) for number in range(n_trials)]
            for trial in self.trials:
                try:
                    trial.value = function(trial)
                except TrialPruned:
                    assert len(trial.reported) == 1
            self.best_trial = max((t for t in self.trials if t.value is not None), key=lambda t: t.value)

    optuna = ModuleType("optuna")
    optuna.TrialPruned, optuna.create_study = TrialPruned, lambda **settings: Study()
    optuna.samplers = SimpleNamespace(TPESampler=lambda seed: None)
    return optuna


def test_optuna_sweep(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", optuna_stub())
    printed = run("optuna_sweep.py", "--trials", 3, monkeypatch=monkeypatch, capsys=capsys)
    m, validation, test = re.search(r"'m': (\d).* validation ([\d.]+) %, test ([\d.]+) %", printed).groups()
    assert m in "14"  # the third was pruned
    assert float(validation) > 80
    assert float(test) > 80


def test_optuna_sweep_without_optuna(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SystemExit, match=r"^this example needs Optuna, which is not installed: pip install optuna$"):
        run("optuna_sweep.py", monkeypatch=monkeypatch, capsys=capsys)


def test_accelerate_loop(monkeypatch, capsys):
    from accelerate.state import AcceleratorState

    try:
        printed = run("accelerate_loop.py", "--epochs", 3, monkeypatch=monkeypatch, capsys=capsys)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert float(re.findall(r"epoch +\d+  test accuracy ([\d.]+)", printed)[-1]) > 70


@pytest.mark.slow
def test_accelerate_loop_in_two_processes(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [*launch, EXAMPLES / "accelerate_loop.py", "--epochs", "3"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    accuracies = re.findall(r"epoch +\d+  test accuracy ([\d.]+)", done.stdout)
    assert len(accuracies) == 3  # one process prints
    assert float(accuracies[-1]) > 70


def test_notebook_runs_from_top_to_bottom(monkeypatch, capsys):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    monkeypatch.setattr(plt, "show", lambda: None)  # Agg warns that it cannot
    notebook = json.loads((EXAMPLES / "quickstart.ipynb").read_text())
    assert notebook["nbformat"] == 4
    names = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    plt.close("all")
    printed = capsys.readouterr().out
    assert [float(value) > 80 for value in re.findall(r"test accuracy ([\d.]+)", printed)] == [True, True]
    assert float(re.search(r"radius of ([\d.]+)", printed)[1]) > 0

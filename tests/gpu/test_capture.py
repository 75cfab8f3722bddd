"""On a GPU: captured and eager steps agree over 50 steps and a change of m, and a captured run resumes."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import maxup as mu
from maxup.cuda.capture import CapturedStep, capture_step
from maxup.lab.recipes.load import recipe_from
from maxup.lab.storage import checkpoint
from maxup.lab.train import loop
from maxup.lab.train import step as training_step

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

RECIPE = {
    "data": {"name": "digits", "train_size": 500},
    "model": {"name": "conv", "args": {"width": 16}},
    "augment": [{"name": "crop_flip", "padding": 1}],
    "perturb": [{"name": "cutout", "length": 3}],
    "objective": {"name": "maxup", "m": 4, "warmup": 1},
    "optim": {"lr": 0.05, "schedule": "cosine", "clip": 1.0, "ema": 0.9},
    "epochs": 5,
    "batch_size": 50,
}


@pytest.fixture(autouse=True)
def _deterministic():
    torch.backends.cudnn.deterministic = True  # some channels_last convolutions are not
    yield
    torch.backends.cudnn.deterministic = False


def run(folder, monkeypatch, captured, **changes):
    graphs, capture = [], CapturedStep._capture
    monkeypatch.setattr(CapturedStep, "_capture", lambda self, batch: graphs.append(1) or capture(self, batch))
    if not captured:
        monkeypatch.setattr(training_step, "why_not_capturable", lambda *a, **k: "told not to")
    result = loop.train(recipe_from(RECIPE | changes), folder, quiet=True)
    monkeypatch.undo()
    assert bool(graphs) is captured
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return (
        result,
        [r["train_loss"] for r in records if "train_loss" in r],
        checkpoint.latest(folder / "checkpoints", print),
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "asgd"])
def test_captured_and_eager_steps_agree_over_fifty_steps(tmp_path, monkeypatch, optimizer):
    changes = {"optim": RECIPE["optim"] | {"name": optimizer, "lr": 0.05 if optimizer != "adamw" else 1e-3}}
    changes["optim"]["ema"] = None if optimizer == "asgd" else 0.9
    plain, plain_losses, (step, plain_state) = run(tmp_path / "plain", monkeypatch, False, **changes)
    fast, fast_losses, (_, fast_state) = run(tmp_path / "captured", monkeypatch, True, **changes)
    assert step == plain["steps"] == fast["steps"] == 50
    assert fast_losses == pytest.approx(plain_losses, rel=1e-4)
    for name, tensor in plain_state["model"].items():
        torch.testing.assert_close(fast_state["model"][name], tensor, rtol=1e-3, atol=1e-4, msg=name)
    assert plain_state["ranks"][0]["objective"]["step"] == fast_state["ranks"][0]["objective"]["step"] == 50


def test_bf16(tmp_path, monkeypatch):
    _, plain, _ = run(tmp_path / "plain", monkeypatch, False, precision="bf16")
    _, fast, _ = run(tmp_path / "captured", monkeypatch, True, precision="bf16")
    assert fast == pytest.approx(plain, rel=5e-2)


def test_the_settings_of_the_speed_run(tmp_path, monkeypatch):
    optim = {"lr": 0.05, "schedule": "triangle", "bias_lr": 8, "label_smoothing": 0.2, "lookahead": 5}
    changes = {"optim": optim, "augment": [], "data": RECIPE["data"] | {"alternating_flip": True, "flip_test": True}}
    slow, plain, _ = run(tmp_path / "plain", monkeypatch, False, **changes)
    quick, fast, _ = run(tmp_path / "captured", monkeypatch, True, **changes)
    assert fast == pytest.approx(plain, rel=1e-3)
    assert slow["compile_seconds"] == 0 < quick["compile_seconds"] <= quick["training_seconds"]


def test_sam_is_captured_with_both_passes(tmp_path, monkeypatch):
    changes = {"optim": RECIPE["optim"] | {"sam": 0.05}}
    _, plain, _ = run(tmp_path / "plain", monkeypatch, False, **changes)
    _, fast, _ = run(tmp_path / "captured", monkeypatch, True, **changes)
    assert fast == pytest.approx(plain, rel=1e-3)


def test_retain_is_captured(tmp_path, monkeypatch):
    objective = {"name": "maxup", "m": 4, "warmup": 1, "strategy": "retain"}
    changes = {"objective": objective, "model": {"name": "mlp"}}  # without BatchNorm, which retain refuses
    _, plain, _ = run(tmp_path / "plain", monkeypatch, False, **changes)
    _, fast, _ = run(tmp_path / "captured", monkeypatch, True, **changes)
    assert fast == pytest.approx(plain, rel=1e-3)


def test_smoothadv_is_captured_with_its_attack(tmp_path, monkeypatch):
    """The step is captured again for each radius of the warmup epochs."""
    changes = {
        "objective": {"name": "smoothadv", "radius": 0.5, "steps": 3, "samples": 2, "warmup": 2},
        "model": {"name": "conv", "args": {"width": 16}, "normalize": True},
        "perturb": [{"name": "gaussian", "sigma": 0.25}],
    }
    _, plain, _ = run(tmp_path / "plain", monkeypatch, False, **changes)
    _, fast, _ = run(tmp_path / "captured", monkeypatch, True, **changes)
    assert fast == pytest.approx(plain, rel=1e-3)


def test_an_interrupted_captured_run_resumes(tmp_path, monkeypatch):
    _, whole, _ = run(tmp_path / "whole", monkeypatch, True)
    steps = []
    step = training_step.TrainingStep.__call__

    def stop_in_the_middle(self, batch):
        steps.append(1)
        if len(steps) == 27:
            raise KeyboardInterrupt
        return step(self, batch)

    monkeypatch.setattr(training_step.TrainingStep, "__call__", stop_in_the_middle)
    with pytest.raises(KeyboardInterrupt):
        loop.train(recipe_from(RECIPE), tmp_path / "cut", quiet=True, save_every=0)
    monkeypatch.undo()
    _, resumed, _ = run(tmp_path / "cut", monkeypatch, True)
    assert resumed == pytest.approx(whole, rel=1e-4)


def draws(captured, start=0, steps=9):
    """Return the winners of the steps from `start` on, drawn by a default generator."""
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(3, 2).cuda(), torch.zeros(4, 3).cuda(), torch.zeros(4, dtype=torch.long).cuda()
    objective, kept = mu.MaxUp(mu.Gaussian(1.0), m=2), torch.zeros_like(x)
    objective.load_state_dict({"seed": 5, "step": start})

    def step(batch):
        kept.copy_(objective.select(model, *batch)[0])
        return kept.sum()

    task = SimpleNamespace(objective=objective, generator=None)
    call = capture_step(step, task, stage=lambda: 0, say=pytest.fail) if captured else step
    found = []
    for _ in range(start, steps):
        call((x, y))
        found.append(kept.clone())
    assert objective.step == steps
    assert not captured or call.graph is not None
    return found


def test_replays_draw_from_seed_and_step_like_eager_steps():
    whole = draws(captured=False)
    assert len({tuple(found.flatten().tolist()) for found in whole}) == len(whole)
    for start in (0, 4):  # from the beginning, and resumed
        for found, expected in zip(draws(captured=True, start=start), whole[start:], strict=True):
            assert torch.equal(found, expected)


def test_dropout_layers_train_eagerly(tmp_path, monkeypatch):
    def never(self, batch):
        raise AssertionError

    monkeypatch.setattr(CapturedStep, "_capture", never)
    recipe = recipe_from(RECIPE | {"model": {"name": "conv", "args": {"width": 8, "dropout": 0.3}}})
    assert loop.train(recipe, tmp_path, quiet=True)["steps"] == 50


def test_functional_dropout_is_detected_and_trains_eagerly(tmp_path, capsys):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(64, 10)

        def forward(self, x):
            return self.line(torch.nn.functional.dropout(x.flatten(1), 0.3, self.training))

    result = loop.train(recipe_from(RECIPE), tmp_path, model_from=lambda shape, num_classes, width: Net())
    assert result["steps"] == 50
    assert capsys.readouterr().out.count("the step is not captured") == 1


def test_a_network_that_synchronizes_is_detected_and_trains_eagerly(tmp_path, capsys):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(64, 10)

        def forward(self, x):
            return self.line(x.flatten(1)) / max(1.0, x.abs().max().item())

    result = loop.train(recipe_from(RECIPE), tmp_path, model_from=lambda shape, num_classes, width: Net())
    assert result["steps"] == 50
    assert capsys.readouterr().out.count("the step is not captured: the network synchronizes with the device") == 1


def test_the_first_run_of_a_process_is_captured(tmp_path):
    """The synchronization debug mode itself warns the first time."""
    program = f"""
import pathlib
from maxup.lab.train import loop
from maxup.lab.recipes.load import recipe_from
loop.train(recipe_from({RECIPE!r}), pathlib.Path({str(tmp_path)!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "one CUDA graph: yes" in done.stdout
    assert "is not captured" not in done.stdout

"""One process: what a run leaves behind, and what goes wrong with it."""

import json
import multiprocessing
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import set_seed

from maxup.errors import CheckpointError, DataError, RunError
from maxup.lab.recipes.load import recipe_from
from maxup.lab.recipes.objectives import warmup_note
from maxup.lab.storage import checkpoint
from maxup.lab.storage.locks import locked
from maxup.lab.tasks.vision import Vision
from maxup.lab.train import loop, step
from maxup.lab.train.runs import open_run
from tests.waiting import PATIENCE

RECIPE = {
    "data": {"name": "digits", "train_size": 200},
    "model": {"name": "mlp", "args": {"hidden": [16]}},
    "perturb": [{"name": "gaussian", "sigma": 0.2}],
    "objective": {"name": "maxup", "m": 2, "warmup": 0},
    "epochs": 3,
    "batch_size": 50,
}


def train(folder, changes=None, **options):
    return loop.train(recipe_from(RECIPE | (changes or {})), folder, quiet=True, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, train(folder)


def test_a_run_leaves_metrics_checkpoints_and_its_record(whole):
    folder, result = whole
    assert json.loads((folder / "run.json").read_text()) == result
    assert result["seed"] == 0
    assert result["environment"]["versions"]["torch"] == torch.__version__
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in records if "epoch" in r] == [1, 2, 3]
    assert checkpoint.latest(folder / "checkpoints", print)[0] == result["steps"] == 12
    assert result["last"]["test_accuracy"] > 0.2


def test_fewer_evaluations_do_not_change_the_training(whole, tmp_path):
    rare = train(tmp_path, {"eval_every": 2})
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in records if "epoch" in r] == [2, 3]
    assert rare["last"] == whole[1]["last"]


def test_evaluation_against_a_plain_count(whole):
    folder, result = whole
    task = Vision(recipe_from(RECIPE), torch.device("cpu"))
    task.model.load_state_dict(checkpoint.latest(folder / "checkpoints", print)[1]["model"])
    right = (task.model.eval()(task.test.normalize(task.test.x)).argmax(1) == task.test.y).double().mean()
    assert result["last"]["test_accuracy"] == pytest.approx(right.item())


def test_the_loop_does_what_a_hand_written_one_does(whole):
    """Same seeds, same draws: the weights after training are those of fifteen plain lines."""
    from accelerate.utils import set_seed

    from maxup.lab.tasks.vision import Vision
    from maxup.lab.train.optim import create_optimizer, learning_rate

    folder, _ = whole
    recipe = recipe_from(RECIPE)
    set_seed(recipe.seed)
    task = Vision(recipe, torch.device("cpu"))
    optimizer = create_optimizer(task.model, recipe.optim)
    step = 0
    for _ in range(3):
        for batch in task.loader:
            optimizer.param_groups[0]["lr"] = learning_rate(recipe.optim, step / 12)
            task.step(task.model, batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    saved = checkpoint.latest(folder / "checkpoints", print)[1]["model"]
    for name, tensor in task.model.state_dict().items():
        torch.testing.assert_close(tensor, saved[name], msg=name)


@pytest.mark.parametrize("objective", ["standard", "average", {"name": "adversarial", "steps": 2}, "hard_examples"])
def test_every_objective_trains(tmp_path, objective):
    result = train(tmp_path, {"objective": objective, "epochs": 2})
    assert result["steps"] == 8


def test_fast_scoring_records_the_gap_that_it_keeps(tmp_path, monkeypatch):
    monkeypatch.setattr("maxup.objectives.maxup.CHECK_EVERY", 4)
    fast = {
        "model": {"name": "conv"},
        "perturb": [{"name": "cutout", "length": 4}],
        "objective": {"name": "maxup", "m": 3, "warmup": 0, "fast": True},
    }
    result = train(tmp_path, fast)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    kept = [record["gap_kept"] for record in records if "epoch" in record]
    assert len(kept) == 3
    assert all(-1 < share <= 1 for share in kept)
    assert result["last"]["gap_kept"] == kept[-1]


def test_a_shortened_warmup_is_announced(tmp_path, capsys):
    for warmup in (1, 2):
        recipe = recipe_from(RECIPE | {"objective": {"name": "maxup", "m": 2, "warmup": warmup}, "epochs": 4})
        loop.train(recipe, tmp_path / str(warmup))
        assert ("objective.warmup is 1 instead of 2 epochs" in capsys.readouterr().out) == (warmup == 2)
    assert warmup_note(replace(recipe, objective=recipe.objective | {"start": 0.5})) is None, "m = 1 for 2 epochs"


def test_accumulation_equals_the_joined_batch(tmp_path):
    """Two batches of 50 accumulated are one of 100, for an objective without draws and a net without BatchNorm."""
    plain = {"objective": {"name": "hard_examples", "keep": 1.0}, "epochs": 1, "optim": {"schedule": "constant"}}
    train(tmp_path / "two", plain | {"optim": {"schedule": "constant", "accumulate": 2}, "batch_size": 50})
    train(tmp_path / "one", plain | {"batch_size": 100})
    states = [checkpoint.latest(tmp_path / n / "checkpoints", print)[1]["model"] for n in ("one", "two")]
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, atol=1e-6, rtol=0)


def hold(folder, ready, done):
    with locked(folder):
        ready.set()
        done.wait(PATIENCE)


def test_a_second_process_in_the_same_folder_is_refused(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, ready, done))
    other.start()
    assert ready.wait(PATIENCE)
    with pytest.raises(CheckpointError, match=str(other.pid)):
        train(tmp_path)
    done.set()
    other.join()


def test_a_loss_that_is_not_finite_stops_with_the_examples_named(tmp_path):
    with pytest.raises(RunError, match=r"the loss became (inf|nan) .* training examples \[\d+, .*lower optim\.lr"):
        train(tmp_path, {"optim": {"lr": 1e9, "schedule": "constant"}, "epochs": 20})
    assert any((tmp_path / "not-finite").glob("step-*"))


def spoil(monkeypatch, step, make):
    """Let the loss of this step, counted from 1 in every call of `train`, be another."""
    plain, count = Vision.step, [0]

    def spoilt(task, model, batch):
        count[0] += 1
        outcome = plain(task, model, batch)
        return SimpleNamespace(loss=make(outcome.loss)) if count[0] == step else outcome

    monkeypatch.setattr(Vision, "step", spoilt)


def test_a_run_that_met_a_bad_loss_resumes_from_its_last_good_checkpoint(tmp_path, monkeypatch):
    """However often the same is tried: good checkpoints stay as they are, and the end is that of a run without."""
    expected = train(tmp_path / "whole", save_every=0)["last"]
    for _ in range(3):
        with monkeypatch.context() as patch:
            before = {p.name for p in (tmp_path / "run" / "checkpoints").glob("step-*")}
            spoil(patch, 1 if before else 7, lambda loss: loss * torch.nan)
            with pytest.raises(RunError, match=r"the loss became nan around step 7; .* apart from the good"):
                train(tmp_path / "run", save_every=0)
            found = {p.name for p in (tmp_path / "run" / "checkpoints").glob("step-*")}
            assert found == (before or found) >= {"step-000005", "step-000006"}
    assert [p.name for p in (tmp_path / "run" / "not-finite").glob("step-*")] == ["step-000007"]
    assert train(tmp_path / "run", save_every=0)["last"] == expected


class Overflowing(torch.autograd.Function):
    """The identity, whose gradient is infinite."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * torch.inf


def test_weights_that_are_not_finite_are_no_checkpoint(tmp_path, monkeypatch):
    spoil(monkeypatch, 3, Overflowing.apply)
    with pytest.raises(RunError, match=r"the weights are no longer finite at step 3; .*not-finite"):
        train(tmp_path, save_every=0)
    assert {p.name for p in (tmp_path / "checkpoints").glob("step-*")} == {"step-000001", "step-000002"}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_an_evaluation_that_is_not_finite_is_no_success(tmp_path, monkeypatch, value):
    plain = Vision.evaluate

    def evaluate(task, model, name):
        sums, count = plain(task, model, name)
        return sums | {"loss": torch.tensor(value)}, count

    with monkeypatch.context() as patch:
        patch.setattr(Vision, "evaluate", evaluate)
        with pytest.raises(RunError, match=rf"the test loss is {value} at step 4; the state is saved in .*not-finite"):
            train(tmp_path)
    assert not (tmp_path / "run.json").exists()
    assert not any((tmp_path / "checkpoints").glob("step-*"))
    assert any((tmp_path / "not-finite").glob("step-*"))


def test_weights_that_went_bad_do_not_replace_good_checkpoints(tmp_path, monkeypatch):
    """As on a GPU, where the loss is looked at now and then."""
    monkeypatch.setattr(step, "math", SimpleNamespace(isfinite=lambda value: True))
    changes = {"optim": {"lr": 1e9, "schedule": "constant"}, "epochs": 20}
    with pytest.raises(RunError, match=r"the loss became .*; the state is saved in .*not-finite"):
        train(tmp_path, changes, save_every=0)
    assert any((tmp_path / "not-finite").glob("step-*"))
    for found in (tmp_path / "checkpoints").glob("step-*"):
        assert all(v.isfinite().all() for v in checkpoint.load(found)["model"].values()), found


def test_a_finished_run_keeps_its_record(tmp_path, monkeypatch):
    first = train(tmp_path, {"epochs": 1})
    monkeypatch.setenv("MAXUP_COMMIT", "another")
    again = train(tmp_path, {"epochs": 1})
    assert again == json.loads((tmp_path / "run.json").read_text())
    assert again["environment"]["commit"] == first["environment"]["commit"] != "another"


def test_a_run_that_cannot_begin_leaves_nothing_behind(tmp_path):
    with pytest.raises(DataError, match=r"train_size"):
        train(tmp_path / "a", {"data": {"name": "digits", "train_size": 5000}, "precision": "bf16"})
    assert not (tmp_path / "a").exists()
    train(tmp_path / "b", {"epochs": 1})


@pytest.mark.parametrize("accumulate", [2, 3, 4, 99])
def test_accumulated_batches_are_one_batch(tmp_path, accumulate):
    """5 batches an epoch: the last window is shorter, and the next epoch begins a new one."""
    optim = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "accumulate": accumulate}
    changes = {"epochs": 2, "batch_size": 10, "data": {"name": "digits", "train_size": 50}, "optim": optim}
    changes |= {"objective": {"name": "standard"}, "perturb": [{"name": "gaussian", "sigma": 0.0}]}
    train(tmp_path, changes)
    found = checkpoint.latest(tmp_path / "checkpoints", print)[1]["model"]
    recipe = recipe_from(RECIPE | changes)
    set_seed(recipe.seed)
    task = Vision(recipe, torch.device("cpu"))
    for _ in range(2):
        batches = list(task.loader)
        for first in range(0, 5, accumulate):
            window = batches[first : first + accumulate]
            x, y = (torch.cat([batch[i] for batch in window]) for i in (1, 2))
            loss = torch.nn.functional.cross_entropy(task.model(task.train.normalize(x)), y)
            weights = list(task.model.parameters())
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.data -= 0.1 * gradient
    for name, weight in task.model.state_dict().items():
        torch.testing.assert_close(found[name], weight)


def test_an_average_of_the_weights_is_what_is_evaluated(tmp_path):
    from maxup.lab.tasks.vision import Vision

    changes = {"optim": {"ema": 0.5}, "epochs": 1}
    result = train(tmp_path, changes)
    state = checkpoint.latest(tmp_path / "checkpoints", print)[1]
    task = Vision(recipe_from(RECIPE | changes), torch.device("cpu"))
    losses = {}
    for weights in ("ema", "model"):
        task.model.load_state_dict(state[weights])
        output = task.model.eval()(task.test.normalize(task.test.x))
        losses[weights] = torch.nn.functional.cross_entropy(output, task.test.y).item()
    assert result["last"]["test_loss"] == pytest.approx(losses["ema"], rel=1e-5)
    assert result["last"]["test_loss"] != pytest.approx(losses["model"], rel=1e-3)


def test_own_data_without_a_test_split_is_split(tmp_path):
    def data():
        return torch.arange(60 * 16).remainder(251).byte().view(60, 4, 4), torch.arange(60) % 3

    train(tmp_path, {"data": {"train_size": None}, "epochs": 1}, data_from=data)
    run = open_run(tmp_path, data_from=data)
    assert (len(run.task.train), len(run.task.test)) == (48, 12)
    assert run.task.test.y.bincount().tolist() == [4, 4, 4]

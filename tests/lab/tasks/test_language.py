"""A language model's step, its winners, its evaluation and its stages, each against a naive implementation."""

import copy
import json
import math
import random
import shutil
import signal
from contextlib import contextmanager
from dataclasses import asdict

import pytest
import torch
from torch.nn import functional as F

from maxup.errors import DataError, InterruptedRunError, RecipeError, RunError
from maxup.lab.models.awd_lstm import AWDLSTM
from maxup.lab.recipes.load import recipe_from
from maxup.lab.storage import checkpoint
from maxup.lab.tasks import dynamic_evaluation
from maxup.lab.tasks.language import Language, _forward, by_unit
from maxup.lab.train import loop
from maxup.lab.train.optim import create_optimizer
from maxup.lab.train.runs import evaluate, open_run
from maxup.objectives import wide_passes
from maxup.objectives.shared_masks import RecordRandomOps

ARGS = {"embedding": 6, "hidden": 9, "layers": 2, "input_dropout": 0.2, "hidden_dropout": 0.2, "output_dropout": 0.2}
RECIPE = {
    "task": "language",
    "model": {"name": "awd_lstm", "args": ARGS | {"weight_drop": 0.3, "noise": 0.05}},
    "perturb": [{"name": "embedding_dropout", "p": 0.4}],
    "objective": {"name": "maxup", "m": 3, "warmup": 0},
    "language": {"bptt": 8, "epsilon": 0.05, "validation_columns": 2},
    "optim": {"name": "asgd", "lr": 5.0, "momentum": 0.0, "weight_decay": 1e-6, "clip": 0.25, "schedule": "constant"},
    "epochs": 3,
    "batch_size": 4,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A little language: after a noun comes a verb."""
    rng, folder = random.Random(0), tmp_path_factory.mktemp("text")
    for split, lines in (("train", 60), ("valid", 25), ("test", 25)):
        text = [" ".join(f"n{rng.randrange(9)} v{rng.randrange(4)}" for _ in range(4)) for _ in range(lines)]
        (folder / f"{split}.txt").write_text("\n".join(text) + "\n")
    return folder


def recipe(folder, **changes):
    said = copy.deepcopy(RECIPE) | {"data": {"name": "text", "root": str(folder)}}
    for key, value in changes.items():
        said[key] = said[key] | value if isinstance(value, dict) and key in said else value
    return recipe_from(said)


def task(folder, **changes):
    torch.manual_seed(0)
    made = Language(recipe(folder, **changes), torch.device("cpu"))
    made.model.double()
    made.hidden = [(torch.randn_like(h), torch.randn_like(c)) for h, c in made.model.start(4)]
    return made


def window(made):
    windows = iter(made.loader)
    next(windows)
    return next(windows)  # not the first, which resets the state


def naive_copies(made, batch):
    """Losses of every token in every copy, (m, B, T), and what the model returned: one plain pass for each copy."""
    _, ids, target = batch
    masks = made.objective.perturbation
    twin = torch.Generator().manual_seed(0)
    twin.set_state(made.objective.generator.get_state())
    stream, losses, reads = torch.get_rng_state(), [], []
    for _ in range(made.objective.copies()):
        draw = masks.draw((ids, target), twin)
        torch.set_rng_state(stream)
        masks.apply((ids, target), draw)
        read = made.model(ids, made.hidden)
        masks.clear()
        rows = []
        for b in range(len(ids)):
            h, y = read.output[b], target[b]
            scores = h @ made.model.words.weight.T + made.model.bias
            fall = 0.05 * made.model.words.weight[y].norm(dim=1).detach() * h.norm(dim=1)
            scores = scores - fall[:, None] * F.one_hot(y, scores.shape[1])
            rows.append(-scores.log_softmax(1)[range(len(y)), y])
        losses.append(torch.stack(rows))
        reads.append(read)
    torch.set_rng_state(stream)
    return torch.stack(losses), reads


def naive_regularizers(output, raw):
    slow = sum(((raw[:, t] - raw[:, t - 1]) ** 2).sum() for t in range(1, raw.shape[1]))
    return 2.0 * (output**2).mean() + slow / raw[:, 1:].numel()


@pytest.mark.parametrize("strategy", ["recompute", "retain"])
@pytest.mark.parametrize("unit", ["column", "batch", "token"])
def test_a_step_against_plain_passes(folder, strategy, unit):
    """Winner, loss, gradient, the state that is carried on: by their definitions."""
    if (unit, strategy) == ("token", "recompute"):
        with pytest.raises(ValueError, match=r"set objective\.strategy=retain"):
            task(folder, objective={"unit": unit, "strategy": strategy})
        return
    made = task(folder, objective={"unit": unit, "strategy": strategy})
    batch = window(made)
    losses, reads = naive_copies(made, batch)  # (3, B, T)
    column = losses.mean(2).argmax(0)  # (B,)
    if unit == "batch":
        column = losses.mean((1, 2)).argmax().expand(4)
    rows = torch.arange(4)
    data = losses.max(0).values.mean() if unit == "token" else losses[column, rows].mean()
    output, raw = (torch.stack([getattr(r, k) for r in reads])[column, rows] for k in ("output", "raw"))
    wanted = data + naive_regularizers(output, raw)
    gradients = torch.autograd.grad(wanted, list(made.model.parameters()))
    outcome = made.step(made.model, batch)
    torch.testing.assert_close(outcome.loss, wanted)
    got = torch.autograd.grad(outcome.loss, list(made.model.parameters()))
    for name, ours, theirs in zip(dict(made.model.named_parameters()), got, gradients, strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)
    for layer, (h, c) in enumerate(made.hidden):
        for part, carried in enumerate((h, c)):
            assert not carried.requires_grad
            expected = torch.stack([reads[j].hidden[layer][part][i] for i, j in enumerate(column.tolist())])
            torch.testing.assert_close(carried, expected)
    assert len(set(column.tolist())) > 1 or unit == "batch"


def test_a_standard_step_draws_one_mask_and_chooses_nothing(folder):
    made = task(folder, objective="standard")
    batch = window(made)
    losses, (read,) = naive_copies(made, batch)
    outcome = made.step(made.model, batch)
    torch.testing.assert_close(outcome.loss, losses.mean() + naive_regularizers(read.output, read.raw))


def test_token_units_carry_gradients_of_every_copy():
    losses = torch.rand(6, 5, requires_grad=True)  # 3 copies of 2 columns
    value = by_unit(losses, 2, "token")
    winners = losses.view(3, 2, 5).mean(2).argmax(0)
    value.view(3, 2)[winners, torch.arange(2)].mean().backward()
    top = losses.detach().view(3, 2, 5)
    assert torch.equal(losses.grad.view(3, 2, 5) > 0, top == top.max(0).values)


def test_the_rate_is_scaled_by_the_window_s_length(folder):
    made = task(folder)
    for batch in made.loader:
        assert made.lr_scale(batch) == batch[1].shape[1] / 8


@pytest.mark.parametrize(("split", "columns"), [("validation", 2), ("test", 1)])
def test_perplexity_against_one_pass_over_the_text(folder, split, columns):
    made = task(folder)
    text = getattr(made.text, split)
    n = len(text) // columns
    text = text[: n * columns].view(columns, n)
    with torch.no_grad():
        made.model.eval()
        scores = made.model.decode(made.model(text[:, :-1], made.model.start(columns)).output)
    wanted = F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten()).exp()
    sums, count = made.evaluate(made.model.train(), split)
    found = made.report_metrics({"loss": float(sums["loss"]) / count})
    assert found["perplexity"] == pytest.approx(float(wanted))
    assert made.model.training


def test_averages_are_the_mean_of_the_weights_since_the_trigger(folder, tmp_path):
    """A hand-written loop: SGD throughout, and the mean of all weights from the second epoch on."""
    said = recipe(folder, optim={"average_from": 1 / 3}, objective="standard")
    loop.train(said, tmp_path, quiet=True)
    from accelerate.utils import set_seed

    set_seed(said.seed)
    made = Language(said, torch.device("cpu"))
    set_seed(said.seed)  # as the first process does after building
    optimizer, kept = create_optimizer(made.model, said.optim), []
    assert type(optimizer) is torch.optim.SGD
    for epoch in range(3):
        for batch in made.loader:
            optimizer.param_groups[0]["lr"] = 5.0 * batch[1].shape[1] / 8
            made.step(made.model, batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(made.model.parameters(), 0.25)
            optimizer.step()
            optimizer.zero_grad()
            if epoch >= 1:
                kept.append([p.detach().clone() for p in made.model.parameters()])
    state = checkpoint.latest(tmp_path / "checkpoints", print)[1]
    names = list(dict(made.model.named_parameters()))
    for name, *weights in zip(names, *kept, strict=True):
        torch.testing.assert_close(state["ema"][name], torch.stack(weights).mean(0), msg=name)
        torch.testing.assert_close(state["model"][name], weights[-1], msg=name)
    assert state["averaged"] == len(kept)


@contextmanager
def stopping(monkeypatch, after):
    """A run that is asked to stop after so many steps."""
    asked = iter(range(10**6))

    @contextmanager
    def asks():
        yield lambda: next(asked) >= after

    monkeypatch.setattr(loop, "stop_on_signal", asks)
    yield
    monkeypatch.undo()


def ending(folder):
    """All tensors of the last checkpoint, and the records without times."""
    step, state = checkpoint.latest(folder / "checkpoints", print)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("seconds", None)
    for key in ("seconds", "training_seconds", "metrics_size"):
        state.pop(key)
    return step, state, records


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.slow
def test_interrupted_in_every_stage_it_ends_bit_identical(folder, tmp_path, monkeypatch):
    """Across the switch to averages, both restarts and within them; dropout, masks and hidden state included."""
    said = recipe(folder, optim={"average_from": None, "patience": 1, "restarts": 2, "lr": 80.0}, epochs=6)
    whole = loop.train(said, tmp_path / "whole", quiet=True)
    stops = set()
    for _ in range(200):
        with stopping(monkeypatch, after=7):
            try:
                result = loop.train(said, tmp_path / "parts", quiet=True)
                break
            except InterruptedRunError:
                state = checkpoint.latest(tmp_path / "parts" / "checkpoints", print)[1]
                stops.add((state["stages"]["stage"], state["ema"] is not None))
    assert {(0, False), (0, True), (1, True), (2, True)} <= stops, stops
    assert same(ending(tmp_path / "parts"), ending(tmp_path / "whole"))
    assert result["last"] == whole["last"]
    assert result["best"] == whole["best"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_dynamic_evaluation_resumes(folder, tmp_path, monkeypatch, number):
    said = recipe(folder, epochs=1, language={"dynamic": True})
    whole = loop.train(said, tmp_path / "whole", quiet=True)
    real, calls = dynamic_evaluation.adapt, []

    def adapt(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            signal.raise_signal(number)
        return real(*args, **kwargs)

    monkeypatch.setattr(dynamic_evaluation, "adapt", adapt)
    run = tmp_path / "run"
    with pytest.raises(
        InterruptedRunError, match=r"stopped in dynamic evaluation; .*dynamic\.json, and the same command resumes"
    ):
        loop.train(said, run, quiet=True)
    ((_, done),) = json.loads((run / "dynamic.json").read_text()).items()
    assert len(done) == 2
    assert not (run / "run.json").exists()
    assert loop.train(said, run, quiet=True)["last"] == whole["last"]
    assert len(calls) == 3 + 16  # 18 parts, one of them begun twice


def test_a_perplexity_may_be_infinite_and_its_loss_may_not(folder, tmp_path, monkeypatch):
    plain, value = Language.evaluate, [800.0]

    def evaluate(made, model, name):
        sums, count = plain(made, model, name)
        return sums | {"loss": torch.tensor(value[0] * count)}, count

    monkeypatch.setattr(Language, "evaluate", evaluate)
    found = loop.train(recipe(folder, epochs=1), tmp_path / "far", quiet=True)["last"]
    assert (found["test_loss"], found["test_perplexity"]) == (800, math.inf)
    value[0] = math.inf
    with pytest.raises(RunError, match="the validation loss is inf at step"):
        loop.train(recipe(folder, epochs=1), tmp_path / "endless", quiet=True)


def test_a_run_with_restarts_ends_at_its_best_point(folder, tmp_path):
    said = recipe(folder, optim={"patience": 1, "restarts": 1}, epochs=3)
    result = loop.train(said, tmp_path, quiet=True)
    assert result["last"]["validation_perplexity"] == result["best"]["validation_perplexity"]
    assert math.isfinite(result["last"]["test_perplexity"])
    found = evaluate(open_run(tmp_path))
    assert found["validation"]["perplexity"] == pytest.approx(result["last"]["validation_perplexity"])
    assert found["test"]["perplexity"] == pytest.approx(result["last"]["test_perplexity"])


CHANGES = {
    "words": lambda text: text.replace("v3", "w3"),
    "length": lambda text: text + text,
    "order": lambda text: "".join([*text.splitlines(True)[:-2], *text.splitlines(True)[:-3:-1]]),  # the last two lines
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_checkpoint_of_another_text_is_refused(folder, tmp_path, change):
    mine = tmp_path / "text"
    shutil.copytree(folder, mine)
    said = recipe(mine, epochs=1)
    loop.train(said, tmp_path / "run", quiet=True)
    text = (mine / "train.txt").read_text()
    (mine / "train.txt").write_text(change(text))
    for again in (lambda: loop.train(said, tmp_path / "run", quiet=True), lambda: open_run(tmp_path / "run")):
        with pytest.raises(
            RunError, match=r"was trained on another text than this one of [\d,]+ tokens and 1[45] words"
        ):
            again()


@pytest.mark.parametrize("part", ["valid", "test"])
def test_a_checkpoint_of_other_held_out_text_is_refused(folder, tmp_path, part):
    mine = tmp_path / "text"
    shutil.copytree(folder, mine)
    before = Language(recipe(mine), torch.device("cpu"))
    before.check_identity(before.identity, tmp_path)
    lines = (mine / f"{part}.txt").read_text().splitlines(True)
    (mine / f"{part}.txt").write_text("".join(lines[::-1]))
    after = Language(recipe(mine), torch.device("cpu"))
    with pytest.raises(RunError, match="was trained on another text"):
        after.check_identity(before.identity, tmp_path)
    after.check_identity({"text": before.text.train_digest}, tmp_path)  # as recorded by old runs


BAD = {
    "columns": (
        {"language": {"test_columns": 999}},
        r"the test text has [\d,]+ tokens, too few for language\.test_columns=999",
    ),
    "no text": ({"data": {"name": "digits", "root": None}}, "digits is not a text; set data.name"),
    "objective": ({"objective": {"name": "average"}}, "objective 'average' is not for text"),
    "perturb": ({"perturb": []}, "perturb is empty"),
    "noise": (
        {"perturb": [{"name": "gaussian", "sigma": 1.0}]},
        "perturb has gaussian, but text needs .*: embedding_dropout",
    ),
    "radius": ({"language": {"epsilon": -1.0}}, "language.epsilon=-1.0 is out of range"),
    "augment": ({"augment": [{"name": "gaussian", "sigma": 1.0}]}, "augment is for images"),
    "model": ({"model": {"name": "mlp"}}, "language model 'mlp' is unknown"),
    "words": ({"model": {"args": {"words": 3}}}, "model.args must not have 'words'"),
    "name": ({"model": {"args": {"name": 3}}}, "argument of language model 'awd_lstm' 'name' is unknown"),
}


@pytest.mark.parametrize("name", BAD)
def test_recipes_that_make_no_sense(folder, name):
    changes, message = BAD[name]
    with pytest.raises((ValueError, DataError), match=message):
        Language(recipe(folder, **changes), torch.device("cpu"))
    with pytest.raises(ValueError, match="--model_from is for images"):
        Language(recipe(folder), torch.device("cpu"), model_from=print)


IGNORED = {
    "data.train_size": 100, "data.validation": 0.1, "data.size": 32, "data.test_size": 32, "data.crop_fraction": 1.0,
    "data.interpolation": "bicubic", "data.mean": [0.0], "data.std": [1.0], "model.normalize": True,
    "model.pretrained": True, "model.weights": "file", "model.new_head": True, "model.freeze_norm": True,
    "objective.norm": "running", "objective.score": "kl", "optim.sam": 0.05,
}  # fmt: skip


@pytest.mark.parametrize("name", IGNORED)
def test_settings_that_a_text_has_no_use_for_are_refused(folder, name):
    section, key = name.split(".")
    said = asdict(recipe(folder))
    said[section][key] = IGNORED[name]
    with pytest.raises(ValueError, match=rf"^{name} is for images and has no effect here; remove it$"):
        Language(recipe_from(said), torch.device("cpu"))


@pytest.mark.slow
def test_a_third_of_the_embedded_run_beats_a_unigram_model(tmp_path):
    """`maxup train text/...`, which needs no data: 2 of its 6 epochs."""
    from maxup.lab.recipes.load import parse_recipe

    changes = ["--epochs", "2", "--optim.average_from", "null"]  # too early for an average
    result = loop.train(parse_recipe("text/awd_lstm-embedding_dropout", changes), tmp_path, quiet=True)
    text = open_run(tmp_path).task.text
    counts = torch.bincount(text.train, minlength=len(text.words)).double() + 1
    unigram = float((-(counts / counts.sum()).log()[text.test]).mean().exp())
    assert result["last"]["test_perplexity"] < 0.75 * unigram


@pytest.mark.slow
def test_the_smoke_recipe_goes_through_every_stage(tmp_path):
    from maxup.lab.recipes.load import parse_recipe

    said = parse_recipe("smoke/awd_lstm-embedding_dropout-maxup", ["--epochs", "1", "--language.dynamic", "false"])
    result = loop.train(said, tmp_path, quiet=True)
    assert result["last"]["epoch"] == 3
    assert result["last"]["test_perplexity"] < 2000


@pytest.mark.parametrize("strategy", ["retain", "auto"])
def test_the_model_shares_masks_by_itself(folder, strategy, monkeypatch):
    """Intercepting its random operations would cost time."""
    used = []
    monkeypatch.setattr(wide_passes, "RecordRandomOps", lambda: used.append(True) or RecordRandomOps())
    made = task(folder, objective={"strategy": strategy})
    made.step(made.model, window(made))
    assert not used
    made.objective.forward_shares_masks = False
    made.objective._strategies.chosen.clear()  # measure again
    made.step(made.model, window(made))
    assert used


def test_copies_share_masks_or_have_their_own():
    torch.manual_seed(0)
    model = AWDLSTM(20, embedding=4, hidden=6, layers=2, weight_drop=0.0)
    x = {"tokens": torch.randint(20, (3, 5)).repeat(2, 1), "hidden": model.start(6), "columns": 3}
    for shared in (True, False):
        read = _forward(model, x, shared=shared)
        first, second = read.output.chunk(2)
        assert torch.equal(first, second) == shared
        assert read.columns == 3


@pytest.mark.parametrize("setting", [{"fast": True}, {"dropout": False}])
def test_fast_scoring_is_for_the_vision_task(folder, setting):
    with pytest.raises(
        RecipeError, match=f"objective.{next(iter(setting))} needs the vision task, but the task is lang"
    ):
        task(folder, objective=setting)

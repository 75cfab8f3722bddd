"""Against the published update, written naively, parameter by parameter."""

import copy
import json
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from maxup.lab.data.text import from_lines
from maxup.lab.models.awd_lstm import AWDLSTM
from maxup.lab.tasks import dynamic_evaluation as de


@pytest.fixture
def model():
    return AWDLSTM(12, embedding=5, hidden=7, layers=2).double().eval()


@pytest.fixture
def text():
    import random

    rng = random.Random(1)
    lines = [[" ".join(f"w{rng.randrange(10)}" for _ in range(9)) for _ in range(n)] for n in (30, 12, 12)]
    return from_lines(*lines)


def naive_statistics(model, tokens, columns):
    n = len(tokens) // columns
    data = tokens[: n * columns].view(columns, n)
    hidden, squares, batches = model.start(columns), {k: 0 for k, _ in model.named_parameters()}, 0
    for start in range(0, n - 1, 5):
        stop = min(start + 5, n - 1)
        model.zero_grad()
        read = model(data[:, start:stop], [(h.detach(), c.detach()) for h, c in hidden])
        hidden = read.hidden
        F.cross_entropy(model.decode(read.output).flatten(0, 1), data[:, start + 1 : stop + 1].flatten()).backward()
        for name, p in model.named_parameters():
            squares[name] = squares[name] + p.grad**2
        batches += 1
    return {name: (s / batches).sqrt() for name, s in squares.items()}


def naive_loss(model, rms, tokens, lr, decay):
    model = copy.deepcopy(model)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    mean = sum(r.mean() for r in rms.values()) / len(rms)
    hidden, total = model.start(1), 0.0
    for i in range(0, len(tokens) - 1, 5):
        piece = tokens[i : i + 6]
        model.zero_grad()
        read = model(piece[None, :-1], [(h.detach(), c.detach()) for h, c in hidden])
        hidden = read.hidden
        loss = F.cross_entropy(model.decode(read.output)[0], piece[1:])
        total += loss.item() * (len(piece) - 1)
        loss.backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                rate = torch.minimum(rms[name] / mean, torch.tensor(1 / decay))
                p += decay * rate * (start[name] - p) - lr * p.grad / (rms[name] + 2e-5)
    return total / (len(tokens) - 1)


def test_statistics_against_plain_sums(model, text):
    wanted = naive_statistics(model, text.train, 4)
    got = de.statistics(model, de._windows(text.train, 4, model))
    for (name, r), ours in zip(wanted.items(), got, strict=True):
        torch.testing.assert_close(ours, r, msg=name)


@pytest.mark.parametrize(("lr", "decay"), [(1e-2, 2e-3), (1e-2, 0.5), (0.0, 0.1)])
def test_adapting_against_the_update_as_published(model, text, lr, decay):
    rms = naive_statistics(model, text.train, 4)
    before = copy.deepcopy(model.state_dict())
    got = de.adapt(model, list(rms.values()), text.test, lr, decay)
    assert got == pytest.approx(naive_loss(model, rms, text.test, lr, decay), rel=1e-9)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())  # put back


def test_the_grid_chooses_on_the_first_part_of_validation(model, text, tmp_path):
    rates, decays = (1e-3, 3e-2), (1e-3, 0.3)
    found = de.dynamic_evaluation(model, text, tmp_path, rates=rates, decays=decays, tuned_on=30, quiet=True)
    rms = naive_statistics(model, text.train, min(100, len(text.train) // 10))
    losses = {(lr, d): naive_loss(model, rms, text.validation[:30], lr, d) for lr in rates for d in decays}
    lr, decay = min(losses, key=losses.get)
    assert (found["dynamic_lr"], found["dynamic_decay"]) == (lr, decay)
    for name in ("validation", "test"):
        wanted = math.exp(naive_loss(model, rms, getattr(text, name), lr, decay))
        assert found[f"{name}_dynamic_perplexity"] == pytest.approx(wanted, rel=1e-9)


def test_it_resumes_with_the_unfinished_parts(model, text, tmp_path, monkeypatch):
    options = {"rates": (1e-3, 1e-2), "decays": (0.01,), "tuned_on": 30, "quiet": True}
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = de.dynamic_evaluation(model, text, tmp_path / "whole", **options)
    real, calls = de.adapt, []

    def breaking(*args, **kwargs):
        calls.append(args)
        if len(calls) in (2, 4):
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(de, "adapt", breaking)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            de.dynamic_evaluation(model, text, tmp_path / "parts", **options)
    assert de.dynamic_evaluation(model, text, tmp_path / "parts", **options) == whole
    assert len(calls) == 6  # four parts, two of them begun twice
    assert de.dynamic_evaluation(model, text, tmp_path / "parts", **options) == whole
    assert len(calls) == 6
    with torch.no_grad():
        model.bias += 1  # another model: nothing of the file is of use
    de.dynamic_evaluation(model, text, tmp_path / "parts", **options)
    assert len(calls) == 10
    with torch.no_grad():
        model.bias -= 1  # the first again, whose parts were kept beside the other's
    assert de.dynamic_evaluation(model, text, tmp_path / "parts", **options) == whole
    assert len(calls) == 10


@pytest.mark.parametrize("finished", [0, 1, 3])
def test_progress_is_of_the_unfinished_parts(model, text, tmp_path, monkeypatch, finished):
    options = {"rates": (1e-3, 1e-2), "decays": (0.01,), "tuned_on": 30, "quiet": True}
    de.dynamic_evaluation(model, text, tmp_path, **options)
    ((key, parts),) = json.loads((tmp_path / de.FILE).read_text()).items()
    (tmp_path / de.FILE).write_text(json.dumps({key: dict(list(parts.items())[:finished])}))
    shown = []

    class Recorded(de.Progress):
        def __exit__(self, *error):
            shown.append((self.done, self.total))

    monkeypatch.setattr(de, "Progress", Recorded)
    de.dynamic_evaluation(model, text, tmp_path, **options)
    ((done, total),) = shown
    assert done == total


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_another_text_of_the_same_words_is_evaluated_anew(model, text, tmp_path, part):
    options = {"rates": (1e-3,), "decays": (0.01,), "tuned_on": 30, "quiet": True}
    before = de.dynamic_evaluation(model, text, tmp_path, **options)
    other = replace(text, **{part: getattr(text, part).flip(0)})
    assert other.words == text.words
    (tmp_path / "fresh").mkdir()
    found = de.dynamic_evaluation(model, other, tmp_path, **options)
    assert found == de.dynamic_evaluation(model, other, tmp_path / "fresh", **options)
    assert found != before


@pytest.mark.parametrize("constant", ["EPSILON", "SEGMENT", "COLUMNS"])
def test_other_constants_are_evaluated_anew(model, text, tmp_path, monkeypatch, constant):
    options = {"rates": (1e-3,), "decays": (0.01,), "tuned_on": 30, "quiet": True}
    before = de.dynamic_evaluation(model, text, tmp_path, **options)
    calls, real = [], de.adapt
    monkeypatch.setattr(de, "adapt", lambda *args, **kwargs: calls.append(args) or real(*args, **kwargs))
    assert de.dynamic_evaluation(model, text, tmp_path, **options) == before
    assert not calls
    monkeypatch.setattr(de, constant, 2 * getattr(de, constant))
    de.dynamic_evaluation(model, text, tmp_path, **options)
    assert len(calls) == 3


def test_the_shortest_texts_will_do(model, tmp_path):
    text = from_lines(["w1 w2 w3"], ["w1"], ["w2"])
    found = de.dynamic_evaluation(model, text, tmp_path, rates=(1e-3,), decays=(0.01,), quiet=True)
    assert all(math.isfinite(value) for value in found.values())


def test_a_damaged_file_is_as_good_as_none(model, text, tmp_path):
    options = {"rates": (1e-3,), "decays": (0.01,), "tuned_on": 30, "quiet": True}
    whole = de.dynamic_evaluation(model, text, tmp_path, **options)
    (key,) = json.loads((tmp_path / de.FILE).read_text())
    for rubbish in ("", "[]", json.dumps({key: 3}), json.dumps({key: {"validation": "few", "test": 3.0}})):
        (tmp_path / de.FILE).write_text(rubbish)
        assert de.dynamic_evaluation(model, text, tmp_path, **options) == whole

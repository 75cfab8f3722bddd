"""On a GPU: a captured step of a plain loop trains like the eager step."""

import warnings

import pytest
import torch
from torch import nn

from maxup import Cutout, MaxUp, MaxUpWarning, captured
from tests.tiny import train_step

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),  # inductor, in fast=True
]


@pytest.fixture(autouse=True)
def _deterministic():
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = False


def network(*extra):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), *extra, nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 10)).cuda()


def train(capture, *, optimizer="sgd", change=None, model=None, sizes=(16,) * 12):
    """Train a few steps with a schedule. Return the losses and the weights."""
    model = model or network()
    objective = MaxUp(Cutout(4), m=3, generator=torch.Generator("cuda").manual_seed(1))
    if optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(sizes))
    step = train_step(model, objective, optimizer)
    step = captured(step, objective, optimizer) if capture else step
    g, losses = torch.Generator().manual_seed(2), []
    for number, size in enumerate(sizes):
        x, y = torch.rand(size, 3, 16, 16, generator=g).cuda(), torch.randint(10, (size,), generator=g).cuda()
        if change is not None:
            change(number, optimizer, objective)
        losses.append(step(x, y).detach().clone())
        schedule.step()
    assert objective.step == len(sizes)
    return torch.stack(losses), torch.cat([p.detach().flatten() for p in model.parameters()]), step


def agree(**settings):
    eager, graphed = train(False, **settings), train(True, **settings)
    torch.testing.assert_close(graphed[0], eager[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(graphed[1], eager[1], rtol=1e-3, atol=1e-4)
    return graphed[2]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_captured_steps_train_like_eager_ones_with_a_schedule(optimizer):
    assert agree(optimizer=optimizer).graphed.graph is not None


def test_a_smaller_last_batch_runs_eagerly():
    agree(sizes=(16,) * 6 + (5,) + (16,) * 5)


def test_checks_of_fast_scoring_run_eagerly(monkeypatch):
    monkeypatch.setattr("maxup.objectives.maxup.CHECK_EVERY", 5)
    kept = []

    def change(number, optimizer, objective):
        objective.fast = True
        kept.append(objective.gap_kept)

    agree(change=change)
    for run in (kept[:12], kept[12:]):  # eager and captured: steps 0, 5 and 10 are checked
        assert run[0] is None
        assert len(set(run[1:])) == 3
    assert kept[1:12] == pytest.approx(kept[13:], abs=0.05)


def test_a_learning_rate_set_by_hand_reaches_the_graph():
    def change(number, optimizer, objective):
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + number)

    agree(change=change)


def test_a_new_momentum_or_m_captures_again():
    def change(number, optimizer, objective):
        if number == 6:
            optimizer.param_groups[0]["momentum"] = 0.5
            objective.m = 2

    assert agree(change=change).graphed.graph is not None


def test_a_model_with_dropout_runs_eagerly_and_a_warning_says_why():
    with pytest.warns(MaxUpWarning, match="not captured: the network draws from the global random state of cuda"):
        train(True, model=network(nn.Dropout(0.5)))


def test_momentum_that_changes_at_every_step_is_not_captured():
    def change(number, optimizer, objective):
        optimizer.param_groups[0]["momentum"] = 0.9 - number / 100

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        *_, step = train(True, change=change, sizes=(4,) * 25)
    assert any("changes at every step" in str(w.message) for w in caught)
    assert step.graphed.graph is None


@pytest.mark.parametrize(
    ("kind", "settings", "setting"),
    [(torch.optim.SGD, {}, "fused"), (torch.optim.AdamW, {"fused": True}, "capturable")],
)
def test_an_optimizer_that_cannot_be_captured_is_refused(kind, settings, setting):
    model, objective = network(), MaxUp(Cutout(4), m=2)
    optimizer = kind(model.parameters(), lr=0.1, **settings)
    step = captured(lambda x, y: objective(model, x, y), objective, optimizer)
    with pytest.raises(ValueError, match=f"{kind.__name__} cannot be captured as it is; build it with {setting}=True"):
        step(torch.rand(4, 3, 16, 16).cuda(), torch.zeros(4, dtype=torch.long).cuda())

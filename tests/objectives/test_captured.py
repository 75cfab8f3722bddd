"""`captured` without a GPU: the step runs as it is, and mistakes get a message. See tests/gpu for captured steps."""

import pytest
import torch
from torch import nn

from maxup import Adversarial, Cutout, Gaussian, MaxUp, captured
from maxup.perturb import Views
from tests.tiny import train_step


def loop(wrap):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    objective = MaxUp(Gaussian(0.5), m=3, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = wrap(train_step(model, objective, optimizer), objective, optimizer)
    for _ in range(5):
        loss = step(torch.rand(6, 4), torch.randint(3, (6,)))
    return model.weight.detach(), loss


def test_on_a_cpu_the_step_runs_as_it_is():
    (expected, loss), (weight, captured_loss) = loop(lambda step, *_: step), loop(captured)
    assert torch.equal(weight, expected)
    assert torch.equal(captured_loss, loss)
    assert not captured_loss.requires_grad  # a replayed loss has no graph either


def objects():
    model = nn.Linear(4, 3)
    return len, MaxUp(Gaussian(0.5)), torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, 3, "step=3: pass a function that trains on a batch"),
        (1, None, "objective=None: pass the objective that the step calls"),
        (2, nn.Linear(1, 1), "pass the torch.optim.Optimizer that the step calls"),
    ],
)
def test_wrong_arguments_are_named(position, value, message):
    arguments = list(objects())
    arguments[position] = value
    with pytest.raises(TypeError, match=message):
        captured(*arguments)


def test_a_batch_must_be_tensors():
    with pytest.raises(TypeError, match="takes tensors, but got dict, Tensor; pass each tensor as an argument"):
        captured(*objects())({"x": torch.rand(2, 4)}, torch.zeros(2))


@pytest.mark.parametrize("returned", [None, 0.5])
def test_a_step_must_return_the_loss(returned):
    step = captured(lambda x: returned, *objects()[1:])
    with pytest.raises(TypeError, match=f"the captured step returned {returned}, not a tensor; let it return"):
        step(torch.rand(2, 4))


def test_a_graph_depends_on_m_and_on_settings_but_not_on_the_learning_rate():
    step, objective, optimizer = objects()
    function = captured(step, objective, optimizer)
    before = function._key()
    optimizer.param_groups[0]["lr"] = 0.01
    assert function._key() == before
    optimizer.param_groups[0]["momentum"] = 0.5
    assert function._key() != before
    for name, value in {"m": 7, "norm": "running", "chunk_size": 2, "shortlist": 3, "fast": True}.items():
        before = function._key()
        setattr(objective, name, value)
        assert function._key() != before, name


@pytest.mark.parametrize(
    ("kind", "settings", "setting"),
    [(torch.optim.SGD, {}, "fused"), (torch.optim.AdamW, {"fused": True}, "capturable")],
)
def test_an_optimizer_that_cannot_be_captured_is_refused(kind, settings, setting):
    optimizer = kind(nn.Linear(4, 3).parameters(), lr=0.1, **settings)
    function = captured(len, MaxUp(Gaussian(0.5)), optimizer)
    with pytest.raises(ValueError, match=f"{kind.__name__} cannot be captured as it is; build it with {setting}=True"):
        function._check_optimizer()


@pytest.mark.parametrize(
    "change",
    [
        lambda o: setattr(o.perturbation, "sigma", 5.0),
        lambda o: setattr(o, "perturbation", Cutout(3)),
        lambda o: setattr(o, "loss_fn", len),
        lambda o: setattr(o, "forward", len),
        lambda o: setattr(o, "masks", "independent"),
    ],
)
def test_a_graph_depends_on_what_is_drawn_and_on_the_loss(change):
    objective = MaxUp(Gaussian(0.5))
    function = captured(objects()[0], objective, objects()[2])
    before = function._key()
    objective.step += 1
    assert function._key() == before
    change(objective)
    assert function._key() != before


@pytest.mark.parametrize(("name", "value"), [("radius", 9.0), ("steps", 3), ("step_size", 1.0), ("norm", "running")])
def test_a_graph_depends_on_the_attack(name, value):
    objective = Adversarial(0.1)
    before = objective.depends_on()
    setattr(objective, name, value)
    assert objective.depends_on() != before


def test_views_that_advance_in_every_step_are_not_a_new_setting():
    objective = MaxUp(Views(), m=2)
    before = objective.depends_on()
    objective.select(nn.Linear(3, 2), torch.rand(6, 4, 3), torch.zeros(6, dtype=torch.long))
    assert objective.depends_on() == before


def test_captured_selection_says_that_it_needs_a_gpu():
    objective, model = MaxUp(Gaussian(0.5), capture=True), torch.nn.Linear(4, 2)
    assert objective.why_eager == ""
    objective.select(model, torch.rand(3, 4), torch.tensor([0, 1, 0]))
    assert objective.why_eager == "selection runs eagerly, because the batch is not on a GPU"


def test_a_graph_is_captured_again_after_the_optimizer_loads_its_state():
    """Loading replaces the tensors that the graph updates."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.rand(2, 4)).sum().backward()
    optimizer.step()
    function = captured(len, MaxUp(Gaussian(0.5)), optimizer)
    before = function._key()
    assert function._key() == before
    optimizer.load_state_dict(optimizer.state_dict())
    after = function._key()
    assert after != before
    assert function._key() == after

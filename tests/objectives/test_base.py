"""The state of an objective: draws depend on (seed, rank, step), or continue the stream of a passed generator."""

import copy
import json

import pytest
import torch

import maxup as mu
from maxup.objectives import schedules
from maxup.perturb import Views
from maxup.rng import hash_seed
from tests.tiny import batch, net

X = torch.zeros(4, 3)


def draw(objective):
    """The noise of one step. With m = 1 no model is needed."""
    return objective.select(None, X, None)[0]


def noise(m=1, **arguments):
    return mu.MaxUp(mu.Gaussian(1.0), m=m, **arguments)


def test_a_step_draws_from_seed_rank_and_step(monkeypatch):
    objective = noise()
    drawn = [draw(objective) for _ in range(3)]
    seed = objective.state_dict()["seed"]
    for rank, expected in ((0, True), (1, False)):
        for step in range(3):
            by_hand = torch.randn(X.shape, generator=torch.Generator().manual_seed(hash_seed("step", seed, rank, step)))
            assert torch.equal(by_hand, drawn[step]) is expected
    monkeypatch.setenv("RANK", "1")
    objective.step = 2
    assert torch.equal(draw(objective), by_hand)


def test_the_state_is_the_seed_and_the_step():
    objective = noise()
    drawn = [draw(objective) for _ in range(4)]
    state = objective.state_dict() | {"step": 2}
    assert set(state) == {"seed", "step"}
    torch.manual_seed(99)  # the resuming script may have another seed
    resumed = noise()
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert [torch.equal(draw(resumed), expected) for expected in drawn[2:]] == [True, True]
    assert resumed.state_dict() == objective.state_dict()


def test_m_as_a_function_of_the_step_resumes():
    model, (x, y) = net(), batch()
    runs = [mu.MaxUp(mu.Gaussian(0.3), m=schedules.warmup(3, steps=2)) for _ in range(2)]
    whole = [runs[0].select(model, x, y)[0] for _ in range(5)]
    runs[1].load_state_dict(runs[0].state_dict() | {"step": 1})
    assert all(torch.equal(runs[1].select(model, x, y)[0], expected) for expected in whole[1:])


def test_a_failing_step_changes_nothing():
    def fail(output, target):
        raise ZeroDivisionError

    objective, (x, y) = mu.MaxUp(mu.Gaussian(1.0), m=2), batch()
    objective.select(net(), x, y)
    before, stream = objective.state_dict(), objective.generator.get_state()
    objective.loss_fn = fail
    with pytest.raises(ZeroDivisionError):
        objective.select(net(), x, y)
    assert objective.state_dict() == before
    assert torch.equal(objective.generator.get_state(), stream)


def test_a_loaded_objective_and_a_new_one_draw_differently():
    first = noise()
    draw(first)
    state = first.state_dict()
    del first
    loaded, new = noise(), noise()  # after a restart with the same torch.manual_seed
    loaded.load_state_dict(state | {"step": 0})
    assert not torch.equal(draw(loaded), draw(new))


def test_a_passed_generator_is_a_running_stream():
    objective = noise(generator=torch.Generator().manual_seed(3))
    stream = torch.Generator().manual_seed(3)
    for _ in range(2):
        assert torch.equal(draw(objective), torch.randn(X.shape, generator=stream))
    state = copy.deepcopy(objective.state_dict())
    assert set(state) == {"step", "generator", "device"}
    resumed = noise(generator=torch.Generator())
    resumed.load_state_dict(state)
    assert torch.equal(draw(resumed), torch.randn(X.shape, generator=stream))


def test_a_generator_assigned_later_is_never_seeded():
    objective = noise()
    draw(objective)
    objective.generator = torch.Generator().manual_seed(3)
    assert torch.equal(draw(objective), torch.randn(X.shape, generator=torch.Generator().manual_seed(3)))
    assert "generator" in objective.state_dict()


def test_a_state_of_version_0_1_continues_its_stream():
    stream = torch.Generator().manual_seed(3)
    objective = noise()
    draw(objective)  # the default generator exists already
    objective.load_state_dict({"step": 7, "generator": stream.get_state(), "device": "cpu"})
    assert objective.step == 7
    for _ in range(2):
        assert torch.equal(draw(objective), torch.randn(X.shape, generator=stream))
    assert torch.equal(objective.state_dict()["generator"], stream.get_state())


def test_a_state_of_version_0_1_from_before_the_first_step():
    objective = noise()
    expected = draw(objective)
    objective.load_state_dict({"step": 0, "generator": None, "device": None})
    assert torch.equal(draw(objective), expected)


def test_a_seed_and_a_passed_generator_are_refused():
    objective = noise()
    draw(objective)
    other = noise(generator=torch.Generator())
    with pytest.raises(ValueError, match="load the state into an objective without generator="):
        other.load_state_dict(objective.state_dict())
    assert other.step == 0


def test_a_failed_step_also_rewinds_views():
    views, fails = Views(), [True]

    def forward(model, x):
        if fails[0]:
            raise RuntimeError("out of memory")
        return model(x)

    objective, model = mu.MaxUp(views, m=2, forward=forward), torch.nn.Linear(3, 2)
    x, y = torch.rand(6, 4, 3), torch.zeros(6, dtype=torch.long)
    with pytest.raises(RuntimeError, match="out of memory"):
        objective.select(model, x, y)
    fails[0] = False
    again = mu.MaxUp(Views(), m=2)
    torch.manual_seed(0)
    assert torch.equal(objective.select(model, x, y)[0], again.select(model, x, y)[0])

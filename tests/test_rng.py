import random
import subprocess
import sys

import numpy
import pytest
import torch

import maxup as mu
from maxup.lab.storage import checkpoint
from maxup.rng import get_rng_state, load_rng_state_dict, remember_rng, rng_state_dict, stream_seed
from tests.tiny import batch, net


def run(perturbation=None):
    torch.manual_seed(11)
    objective = mu.MaxUp(perturbation or mu.Gaussian(0.3), m=3)
    return objective, [objective.select(net(5), *batch())[0] for _ in range(2)]


@pytest.mark.parametrize("stored", [False, True])  # a normal value from an odd number of draws
@pytest.mark.parametrize(
    "draw",
    [
        lambda: None,
        lambda: numpy.random.rand(),
        lambda: numpy.random.randn(),
        lambda: numpy.random.randn(2),
        lambda: numpy.random.bytes(4 * 624),  # a whole cycle: the position is the same again
        lambda: numpy.random.shuffle([1, 2, 3]),
        lambda: numpy.random.seed(5),
    ],
    ids=["nothing", "uniform", "normal", "two normals", "a cycle", "shuffle", "seed"],
)
def test_numpys_state_is_restored_after_every_kind_of_draw(draw, stored):
    numpy.random.seed(3)
    numpy.random.randn(3 if stored else 4)
    before, restore = get_rng_state(), remember_rng()
    for _ in range(2):
        draw()
        restore()
        assert get_rng_state() == before


def test_numpys_state_is_set_only_if_it_changed(monkeypatch):
    """Setting it is slow."""
    numpy.random.seed(3)
    restore, calls, set_state = remember_rng(), [], numpy.random.set_state
    monkeypatch.setattr("numpy.random.set_state", lambda state: calls.append(state) or set_state(state))
    restore()
    assert not calls
    numpy.random.rand()
    restore()
    assert len(calls) == 1


def test_another_generator_of_numpy_is_restored():
    usual = numpy.random.get_bit_generator()
    try:
        numpy.random.set_bit_generator(numpy.random.PCG64(3))
        before, restore = get_rng_state(), remember_rng()
        numpy.random.rand()
        assert get_rng_state() != before
        restore()
        assert get_rng_state() == before
    finally:
        numpy.random.set_bit_generator(usual)


def test_manual_seed_makes_a_run_repeatable():
    first, second = run()[1], run()[1]
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], first[1])


def test_a_notebook_cell_run_twice_repeats():
    results = []
    for _ in range(3):  # binding the name again frees the old object before the new one's first draw
        torch.manual_seed(11)
        objective = mu.MaxUp(mu.Gaussian(0.3), m=1)
        results.append(objective.select(None, *batch())[0])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[1], results[2])


def test_another_seed_draws_differently():
    torch.manual_seed(1)
    one = mu.MaxUp(mu.Gaussian(0.3), m=1).select(None, *batch())[0]
    torch.manual_seed(2)
    assert not torch.equal(one, mu.MaxUp(mu.Gaussian(0.3), m=1).select(None, *batch())[0])


def test_two_living_objectives_draw_differently():
    one, draws = run()
    two, others = run()
    assert not torch.equal(draws[0], others[0])
    assert one is not two


def test_the_global_random_state_does_not_advance():
    before = torch.get_rng_state()
    mu.MaxUp(mu.Gaussian(0.3), m=3).select(net(), *batch())
    torch.manual_seed(0)  # net() seeds too, so compare with the state after the same seed
    assert torch.equal(torch.get_rng_state(), before)


def test_ranks_of_a_process_group_draw_differently(monkeypatch):
    def draw(rank):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        torch.manual_seed(4)
        return mu.MaxUp(mu.Gaussian(1.0), m=1).select(None, torch.zeros(1, 3), None)[0]

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))


def test_processes_repeat_and_ranks_differ():
    code = (
        "import torch, maxup; torch.manual_seed(4); "
        "print(maxup.MaxUp(maxup.Gaussian(1.0), m=1).select(None, torch.zeros(1, 3), None)[0].tolist())"
    )

    def output(rank):
        env = {"RANK": rank, "PATH": "", "PYTHONPATH": ":".join(sys.path)}
        return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout

    first = output("0")
    assert first == output("0")
    assert first != output("1")


def test_a_state_from_before_the_first_draw_starts_over():
    torch.manual_seed(11)
    objective = mu.MaxUp(mu.Gaussian(0.3), m=3)
    state = objective.state_dict()
    assert state == {"seed": None, "step": 0}
    draws = [objective.select(net(5), *batch())[0] for _ in range(2)]
    torch.manual_seed(11)
    objective.load_state_dict(state)
    assert torch.equal(objective.select(net(5), *batch())[0], draws[0])
    given = torch.Generator().manual_seed(3)
    other = mu.MaxUp(mu.Gaussian(0.3), m=3, generator=given)
    other.load_state_dict(state)
    assert other.generator is given


def test_the_streams_of_runs_and_ranks_all_differ():
    seeds = {stream_seed(seed, rank, stream) for seed in range(20) for rank in range(64) for stream in range(2)}
    assert len(seeds) == 20 * 64 * 2


def test_global_random_states_survive_a_checkpoint(tmp_path):
    numpy.random.randn(3)  # an odd number of normals leaves one cached in numpy's state
    path = checkpoint.save(tmp_path, 1, rng_state_dict())
    drawn = torch.rand(5), random.gauss(0, 1), numpy.random.randn(5)
    load_rng_state_dict(checkpoint.load(path))
    assert torch.equal(torch.rand(5), drawn[0])
    assert random.gauss(0, 1) == drawn[1]
    assert (numpy.random.randn(5) == drawn[2]).all()


@pytest.mark.parametrize("rank", ["", "abc"])
def test_a_rank_that_is_not_a_number_is_0(monkeypatch, rank):
    monkeypatch.delenv("RANK", raising=False)
    expected = run()[1]
    monkeypatch.setenv("RANK", rank)
    assert all(map(torch.equal, run()[1], expected))

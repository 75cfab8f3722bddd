"""Fidelity against brute force: score every copy by a plain loop on the same draws."""

import pytest
import torch
from torch import Generator, nn
from torch.nn import functional as F

from maxup import Gaussian
from maxup.lab.bench.fidelity import Fidelity, compare, measure_fidelity, same_draws
from maxup.lab.bench.variants import Variant, make_variants, maxup
from maxup.lab.bench.workload import from_setup
from maxup.objectives.running_max import RunningMax

M, B = 4, 16


def workload(*layers):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), *layers, nn.ReLU(), nn.Linear(12, 3))
    returned = model, (torch.randn(B, 6), torch.randint(3, (B,))), None, Gaussian(0.5)
    return from_setup("mine:setup", returned, device=torch.device("cpu"))


def first_copy(work, *, seed=0):
    """A variant that always selects the first copy."""
    generator = Generator()

    def select(batch):
        worst = RunningMax()
        generator.manual_seed(generator.initial_seed() + seed)
        draws = [work.perturbation.draw(batch, generator) for _ in range(M)]
        worst.update(draws, torch.arange(M - 1.0, -1, -1).repeat_interleave(B), None)
        return worst

    return Variant("first", M, lambda batch: torch.zeros(()), generator, select)


def test_compare_is_the_brute_force():
    g = Generator().manual_seed(1)
    losses, copies = torch.rand(M, 50, generator=g), torch.randint(M, (50,), generator=g)
    gap = exact = agree = 0.0
    for i in range(50):
        column = losses[:, i].tolist()
        mean, pick = sum(column) / M, column[copies[i]]
        gap, exact, agree = gap + pick - mean, exact + max(column) - mean, agree + (pick == max(column))
    found = compare(losses, copies)
    assert (found.gap, found.gap_kept, found.agreement) == pytest.approx((gap / 50, gap / exact, agree / 50))


def test_compare_equal_copies():
    assert compare(torch.ones(3, 2), torch.tensor([0, 2])) == Fidelity(0.0, None, 1.0)


def test_a_selection_is_compared_on_the_same_draws():
    work = workload()
    found = measure_fidelity(work, M, [first_copy(work)], 2)["first, m = 4"]
    x, y = work.batches(0)
    kept = exact = agree = 0.0
    for number in range(2):
        g = Generator().manual_seed(number)
        copies = [Gaussian(0.5)(x, y, generator=g)[0] for _ in range(M)]
        losses = torch.stack([F.cross_entropy(work.model(copy), y, reduction="none") for copy in copies]).detach()
        kept += float((losses[0] - losses.mean(0)).sum())
        exact += float((losses.max(0).values - losses.mean(0)).sum())
        agree += float((losses.argmax(0) == 0).sum())
    assert found.gap_kept == pytest.approx(kept / exact, abs=1e-4)
    assert found.gap == pytest.approx(kept / (2 * B), abs=1e-5)
    assert found.agreement == agree / (2 * B)


def test_exact_scoring_agrees_with_itself_and_leaves_no_trace():
    work = workload(nn.BatchNorm1d(12), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in work.model.state_dict().items()}
    state = torch.get_rng_state()
    found = measure_fidelity(work, M, [maxup(work, "maxup", M)], 3)["maxup, m = 4"]
    assert (found.gap_kept, found.agreement) == (1.0, 1.0)
    assert found.gap > 0
    assert torch.equal(state, torch.get_rng_state())
    for name, value in work.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_all_graphs_select_as_exact_scoring_without_batch_norm():
    work = workload()
    variants = make_variants(work, ["keep_all_graphs", "average", "sam"], [M])
    found = measure_fidelity(work, M, variants, 2)
    assert list(found) == ["keep_all_graphs, m = 4"]
    assert found["keep_all_graphs, m = 4"].agreement == 1.0


def test_other_draws_are_not_compared():
    work = workload()
    assert measure_fidelity(work, M, [first_copy(work, seed=7)], 1) == {"first, m = 4": None}


def test_same_draws():
    a, b, where = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4]), torch.tensor([True, True, False])
    assert same_draws({"k": a}, {"k": b}, where)
    assert not same_draws({"k": a}, {"k": b}, ~where)
    assert not same_draws({"k": a}, {"k": a, "l": b}, where)

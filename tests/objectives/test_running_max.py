import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxup.objectives.running_max import RunningMax


@settings(max_examples=60)
@given(m=st.integers(1, 6), b=st.integers(1, 5), chunk_size=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_running_maximum_is_the_maximum(m, b, chunk_size, seed):
    g = torch.Generator().manual_seed(seed)
    losses = torch.randint(4, (m, b), generator=g).float()  # few values, to get ties
    draws = [torch.full((b,), i) for i in range(m)]
    worst = RunningMax()
    for start in range(0, m, chunk_size):
        worst.update(draws[start : start + chunk_size], losses[start : start + chunk_size].flatten(), None)
    assert torch.equal(worst.scores, losses.amax(0))
    assert torch.equal(worst.copy, losses.argmax(0))  # the first of equal ones
    assert torch.equal(worst.draw, worst.copy)
    assert torch.equal(torch.stack(worst.losses), losses)


def test_kl_is_the_loss_minus_the_label_entropy():
    target = torch.tensor([[0.5, 0.5], [0.9, 0.1]])
    worst = RunningMax("kl")
    worst.update([torch.zeros(2)], torch.tensor([1.0, 1.0]), target)
    entropy = torch.distributions.Categorical(target).entropy()
    torch.testing.assert_close(worst.scores, 1 - entropy)


def test_easiest_keeps_the_draw_with_the_lowest_loss():
    losses = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    easiest = RunningMax("easiest")
    for i, row in enumerate(losses):
        easiest.update([torch.full((7,), i)], row, None)
    assert torch.equal(easiest.draw, losses.argmin(0))
    assert torch.equal(torch.stack(easiest.losses), losses)

import pytest
import torch

import maxup as mu
from tests.tiny import B, batch, gradients, net


@pytest.mark.parametrize(("keep", "k"), [(0.01, 1), (0.5, 3), (1.0, 6)])
def test_gradient_is_that_of_the_hardest_examples(keep, k):
    model, (x, y) = net(), batch()
    hardest = mu.cross_entropy(model(x), y).argsort(descending=True)[:k]
    mu.cross_entropy(model(x[hardest]), y[hardest]).mean().backward()
    expected = gradients(model)
    model.zero_grad()
    outcome = mu.HardExamples(keep).run(model, x, y)
    outcome.loss.backward()
    for a, e in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(a, e)
    assert outcome.losses.shape == (k,)
    assert len(outcome.output) == B


def test_targets_may_be_anything_that_the_loss_accepts():
    model, (x, y) = net(), batch()
    for target in (None, {"label": y}):
        outcome = mu.HardExamples(0.5, loss_fn=lambda output, _: output[:, 0]).run(model, x, target)
        assert outcome.losses.shape == (3,)


@pytest.mark.parametrize("keep", [0, 1.5, -1])
def test_invalid_arguments(keep):
    with pytest.raises(ValueError, match="fraction of the batch"):
        mu.HardExamples(keep)

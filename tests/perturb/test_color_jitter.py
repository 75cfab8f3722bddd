import itertools

import pytest
import torch
from scipy import stats

from maxup import ColorJitter
from tests.oracles import torchvision_v2
from tests.tiny import generator


@pytest.mark.parametrize("channels", [1, 3])
def test_agrees_with_torchvision_in_every_order(channels):
    v2 = torchvision_v2().functional
    steps = [v2.adjust_brightness, v2.adjust_contrast, v2.adjust_saturation]
    orders = list(itertools.permutations(range(3)))
    x = torch.rand(6, channels, 9, 12, generator=generator())
    factor = 0.3 + 1.4 * torch.rand(6, 3, generator=generator(1))
    got, _ = ColorJitter().apply((x, None), {"order": torch.tensor(orders), "factor": factor})
    for image, new, order, factors in zip(x, got, orders, factor.tolist(), strict=True):
        for step in order:
            image = steps[step](image, factors[step])
        torch.testing.assert_close(new, image, atol=1e-5, rtol=0)


def test_factors_and_orders_are_uniform():
    draw = ColorJitter(0.4, 0.2, 1.5).draw((torch.zeros(6000, 3, 2, 2), None), generator())
    for factor, low, high in zip(draw["factor"].T, (0.6, 0.8, 0), (1.4, 1.2, 2.5), strict=True):
        assert stats.kstest(factor.numpy(), stats.uniform(low, high - low).cdf).pvalue > 0.01
    numbers = (draw["order"] * torch.tensor([9, 3, 1])).sum(1)
    _, counts = numbers.unique(return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts.numpy()).pvalue > 0.01


def test_invalid_input_is_refused():
    with pytest.raises(ValueError, match=r"ColorJitter\(contrast=-1\): contrast must be a finite number, 0 or more"):
        ColorJitter(contrast=-1)
    with pytest.raises(ValueError, match=r"ColorJitter\(brightness=inf\): brightness must be a finite number"):
        ColorJitter(brightness=float("inf"))

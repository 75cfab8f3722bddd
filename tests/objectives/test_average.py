import pytest
import torch
from torch.nn import functional as F

import maxup as mu
from tests.tiny import ALL_CASES, case, generator, gradients


@pytest.mark.parametrize("name", ALL_CASES)
def test_gradients_equal_a_loop_over_copies(name):
    perturbation, model, x, y = case(name)
    g = generator(2)
    draws = [perturbation.draw((x, y), g) for _ in range(3)]
    for draw in draws:
        copy, target = perturbation.apply((x, y), draw)
        (F.cross_entropy(model(copy), target) / 3).backward()
    expected = gradients(model)
    model.zero_grad()
    mu.Average(perturbation, m=3, generator=generator(2))(model, x.clone(), y).backward()
    for a, e in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(a, e, atol=1e-9, rtol=0)


def test_average_of_one_is_maxup_of_one():
    perturbation, model, x, y = case("gaussian")
    one = mu.Average(perturbation, m=1, generator=generator())(model, x, y)
    assert torch.equal(one, mu.MaxUp(perturbation, m=1, generator=generator())(model, x, y))

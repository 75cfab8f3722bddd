import pytest
import torch

from maxup import Gaussian, Perturbation
from maxup.perturb.base import pick, put
from tests.tiny import ALL_CASES, IN_MODEL, case, generator


@pytest.mark.parametrize("name", [n for n in ALL_CASES if n not in {*IN_MODEL, "views", "by-hand"}])
def test_alone_it_is_an_ordinary_augmentation(name):
    perturbation, _, x, y = case(name)
    before = x.clone(), y.clone()
    new_x, new_y = perturbation(x, y, generator=generator(3))
    again_x, again_y = perturbation(x, y, generator=generator(3))
    assert len(new_x) == len(new_y) == len(x)
    assert torch.equal(new_x, again_x)
    assert torch.equal(new_y, again_y)
    assert torch.equal(x, before[0])  # the batch itself is not touched
    assert torch.equal(y, before[1])
    assert not (torch.equal(new_x, x) and torch.equal(new_y, y))


@pytest.mark.parametrize("name", [n for n in ALL_CASES if n not in {*IN_MODEL, "views"}])
def test_two_examples_get_different_draws(name):
    """All examples equal: what differs afterwards is the draw. (Mixing needs different labels.)"""
    perturbation, _, x, y = case(name)
    x = x[:1].repeat(64, 1, 1, 1) * (torch.arange(64.0).view(-1, 1, 1, 1) + 1 if "mix" in name else 1)
    y = torch.arange(64) % 4
    new_x, new_y = perturbation.apply((x, y), perturbation.draw((x, y), generator()))
    results = {
        (a.sum().item(), b.sum().item() if b.ndim == 0 else b[0].item()) for a, b in zip(new_x, new_y, strict=True)
    }
    assert len(results) > 8


def test_without_a_generator_it_obeys_manual_seed():
    x = torch.zeros(4, 3)
    torch.manual_seed(5)
    first = Gaussian(1.0)(x)[0]
    second = Gaussian(1.0)(x)[0]
    torch.manual_seed(5)
    assert torch.equal(Gaussian(1.0)(x)[0], first)
    assert not torch.equal(first, second)


def test_pick_and_put_go_together():
    x = (torch.ones(2), {"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.long)})
    assert len(pick(x)) == 2
    new = put(x, [leaf + 5 for leaf in pick(x)])
    assert new[0].tolist() == [6, 6]
    assert new[1]["a"].tolist() == [5, 5]
    assert new[1]["b"] is x[1]["b"]
    assert put(x, [torch.tensor([9, 9])], key=0)[0].tolist() == [9, 9]
    assert pick({"a": torch.zeros(2, dtype=torch.uint8)}, "a")[0].dtype == torch.uint8


def test_unwritten_methods_say_so():
    with pytest.raises(NotImplementedError, match="must define draw"):
        Perturbation()(torch.zeros(2))

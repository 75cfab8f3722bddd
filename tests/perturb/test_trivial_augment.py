import torch
from scipy import stats

from maxup import TrivialAugment
from maxup.perturb.operations import NUMBER, OPERATIONS
from tests.oracles import torchvision_v2
from tests.tiny import generator


def test_draws_are_uniform_over_the_space_of_torchvision():
    torchvision_v2()
    from torchvision.transforms import TrivialAugmentWide

    space = TrivialAugmentWide()._augmentation_space(31)
    assert list(space) == list(OPERATIONS[:-1])  # all but Invert
    draw = TrivialAugment().draw((torch.zeros(20000, 1, 8, 8), None), generator())
    operation, magnitude = draw["operation"][:, 0], draw["magnitude"][:, 0]
    assert stats.chisquare(torch.bincount(operation, minlength=14).numpy()).pvalue > 0.01
    for number, (name, (values, signed)) in enumerate(space.items()):
        drawn = magnitude[operation == number]
        table = values.float().unique()
        assert torch.equal(drawn.abs().unique(), table), name
        assert (drawn < 0).any() == signed, name
    rotations = magnitude[operation == NUMBER["Rotate"]].abs()
    assert stats.chisquare(torch.bincount((rotations / 4.5).round().long(), minlength=31).numpy()).pvalue > 0.01

import numpy as np
import pytest
import torch
from scipy import stats

import maxup as mu
from maxup.perturb.operations import OPERATIONS
from maxup.perturb.policy import paper_magnitudes
from tests.oracles import torchvision_v2
from tests.perturb.test_operations import photographs, theirs
from tests.tiny import CLASSES, generator, net


def test_magnitudes_match_torchvision():
    torchvision_v2()
    from torchvision.transforms import RandAugment

    space = RandAugment()._augmentation_space(31, (24, 40))
    assert list(space) == list(OPERATIONS[:-1])  # all but Invert
    table = paper_magnitudes(31, torch.empty(1, 3, 24, 40))
    for number, (name, (values, signed)) in enumerate(space.items()):
        assert torch.equal(table[number], values.float().expand(31)), name
        assert signed == (1 <= number <= 9), name


def test_operations_are_uniform_and_independent():
    x = torch.zeros(7000, 3, 8, 8)
    draw = mu.RandAugment(2, 9).draw((x, None), generator())
    first, second = draw["operation"].T
    pairs = torch.bincount(14 * first + second, minlength=196)
    assert stats.chisquare(pairs.numpy()).pvalue > 0.01  # uniform over pairs: each uniform, and independent
    signs = draw["magnitude"][draw["operation"] == OPERATIONS.index("Rotate")]
    assert signs.abs().unique().tolist() == pytest.approx([9.0])
    assert stats.binomtest(int((signs > 0).sum()), len(signs)).pvalue > 0.01


def test_operations_apply_in_order():
    x = photographs(3, (20, 20), n=40)
    augment = mu.RandAugment(3, 20)
    draw = augment.draw((x, None), generator())
    got, _ = augment.apply((x, None), draw)
    expected = x
    for operations, magnitudes in zip(draw["operation"].T, draw["magnitude"].T, strict=True):
        step = [
            theirs(image[None], OPERATIONS[operation], magnitude[None])
            for image, operation, magnitude in zip(expected, operations, magnitudes, strict=True)
        ]
        expected = torch.cat(step)
    # After one level of rounding error, a later operation may differ a lot (Solarize), so compare most pixels.
    assert (got == expected).float().mean() > 0.95


def test_m_1_is_plain_augmentation_and_m_4_selects_the_worst_copy():
    x = photographs(3, (8, 8), n=12).double() / 255
    y, model = torch.arange(12) % CLASSES, net()
    plain, _ = mu.RandAugment()(x, y, generator=generator(5))
    one, _ = mu.MaxUp(mu.RandAugment(), m=1, generator=generator(5)).select(model, x, y)
    assert torch.equal(one, plain)
    g = generator(5)
    copies = [mu.RandAugment()(x, y, generator=g)[0] for _ in range(4)]
    losses = torch.stack([mu.cross_entropy(model(copy), y) for copy in copies])
    worst, _ = mu.MaxUp(mu.RandAugment(), m=4, generator=generator(5)).select(model, x, y)
    assert torch.equal(worst, torch.stack(copies)[losses.argmax(0), torch.arange(12)])


@pytest.mark.parametrize(("arguments", "message"), [
    ({"num_ops": 0}, "num_ops must be a whole number, 1 or more"),
    ({"magnitude": 31}, "magnitude must be a whole number, 0 to 30"),
    ({"magnitude": 2.5}, "magnitude must be a whole number, 0 to 30"),
])  # fmt: skip
def test_invalid_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        mu.RandAugment(**arguments)
    assert mu.RandAugment(magnitude=np.int64(3)).magnitude == 3

import pytest
import torch

import maxup as mu
from maxup.perturb.operations import NUMBER, OPERATIONS
from maxup.perturb.policy import magnitudes, signed
from tests.tiny import generator


def test_signs_are_random_if_the_operation_takes_one():
    operation = torch.arange(len(OPERATIONS)).repeat(400, 1)
    share = (signed(operation, torch.ones(operation.shape), generator()) < 0).float().mean(0)
    for name, number in NUMBER.items():
        takes_sign = number in range(NUMBER["ShearX"], NUMBER["Sharpness"] + 1)
        assert share[number] == pytest.approx(0.5 if takes_sign else 0, abs=0.1), name


def test_magnitudes_from_none_to_full_strength():
    table = magnitudes(5, 0.3, 10, 20, 30, 0.9, 4, torch.device("cpu"))
    assert table[NUMBER["Rotate"]].tolist() == [0, 7.5, 15, 22.5, 30]
    assert table[NUMBER["Posterize"]].tolist() == [8, 7, 6, 5, 4]
    assert table[NUMBER["Solarize"]].tolist() == [255, 191.25, 127.5, 63.75, 0]
    assert not table[NUMBER["Identity"]].any()


def test_at_least_two_bins():
    with pytest.raises(ValueError, match=r"RandAugment\(bins=1\): bins must be a whole number, 2 or more"):
        mu.RandAugment(bins=1)

"""Training and test arrays that do not fit together get a message, and columns that lose precision a warning."""

import re

import pytest
import torch

from maxup.errors import DataError
from maxup.lab.data.arrays import from_arrays


def example():
    """Return x, y, x_test and y_test."""
    train = [torch.zeros(6, 8, 8, dtype=torch.uint8), torch.tensor([0, 1] * 3)]
    return [*train, torch.zeros(2, 8, 8, dtype=torch.uint8), torch.tensor([0, 1])]


def reject(change, message):
    """Check that the example with other arrays, by index, is an error."""
    arrays = example()
    from_arrays(arrays)
    for index, value in change.items():
        arrays[index] = value
    with pytest.raises(DataError, match=message):
        from_arrays(arrays)


@pytest.mark.parametrize(
    ("column", "warned"),
    [
        (1.7e9 + 3600 * torch.rand(100, dtype=torch.float64), True),
        (1.7e9 + torch.rand(100, dtype=torch.float64), True),  # one value in float32
        (1.7e9 + 86400 * torch.rand(100, dtype=torch.float64), False),
        (torch.full((100,), 1.7e9), False),
        (torch.rand(100) - 0.5, False),
    ],
)
def test_a_column_that_float32_hardly_resolves_gets_a_warning(column, warned, capsys):
    x = torch.stack([torch.rand(100, dtype=torch.float64), column.double()], 1)
    from_arrays((x, [0, 1] * 50))
    said = capsys.readouterr().err
    assert bool(said) == warned
    if warned:
        assert re.match(
            r"column 1 of your data ranges over [\de.+]+ near 1\.7e\+09, which .*; subtract an offset", said
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({2: torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}, r"your test images are torch.uint8 of shape \(2, 3, 8, 8\)"),
        ({2: torch.zeros(2, 8, 8)}, "your test images are torch.float32"),
    ],
)
def test_images_unlike_those_of_training_are_an_error(change, message):
    reject(change, message)

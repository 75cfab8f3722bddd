"""Labels that are not classes get a message. `test_user_data` tests how classes are matched by name."""

import pytest
import torch

from tests.lab.data.test_arrays import reject


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: torch.tensor([0, 10**9] * 3)}, "your labels go up to 1000000000; number the classes from 0"),
        ({1: torch.tensor([0, -1] * 3)}, "your labels start at -1; number the classes from 0"),
        ({1: [*"abaab", 3]}, "your labels are names and numbers"),
        ({1: [3, *"abaab"]}, "your labels are names and numbers"),
        ({3: torch.tensor([-1, -1])}, "your test labels are all negative, as in a test set whose"),
        ({1: torch.rand(6)}, "your labels are torch.float32"),
        ({1: torch.zeros(6, 1).long()}, r"shape \(6, 1\)"),
        ({3: torch.tensor([0, 7])}, "classes without a training example: 7"),
    ],
)
def test_invalid_labels_are_an_error(change, message):
    reject(change, message)

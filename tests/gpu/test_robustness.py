"""On a GPU: corruptions and calibration are those of the CPU."""

import pytest
import torch

from maxup.lab.robustness.calibration import Calibration
from maxup.lab.robustness.corruptions import CORRUPTIONS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_agree(name):
    x, indices, kind = torch.rand(5, 3, 40, 32), torch.tensor([4, 0, 9, 2, 7]), CORRUPTIONS[name]
    for level in kind.levels:
        expected = kind.apply(x, level, indices)
        found = kind.apply(x.cuda(), level, indices.cuda())
        assert found.is_cuda
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-5)


def test_calibration_agrees():
    logits, y = 3 * torch.randn(500, 10), torch.randint(10, (500,))
    found = [Calibration(torch.device(device)) for device in ("cpu", "cuda")]
    for one, device in zip(found, ("cpu", "cuda"), strict=True):
        one.update(logits.to(device), y.to(device))
    assert found[0].metrics() == pytest.approx(found[1].metrics(), abs=1e-5)

"""On a GPU: a captured graph gives the same counts as eager mode, also for padded batches, in both precisions."""

import pytest
import torch

from maxup.cuda.compile import compile_blocks
from maxup.lab.models import create_model
from maxup.lab.models.normalize import Normalized
from maxup.smoothing.counts import NoiseCounter, Request
from maxup.smoothing.smooth import Smooth

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def network():
    torch.manual_seed(0)
    model = Normalized(create_model("resnet20", shape=(3, 32, 32), num_classes=10), [0.5] * 3, [0.25] * 3)
    return model.cuda().to(memory_format=torch.channels_last).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_captured_and_plain_counts_agree(dtype):
    images = torch.rand(3, 3, 32, 32, device="cuda")
    requests = [Request(0, 5, "a", 0, 777), Request(1, 6, "a", 30, 555), Request(2, 7, "a", 0, 100)]
    counts = []
    for capture in (False, True):
        counter = NoiseCounter(
            network(), 10, 0.5, shape=(3, 32, 32), device=torch.device("cuda", 0), batch_size=256, rows=3,
            dtype=dtype, capture=capture,
        )  # fmt: skip
        counts.append(counter.count(images, requests))
        assert torch.equal(counts[-1], counter.count(images, requests))  # a replay starts at zero
        assert counts[-1].sum(1).tolist() == [777, 525, 100]
    assert torch.equal(*counts)


def test_compiled_blocks_give_the_same_certificates():
    x = torch.rand(4, 3, 32, 32)
    plain = list(Smooth(network(), 10, 0.5).certify_many(x, 100, 2000, 0.001, 500))
    model = network()
    assert compile_blocks(model) == 9
    fast = list(Smooth(model, 10, 0.5, capture=True).certify_many(x, 100, 2000, 0.001, 500))
    assert [c.predict for c in fast] == [c.predict for c in plain]
    for a, b in zip(fast, plain, strict=True):
        assert abs(a.radius - b.radius) < 0.02  # rounding may change a few predictions

"""`maxup bench` on a GPU: captured steps give the losses of eager ones, and a result has every number."""

import pytest
import torch
from torch import nn

from maxup.errors import RecipeError
from maxup.lab.bench.measure import UNTRAINED, bench, summarize
from maxup.lab.bench.settings import NAMES
from maxup.lab.bench.workload import from_network, from_setup

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),
]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_every_variant_is_measured(captured, precision):
    device = torch.device("cuda")
    work = from_network("resnet20", batch_size=16, device=device, precision=precision)
    before = {name: value.detach().clone() for name, value in work.model.named_parameters()}
    names = [name for name in NAMES if name != "maxup_retain"]  # not with BatchNorm
    result = summarize(bench(work, ms=[4], names=names, rounds=2, train_steps=0, captured=captured, profile=True))
    assert result["step"] == ("captured" if captured else "eager")
    for one in result["variants"]:
        assert one["note"] in (None, UNTRAINED), one
        assert one["time_ratio"] > 0
        assert one["peak_bytes"] > 0
        assert one["profile"]["seconds"]["convolutions and matrix products"] > 0
    ratio = {(one["name"], one["m"]): one["memory_ratio"] for one in result["variants"]}
    assert ratio["maxup", 4] < 1.2
    assert ratio["keep_all_graphs", 4] > 2
    for name, value in work.model.named_parameters():
        assert torch.equal(value, before[name]), name


def test_dropout_cannot_be_captured():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2))
    work = from_setup("f", (model, (torch.rand(4, 3), torch.tensor([0, 1, 0, 1]))), device=torch.device("cuda"))
    with pytest.raises(RecipeError, match="steps cannot be captured as CUDA graphs: active Dropout; use --step eager"):
        bench(work, ms=[2], captured=True)

"""On a GPU: cuDNN uses the dropped weights without copying them, and the results match the CPU."""

import copy
import warnings

import pytest
import torch
from torch.nn import functional as F

from maxup.lab.models.awd_lstm import AWDLSTM
from maxup.lab.models.frozen import frozen_copy
from maxup.lab.tasks.dynamic_evaluation import adapt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _exact():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def step(model, ids, target):
    model.zero_grad()
    read = model(ids, model.start(len(ids)))
    F.cross_entropy(model.decode(read.output).flatten(0, 1), target.flatten()).backward()
    return read


@pytest.mark.parametrize("sizes", [{"embedding": 400, "hidden": 1150, "layers": 3}, {"embedding": 13, "hidden": 31}])
@pytest.mark.parametrize("training", [True, False])
def test_no_warning_about_weights_that_are_not_contiguous(sizes, training):
    """In training, in evaluation with gradients (dynamic evaluation), and for the copy that holds an average."""
    model = AWDLSTM(500, **sizes).cuda().train(training)
    ids = torch.randint(500, (20, 35), device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, ids, ids)
        with torch.no_grad():
            model.eval()(ids, model.start(20))
            frozen_copy(model)(ids, model.start(20))
        step(frozen_copy(model).requires_grad_().eval(), ids, ids)


def test_the_gpu_matches_the_cpu(monkeypatch):
    model = AWDLSTM(60, embedding=10, hidden=24, input_dropout=0, hidden_dropout=0, output_dropout=0, weight_drop=0.5)
    ids, target = torch.randint(60, (4, 9)), torch.randint(60, (4, 9))
    masks = [F.dropout(torch.ones_like(layer.weight_hh_l0), 0.5) for layer in model.layers]
    results = []
    for device in ("cpu", "cuda"):
        fixed = iter(masks)
        monkeypatch.setattr(F, "dropout", lambda w, p, fixed=fixed, device=device: w * next(fixed).to(device))
        copied = copy.deepcopy(model).to(device)
        read = step(copied, ids.to(device), target.to(device))
        results.append([read.output.cpu(), *(p.grad.cpu() for p in copied.parameters())])
        monkeypatch.undo()
    for on_cpu, on_gpu in zip(*results, strict=True):
        torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-4, atol=1e-5)


def test_dropped_weights_are_zero():
    model = AWDLSTM(50, embedding=40, hidden=60, weight_drop=0.4).cuda()
    for layer in model.layers:
        weight = model._weights(layer)[1]
        assert float((weight == 0).double().mean()) == pytest.approx(0.4, abs=0.03)


@pytest.mark.parametrize("words", [3, 203])
def test_dynamic_evaluation_with_a_graph_matches_the_cpu(words):
    """The CPU runs the same steps eagerly."""
    torch.manual_seed(0)
    text = torch.randint(60, (words,))
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(1)
        model = AWDLSTM(60, embedding=10, hidden=24).eval().to(device)
        before = [p.detach().clone() for p in model.parameters()]
        rms = [torch.full_like(p, 0.01) for p in model.parameters()]
        found += [adapt(model, rms, text, 1e-2, 0.02) for _ in range(2)]
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert found[0] == found[1]
    assert found[2] == pytest.approx(found[3], rel=1e-6)
    assert found[2] == pytest.approx(found[0], rel=1e-4)

"""`MaxUp(compile=True)` on a GPU: fused operations, exact winners in float32, and CUDA graphs."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxup import Cutout, Gaussian, MaxUp, captured, scoring
from maxup.fusion import rewrite
from maxup.lab.models import create_model
from maxup.scoring import compile_for_scoring

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
]


class Residual(nn.Module):
    """Every pattern: convolution, norm, sum and ReLU; a plain convolution and ReLU; linear and GELU; layer norm."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 7, 2, 3)
        self.conv1, self.norm1 = nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.skip = nn.Sequential(nn.Conv2d(32, 64, 1, bias=False), nn.BatchNorm2d(64))
        self.norm, self.up, self.head = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 10)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(self.norm1(self.conv1(x)) + self.skip(x)).mean((2, 3))
        return self.head(F.gelu(self.up(x + self.norm(x))))


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Residual().cuda().to(memory_format=torch.channels_last)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight, 1, 0.3)
            nn.init.normal_(layer.bias, 0, 0.3)
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_close_to_float32_as_eager_half_precision(model, dtype, monkeypatch):
    fused_operations = []
    monkeypatch.setattr(scoring, "rewrite", lambda graph: fused_operations.append(rewrite(graph)))
    x = torch.randn(16, 3, 32, 32, device="cuda")
    with torch.no_grad():
        exact = model.double()(x.double())
        model.float()
        with torch.autocast("cuda", dtype):
            eager, fused = model(x), compile_for_scoring(model)(x)
    assert fused_operations == [3]
    assert fused.dtype == eager.dtype
    error, allowed = (fused.double() - exact).abs().max(), (eager.double() - exact).abs().max()
    assert error < 3 * allowed + 1e-3


@pytest.mark.parametrize("norm", ["batch", "running"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_float32_winners_and_gradients_are_exact(model, norm, is_compiled):
    model.train()
    x, y = torch.randn(16, 3, 32, 32, device="cuda"), torch.randint(10, (16,), device="cuda")
    found = []
    for compile in (False, True):
        objective = MaxUp(Cutout(16), m=4, norm=norm, compile=compile, generator=torch.Generator("cuda").manual_seed(0))
        called = torch.compile(model) if is_compiled else model
        outcome = objective.run(called, x, y)
        outcome.loss.backward()
        found.append((outcome.worst.copy, [p.grad.clone() for p in model.parameters()]))
        model.zero_grad()
    assert torch.equal(found[0][0], found[1][0])
    for a, b in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet20", "preact_resnet20", "wrn16_4"])
def test_captured_steps_use_compiled_scoring(name):
    torch.manual_seed(0)
    model = create_model(name, shape=(3, 32, 32), num_classes=10).cuda().to(memory_format=torch.channels_last)
    objective = MaxUp(Gaussian(0.2), m=3, norm="running", chunk_size=3, compile=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, fused=True)

    def step(x, y):
        with torch.autocast("cuda", torch.bfloat16):
            loss = objective(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = captured(step, objective, optimizer)
    x, y = torch.randn(32, 3, 32, 32, device="cuda"), torch.randint(10, (32,), device="cuda")
    losses = [float(step(x, y)) for _ in range(40)]
    assert step.graphed.graph is not None
    assert objective._compiler.compiled is not None
    assert losses[-1] < losses[0]

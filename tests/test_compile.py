"""torch.compile: the same winners, no recompilation after the first steps, and exact replay."""

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import maxup as mu
from tests.tiny import CLASSES, B, batch, batch_norm_net, dropout_net, generator, text_net, tokens


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("norm", ["batch", "running"])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_same_winners_and_no_compilation_after_the_first_steps(norm, backend):
    model, (x, y) = batch_norm_net(dtype=torch.float32), batch(dtype=torch.float32)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(copy.deepcopy(model), backend=counter)  # with separate running statistics
    ways = [mu.MaxUp(mu.CutMix(CLASSES), m=4, norm=norm, generator=generator()) for _ in range(2)]
    compilations = []
    for _ in range(4):
        plain = ways[0].run(model, x, y)
        through = ways[1].run(compiled, x, y)
        assert torch.equal(plain.worst.copy, through.worst.copy)
        torch.testing.assert_close(plain.loss, through.loss)
        through.loss.backward()
        compilations.append(counter.frame_count)
    assert compilations[0] == compilations[-1] > 0


def test_dropout_replays_through_a_compiled_model():
    model, (x, y) = dropout_net(dtype=torch.float32), batch(dtype=torch.float32)
    compiled = torch.compile(model, backend="aot_eager")
    report = mu.MaxUp(mu.Gaussian(0.3), m=4).run(compiled, x, y).report
    assert report.replay_exact


def test_a_perturbation_attached_before_compiling_acts():
    model, (ids, y) = text_net(dtype=torch.float32), tokens()
    drop = mu.EmbeddingDropout(0.5)
    drop.attach(model)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter)
    ways = [mu.MaxUp(drop, m=4, generator=generator()) for _ in range(2)]
    clean = model(ids)
    compilations = []
    for _ in range(4):
        plain, through = ways[0].run(model, ids, y), ways[1].run(compiled, ids, y)
        assert torch.equal(plain.worst.copy, through.worst.copy)
        torch.testing.assert_close(plain.output, through.output)
        torch.testing.assert_close(compiled(ids), clean)
        compilations.append(counter.frame_count)
    assert len(set(through.worst.copy.tolist())) > 1
    assert compilations[1] == compilations[-1]
    assert len(y) == B


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(5, 5)

    def forward(self, x):
        return self.line(x).tanh()


class Blocks(torch.nn.Module):
    """Blocks that are compiled one by one, because the forward of the model is not, as in some Hugging Face models."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    @torch.compiler.disable(recursive=False)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised by the compiler
def test_a_compiled_block_is_not_reused_for_a_block_with_a_perturbation():
    model, (x, y) = Blocks(), (torch.rand(8, 5), torch.randint(5, (8,)))
    noise = mu.FeatureNoise(1.0, layer="blocks.1.line")
    noise.attach(model)
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        plain, through = (mu.MaxUp(noise, m=4, generator=generator()).run(called, x, y) for called in (model, compiled))
        torch.testing.assert_close(plain.losses, through.losses)

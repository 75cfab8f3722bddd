"""Rewritten graphs compute what the model computes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from maxup import fusion
from maxup.lab.models import create_model
from tests.tiny import Function, conv

FLOAT32 = (torch.float32,)


def trace(model, x):
    """The graph of a model in evaluation mode, and what it returns."""
    graphs = []
    torch._dynamo.reset()  # it stops compiling the same code for ever new shapes

    def backend(graph, inputs):
        graphs.append((graph, inputs))
        return graph

    with torch.no_grad():
        expected = torch.compile(model, backend=backend, dynamic=False)(x)
    ((graph, inputs),) = graphs
    return graph, inputs, expected


def check_rewrite(model, x, fused):
    """Rewrite a graph in float32, and compare its output with the model's. The format is channels_last."""
    if x.dim() == 4:
        model, x = (part.to(memory_format=torch.channels_last) for part in (model, x))
    graph, inputs, expected = trace(model, x)
    assert fusion.rewrite(graph, FLOAT32) == fused
    with torch.no_grad():
        (found,) = graph(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    return [node.target for node in graph.graph.nodes]


def randomize(model):
    """Give BatchNorm layers statistics and weights that matter, and return the model in evaluation mode."""
    torch.manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            if layer.running_mean is not None:
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2)
            if layer.affine:
                nn.init.normal_(layer.weight)
                nn.init.normal_(layer.bias)
    return model.eval()


@pytest.mark.parametrize(
    ("forward", "fused"),
    [
        (lambda m, x: F.relu(m.conv(x)), 1),
        (lambda m, x: torch.relu(m.norm(m.conv(x))), 1),
        (lambda m, x: F.relu(m.plain(m.conv(x))), 1),
        (lambda m, x: F.relu(m.norm(m.bare(x)), inplace=True), 1),
        (lambda m, x: F.relu(m.norm(m.conv(x)) + x), 1),
        (lambda m, x: F.relu(x + m.norm(m.conv(x))), 1),
        (lambda m, x: F.relu(m.conv(x) + m.norm(m.bare(x))), 1),
        (lambda m, x: F.relu(m.norm(m.conv(x)).add(x)), 0),  # a method, which is not searched for
        (lambda m, x: F.relu(m.conv(x) + 1), 0),
        (lambda m, x: F.relu(m.norm(m.conv(x)) + x.mean((2, 3), keepdim=True)), 0),  # broadcast
        (lambda m, x: F.relu(torch.add(m.conv(x), x, alpha=2)), 0),
        (lambda m, x: F.relu(m.norm(m.norm(m.conv(x)))), 0),
        (lambda m, x: F.relu(m.grouped(x)), 0),
        (lambda m, x: F.relu(m.same(x)), 0),
        (lambda m, x: F.relu(m.batch(m.conv(x))), 0),  # batch statistics
        (lambda m, x: F.relu(input=m.conv(x)), 0),
        (lambda m, x: F.relu(F.conv2d(x, m.conv.weight, None, 1, 1, 1, 1)), 0),  # numbers instead of pairs
        (lambda m, x: F.relu(m.conv(x[0])), 0),  # no batch
        (lambda m, x: F.gelu(input=F.linear(x, torch.ones(8, 8))), 0),
    ],
)
def test_convolutions_are_fused_with_what_follows(forward, fused):
    layers = {
        "conv": conv(),
        "bare": conv(bias=False),
        "grouped": conv(groups=3),
        "same": nn.Conv2d(3, 3, 3, padding="same"),
        "norm": nn.BatchNorm2d(3),
        "plain": nn.BatchNorm2d(3, affine=False),
        "batch": nn.BatchNorm2d(3, track_running_stats=False),
    }
    check_rewrite(randomize(Function(forward, **layers)), torch.randn(2, 3, 8, 8), fused)


def relu_of_sum_in_place(m, x):
    x = x * 1
    short = m.conv(x)
    x = F.relu(x, inplace=True)
    return F.relu(short + x)


def other_is_changed(m, x):
    y, z = m.conv(x), x * 2
    total = y + z
    z.mul_(3)
    return F.relu(total) + z


def input_is_written(m, x):
    x = x * 1
    y = m.conv(x)
    x[:, 0] = 5.0
    return F.relu(y)


def weight_is_changed(m, x):
    weight = m.conv.weight * 1
    y = F.conv2d(x, weight, None, (1, 1), (1, 1), (1, 1), 1)
    weight.add_(1)
    return F.relu(y)


@pytest.mark.parametrize("forward", [relu_of_sum_in_place, other_is_changed, input_is_written, weight_is_changed])
def test_an_operation_does_not_move_past_a_change_in_place(forward):
    check_rewrite(Function(forward, conv=conv()), torch.randn(2, 3, 8, 8), 0)


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: F.relu((y := m.conv(x)) + y),
        lambda m, x: F.relu(m.conv(x.mean((2, 3), keepdim=True)) + x),  # the convolution is broadcast
        lambda m, x: F.gelu(F.linear(x[0, 0, 0], m.line.weight, m.line.bias)),
    ],
)
def test_shapes_that_a_fused_operation_does_not_support(forward):
    check_rewrite(Function(forward, conv=conv(), line=nn.Linear(8, 4)), torch.randn(2, 3, 8, 8), 0)


def test_a_model_that_is_not_in_channels_last_format_is_not_fused():
    model = Function(lambda m, x: F.max_pool2d(F.relu(m.conv(x)), 2).view(len(x), -1), conv=conv())
    graph, inputs, expected = trace(model, torch.randn(2, 3, 8, 8))
    assert fusion.rewrite(graph, FLOAT32) == 0
    torch.testing.assert_close(graph(*inputs)[0], expected)


def test_a_graph_that_would_not_run_stays_as_it_is(monkeypatch):
    """A layer norm that stays in bfloat16 meets a matrix product with float32 weights outside of autocast."""
    model = Function(lambda m, x: m.norm(x) @ m.head.weight.T, norm=nn.LayerNorm(8), head=nn.Linear(8, 3))
    graph, inputs, expected = trace(model, torch.randn(4, 8))
    monkeypatch.setattr(fusion, "_autocasts_to_bfloat16", lambda graph: True)
    assert fusion.rewrite(graph) == 0
    torch.testing.assert_close(graph(*inputs)[0], expected)


def test_a_sum_in_place_keeps_its_dtype(monkeypatch):
    def forward(m, x):
        y = x * 1
        z = y
        y += m.norm(x).bfloat16()
        y.mul_(2)
        return y + z

    graph, inputs, expected = trace(Function(forward, norm=nn.LayerNorm(8)), torch.randn(4, 8))
    monkeypatch.setattr(fusion, "_autocasts_to_bfloat16", lambda graph: True)
    fusion.rewrite(graph)
    torch.testing.assert_close(graph(*inputs)[0], expected, rtol=0.02, atol=0.05)


def test_a_result_that_is_used_twice_is_not_fused():
    def forward(m, x):
        h = m.conv(x)
        return F.relu(h) + h

    check_rewrite(Function(forward, conv=conv()), torch.randn(2, 3, 8, 8), 0)


def test_an_operand_that_is_changed_in_place_is_not_fused():
    def forward(m, x):
        y = x * 2
        z = y
        y += m.conv(x)
        return F.relu(y) + z  # z is y

    check_rewrite(Function(forward, conv=conv()), torch.randn(2, 3, 8, 8), 0)

    def residual(m, x):
        y = m.norm(m.conv(x))
        y += x
        return F.relu(y)

    check_rewrite(randomize(Function(residual, conv=conv(), norm=nn.BatchNorm2d(3))), torch.randn(2, 3, 8, 8), 1)


@settings(max_examples=30, deadline=None)
@given(
    kernel=st.tuples(*[st.integers(1, 7)] * 2),
    padding=st.tuples(*[st.integers(0, 3)] * 2),
    channels=st.integers(1, 4),
    sides=st.tuples(*[st.integers(7, 12)] * 2),
    has_norm=st.booleans(),
)
def test_strided_convolutions_of_few_channels(kernel, padding, channels, sides, has_norm):
    conv = nn.Conv2d(channels, 3, kernel, stride=2, padding=padding)
    norm = nn.BatchNorm2d(3) if has_norm else nn.Identity()
    model = randomize(Function(lambda m, x: F.relu(m.norm(m.conv(x))), conv=conv, norm=norm))
    targets = check_rewrite(model, torch.randn(2, channels, *sides), 1)
    assert F.pixel_unshuffle in targets


@pytest.mark.parametrize("bias", [False, True])
def test_patches_become_a_linear_layer(bias):
    patches = nn.Conv2d(3, 5, 4, 4, bias=bias)
    model = Function(lambda m, x: m.conv(x).flatten(2).transpose(1, 2), conv=patches)
    targets = check_rewrite(model, torch.randn(2, 3, 8, 12), 1)
    assert torch.conv2d not in targets
    overlapping = Function(lambda m, x: m.conv(x), conv=nn.Conv2d(3, 5, 5, 4))
    check_rewrite(overlapping, torch.randn(2, 3, 13, 13), 0)
    cropped = Function(lambda m, x: m.conv(x), conv=nn.Conv2d(3, 5, 4, 4))
    check_rewrite(cropped, torch.randn(2, 3, 9, 9), 0)


@pytest.mark.parametrize(
    ("name", "fused"),  # ResNet: the first and 2 per block. Pre-activation: 1 per block, and 2 if it widens x
    [("resnet20", 19), ("preact_resnet20", 9), ("wrn16_4", 7)],
)
def test_built_in_networks(name, fused):
    model = randomize(create_model(name, shape=(3, 16, 16), num_classes=5))
    check_rewrite(model, torch.randn(2, 3, 16, 16), fused)


def test_linear_layers_are_fused_with_gelu():
    layers = {"up": nn.Linear(8, 32), "bare": nn.Linear(8, 32, bias=False)}
    both = Function(lambda m, x: F.gelu(m.up(x)) + F.gelu(m.bare(x)), **layers)
    targets = check_rewrite(both, torch.randn(2, 5, 8), 1)
    assert torch.ops.maxup.linear_gelu.default in targets


def test_sums_and_layer_norms_stay_in_bfloat16(monkeypatch):
    """As traced under bfloat16 autocast: a bfloat16 and a float32 operand, and a layer norm in float32."""
    layers = {"norm": nn.LayerNorm(8), "head": nn.Linear(8, 3)}

    def forward(m, x):
        y = x.bfloat16() + m.norm(x)  # bfloat16 + float32
        return m.head((y + x).float()) + 1

    model = Function(forward, **layers)
    graph, inputs, expected = trace(model, torch.randn(4, 8))
    monkeypatch.setattr(fusion, "_autocasts_to_bfloat16", lambda graph: True)
    fusion.rewrite(graph)
    casts = [node for node in graph.graph.nodes if node.op == "call_method" and node.args[1:] == (torch.bfloat16,)]
    assert len(casts) == 3  # the norm and both sums; the output stays in float32
    with torch.no_grad():
        (found,) = graph(*inputs)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)
    assert not torch.equal(found, expected)

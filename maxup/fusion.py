"""Rewrite a traced graph for forward passes without gradients, whose outputs are only compared.

On a GPU in half precision, memory traffic limits such passes, so `rewrite` removes traffic:

- relu(norm(conv(x)) + other) becomes one cuDNN call. BatchNorm with running statistics is folded into the convolution.
- The first convolution of most networks has few channels, which tensor cores run slowly. If it has stride 2, 2 x 2
  pixels become channels. If its patches do not overlap, it becomes a linear layer.
- gelu(linear(x)) becomes one cuBLAS call, with the tanh approximation of GELU (absolute error below 5e-4).
- Under bfloat16 autocast, sums and layer norms stay in bfloat16, where autocast would widen them to float32.
"""

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

HALF = (torch.bfloat16, torch.float16)
ADD = (operator.add, operator.iadd, torch.add)
RELU = (F.relu, torch.relu)
IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.iand, operator.ior, operator.ipow)


def in_half_precision(graph: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph runs on a GPU, without gradients, and computes in half precision."""
    on_cuda = any(isinstance(value, Tensor) and value.is_cuda for value in inputs)
    return on_cuda and not torch.is_grad_enabled() and any(_dtype(node) in HALF for node in graph.graph.nodes)


def rewrite(graph: GraphModule, dtypes: Sequence[torch.dtype] = HALF) -> int:
    """Rewrite a traced graph in place as the module's docstring says. What does not match stays as it is.

    Args:
        graph: A graph that Dynamo traced, with an example value for every node.
        dtypes: Dtypes of the results whose operations are fused.

    Returns:
        The number of fused operations.
    """
    original, fused = copy.deepcopy(graph.graph), 0
    for node in list(graph.graph.nodes):
        fused += _fuse_conv_relu(node, dtypes) or _fuse_linear_gelu(node, dtypes)
    for node in list(graph.graph.nodes):
        fused += _patches_to_linear(node, dtypes)
    if _autocasts_to_bfloat16(graph.graph):
        for node in list(graph.graph.nodes):
            _keep_bfloat16(node)
    if not _has_same_outputs(graph, original):
        graph.graph, fused = original, 0
    graph.graph.lint()
    graph.recompile()
    return fused


def _has_same_outputs(graph: GraphModule, original: Graph) -> bool:
    """Whether a rewritten graph runs, without data, and returns tensors of the same shapes, dtypes and strides."""
    values = [node.meta.get("example_value") for node in original.nodes if node.op == "placeholder"]
    before = [value.fake_mode for value in values if isinstance(value, FakeTensor)]
    expected = [_example(node) for node in next(n for n in original.nodes if n.op == "output").all_input_nodes]
    try:
        graph.graph.lint()
        with before[0]:
            found = [value for value in tree_leaves(Interpreter(graph).run(*values)) if isinstance(value, Tensor)]
    except Exception:  # an operation that cannot take what the rewritten ones return
        return False

    def layout(value: Tensor | None) -> Any:
        return None if value is None else (value.shape, value.dtype, value.stride())

    return [layout(value) for value in found] == [layout(value) for value in expected]


def _fuse_conv_relu(node: Node, dtypes: Sequence[torch.dtype]) -> bool:
    """Replace relu(norm(conv(x)) + other), with or without the norm and the sum, by one operation."""
    if node.target not in RELU or not node.args:
        return False
    source, user, other = _arguments(node)[0], node, None
    if source.target in ADD and _only_for(source, node) and len(source.args) == 2 and not source.kwargs:
        user, (source, other) = source, source.args
        if _find_conv(source, user) is None and user.target is not operator.iadd:  # += changes its first operand
            source, other = other, source
        if not isinstance(other, Node) or _shape(other) != _shape(user):
            return False
    conv = _find_conv(source, user)
    if conv is None or _dtype(conv) not in dtypes or _shape(conv) != _shape(node) or not _is_channels_last(node):
        return False
    if _is_mutated_between(conv, node, allowed=(user, node)):
        return False
    graph, dtype = node.graph, _dtype(conv)
    x, weight, bias, stride, padding, dilation, _ = _arguments(conv)
    with graph.inserting_before(node):
        if source is not conv:
            weight, bias = _fold(source, weight, bias)
        if _shape(x)[1] <= 4 and tuple(stride) == (2, 2) and tuple(dilation) == (1, 1):
            x, weight = _pixels_to_channels(conv, weight)
            stride, padding = (1, 1), (0, 0)
        tensors = [part and _to(part, dtype) for part in (x, weight, bias, other)]
        sizes = [list(size) for size in (stride, padding, dilation)]
        result = graph.call_function(torch.ops.maxup.conv_relu.default, (*tensors, *sizes))
    result.meta["example_value"] = node.meta["example_value"].to(dtype)
    node.replace_all_uses_with(result)
    for unused in dict.fromkeys((node, user, source, conv)):
        graph.erase_node(unused)
    return True


def _find_conv(node: Any, user: Node) -> Node | None:
    """Return the convolution behind `node` (itself, or the input of a BatchNorm), or None if another node uses it."""
    if not isinstance(node, Node) or not _only_for(node, user):
        return None
    arguments = _arguments(node)
    if node.target is F.batch_norm and user.target is not F.batch_norm and len(arguments) == 8:
        uses_running_statistics = arguments[1] and arguments[2] and not arguments[5]
        return _find_conv(arguments[0], node) if uses_running_statistics else None
    return node if _is_plain_conv(node) else None


def _is_plain_conv(node: Node) -> bool:
    """Whether a node is a convolution of a batch in one group, with all arguments positional and sizes as pairs."""
    arguments = _arguments(node)
    return (
        node.target is torch.conv2d
        and len(arguments) == 7
        and not node.kwargs
        and len(_shape(node) or ()) == 4
        and all(isinstance(size, tuple | list) and len(size) == 2 for size in arguments[3:6])
        and arguments[6] == 1
    )


def _fold(norm: Node, weight: Any, bias: Any) -> tuple[Node, Node]:
    """Return weight and bias of a convolution with the BatchNorm after it folded in."""
    graph, (_, mean, variance, gamma, beta, _, _, eps) = norm.graph, _arguments(norm)

    def call(function: Callable[..., Any], *args: Any) -> Node:
        return graph.call_function(function, args)

    scale = call(torch.rsqrt, call(torch.add, variance, eps))
    scale = call(torch.mul, scale, gamma) if gamma else scale
    mean = call(torch.sub, mean, bias) if bias else mean
    shift = call(torch.neg, call(torch.mul, mean, scale))
    return (
        call(torch.mul, weight, call(torch.reshape, scale, (-1, 1, 1, 1))),
        call(torch.add, shift, beta) if beta else shift,
    )


def _pixels_to_channels(conv: Node, weight: Node) -> tuple[Node, Node]:
    """Return input and weight of the convolution with stride 1 that is equal to a convolution with stride 2.

    Blocks of 2 x 2 pixels become channels, after padding the image, the kernel, and the channels to a multiple of 4.
    """
    x, _, _, _, padding, _, _ = _arguments(conv)
    (_, channels, *sides), kernel, out = _shape(x), _shape(_arguments(conv)[1])[2:], _shape(conv)[2:]
    more = -channels % 4
    even = [k + k % 2 for k in kernel]
    after = [2 * (o - 1) + k - side - p for o, k, side, p in zip(out, even, sides, padding, strict=True)]
    pads = (padding[1], after[1], padding[0], after[0], 0, more)
    kernel_pads = (0, even[1] - kernel[1], 0, even[0] - kernel[0], 0, more)

    def unshuffle(tensor: Node, pad: tuple[int, ...]) -> Node:
        padded = conv.graph.call_function(F.pad, (tensor, pad))
        return conv.graph.call_function(F.pixel_unshuffle, (padded, 2))

    return unshuffle(x, pads), unshuffle(weight, kernel_pads)


def _patches_to_linear(node: Node, dtypes: Sequence[torch.dtype]) -> bool:
    """Replace a convolution whose stride is its kernel size, such as the first layer of a ViT, by a linear layer."""
    if not _is_plain_conv(node) or _dtype(node) not in dtypes or not _is_channels_last(node):
        return False
    x, weight, bias, stride, padding, dilation, _ = _arguments(node)
    side = stride[0]
    patches = _shape(weight)[2:] == (side, side) == tuple(stride) and side >= 4 and tuple(padding) == (0, 0)
    if not patches or tuple(dilation) != (1, 1) or any(size % side for size in _shape(x)[2:]):
        return False
    graph, dtype = node.graph, _dtype(node)
    with graph.inserting_before(node):
        pixels = graph.call_function(F.pixel_unshuffle, (_to(x, dtype), side))
        pixels = graph.call_method("permute", (pixels, 0, 2, 3, 1))  # (B, H / side, W / side, C * side * side)
        rows = graph.call_method("flatten", (weight, 1))
        result = graph.call_function(F.linear, (pixels, *(part and _to(part, dtype) for part in (rows, bias))))
        result = graph.call_method("permute", (result, 0, 3, 1, 2))
    result.meta["example_value"] = node.meta["example_value"]
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    return True


def _fuse_linear_gelu(node: Node, dtypes: Sequence[torch.dtype]) -> bool:
    """Replace gelu(linear(x)) by one operation."""
    if node.target is not F.gelu or not node.args:
        return False
    linear, graph = _arguments(node)[0], node.graph
    dtype, has_bias = _dtype(linear), len(linear.args) == 3 and linear.args[2] is not None
    if linear.target is not F.linear or not has_bias or not _only_for(linear, node) or dtype not in dtypes:
        return False
    if _is_mutated_between(linear, node, allowed=(node,)):
        return False
    with graph.inserting_before(node):
        tensors = tuple(_to(part, dtype) for part in _arguments(linear))
        result = graph.call_function(torch.ops.maxup.linear_gelu.default, tensors)
    result.meta["example_value"] = node.meta["example_value"]
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    graph.erase_node(linear)
    return True


def _keep_bfloat16(node: Node) -> None:
    """Cast a sum of bfloat16 and float32, or a layer norm that autocast widens, back to bfloat16.

    A sum in place keeps its dtype, because other names may refer to the same tensor.
    """
    widened = node.op == "call_function" and _dtype(node) == torch.float32
    if not widened or any(user.op == "output" for user in node.users):
        return
    inputs = [_dtype(part) for part in node.all_input_nodes]
    is_sum = node.target in ADD and node.target is not operator.iadd and torch.bfloat16 in inputs
    if is_sum or node.target is F.layer_norm:
        users = list(node.users)
        with node.graph.inserting_after(node):
            cast = _to(node, torch.bfloat16)
        cast.meta["example_value"] = node.meta["example_value"].to(torch.bfloat16)
        for user in users:
            user.replace_input_with(node, cast)


def _arguments(node: Node) -> Any:
    """Return node.args, typed as Any."""
    return node.args


def _autocasts_to_bfloat16(graph: Graph) -> bool:
    """Whether bfloat16 autocast is enabled around the graph, and the graph does not change it."""
    changes = any("autocast" in str(node.target) for node in graph.nodes)
    enabled = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    return enabled and not changes


def _is_mutated_between(first: Node, last: Node, *, allowed: Sequence[Node]) -> bool:
    """Whether an operation after `first`, up to `last`, may change a tensor. Then, `first` cannot move to `last`."""
    node = first
    while node is not last:
        node = node.next
        name = str(getattr(node.target, "__name__", node.target))
        in_place = name.endswith("_") or name == "setitem" or (node.target in IN_PLACE) or node.kwargs.get("inplace")
        if node not in allowed and (in_place or "out" in node.kwargs):
            return True
    return False


def _is_channels_last(node: Node) -> bool:
    """Whether a result is in channels_last format, as the fused operations return it."""
    value = _example(node)
    return value is not None and value.is_contiguous(memory_format=torch.channels_last)


def _to(node: Node, dtype: torch.dtype | None) -> Node:
    return node.graph.call_method("to", (node, dtype))


def _only_for(node: Node, user: Node) -> bool:
    return list(node.users) == [user] and sum(part is node for part in user.args) == 1


def _example(node: Node) -> Tensor | None:
    """Return the tensor without data that Dynamo recorded for a node."""
    value = node.meta.get("example_value")
    return value if isinstance(value, Tensor) else None


def _dtype(node: Node) -> torch.dtype | None:
    value = _example(node)
    return None if value is None else value.dtype


def _shape(node: Node) -> Any:
    value = _example(node)
    return None if value is None else value.shape


_library = torch.library.Library("maxup", "FRAGMENT")
_library.define(
    "conv_relu(Tensor x, Tensor weight, Tensor? bias, Tensor? other, SymInt[] stride, SymInt[] padding, "
    "SymInt[] dilation) -> Tensor"
)
_library.define("linear_gelu(Tensor x, Tensor weight, Tensor bias) -> Tensor")


@torch.library.impl(_library, "conv_relu", "CUDA")
def _conv_relu_cuda(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None,
    stride: list[int], padding: list[int], dilation: list[int],
) -> Tensor:  # fmt: skip
    x, weight = (part.contiguous(memory_format=torch.channels_last) for part in (x, weight))
    if other is None:
        return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, 1)
    other = other.contiguous(memory_format=torch.channels_last)
    return torch.cudnn_convolution_add_relu(x, weight, other, 1.0, bias, stride, padding, dilation, 1)


@torch.library.impl(_library, "conv_relu", "CPU")
@torch.library.register_fake("maxup::conv_relu", lib=_library)
def _conv_relu(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None,
    stride: list[int], padding: list[int], dilation: list[int],
) -> Tensor:  # fmt: skip
    out = F.conv2d(x, weight, bias, stride, padding, dilation)
    return F.relu(out if other is None else out + other).contiguous(memory_format=torch.channels_last)


@torch.library.impl(_library, "linear_gelu", "CPU")
@torch.library.impl(_library, "linear_gelu", "CUDA")
@torch.library.register_fake("maxup::linear_gelu", lib=_library)
def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows = torch._addmm_activation(bias, x.flatten(0, -2), weight.t(), use_gelu=True)
    return rows.view(*x.shape[:-1], len(weight))

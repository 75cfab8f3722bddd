"""relu(norm(conv(x)) + other) in one pass over memory, for forward passes without a gradient in bfloat16 on a GPU.

Scoring copies, certifying and evaluating are such passes. Small channels (16, 32, 64) leave a library's convolution and
the pointwise work after it bound by memory traffic and by unused parts of matrix units; one kernel does both.
"""

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor, nn

TUNED = {16: (128, 4, 3), 32: (256, 8, 3), 64: (128, 4, 3)}  # by channels: pixels and warps of a program, stages
FOUND = find_spec("triton") is not None


def fits(x: Tensor, convs: Sequence[nn.Conv2d], norms: Sequence[nn.BatchNorm2d]) -> bool:
    """Whether the pass in which x arrives at such layers is one of these, and no hook waits for what they return."""
    return (
        FOUND
        and x.is_cuda
        and x.dtype is torch.bfloat16
        and not torch.is_grad_enabled()
        and x.shape[1] in TUNED
        and 0 < x.numel() < 2**31
        and not (x.shape[2] & (x.shape[2] - 1) or x.shape[3] & (x.shape[3] - 1))  # powers of two
        and all(n.num_features in TUNED and not n.training and n.running_mean is not None for n in norms)
        and not any(layer._forward_hooks or layer._forward_pre_hooks for layer in (*convs, *norms))
    )


def conv_norm_relu(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, other: Tensor | None = None) -> Tensor:
    """relu(norm(conv(x)) + other) with a 3x3 convolution and the running statistics."""
    return _op(
        x, conv.weight, norm.running_mean, norm.running_var, norm.weight, norm.bias, other, norm.eps, conv.stride[0]
    )


@torch.library.custom_op("maxup::conv_norm_relu", mutates_args=())
def _op(
    x: Tensor, weight: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor, beta: Tensor,
    other: Tensor | None, eps: float, stride: int,
) -> Tensor:  # fmt: skip
    from maxup.models.fused_kernel import convolve

    x = x.contiguous(memory_format=torch.channels_last)
    out = _empty(x, weight, stride)
    if other is not None:
        other = other.contiguous(memory_format=torch.channels_last)
    weight = weight.to(x.dtype)
    outputs, inputs = weight.shape[:2]
    pixels, (block, warps, stages) = out.numel() // outputs, TUNED[outputs]
    convolve[(-(-pixels // block),)](
        x, weight, mean, variance, gamma, beta, other, out, pixels, eps, *weight.stride(),
        height=x.shape[2], width=x.shape[3], stride=stride,
        n_in=inputs, n_out=outputs, add=other is not None,
        block=block, stages=stages, num_warps=warps,
    )  # fmt: skip
    return out


@_op.register_fake
def _(
    x: Tensor, weight: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor, beta: Tensor,
    other: Tensor | None, eps: float, stride: int,
) -> Tensor:  # fmt: skip
    return _empty(x, weight, stride)


def _empty(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    shape = (len(x), len(weight), x.shape[2] // stride, x.shape[3] // stride)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)

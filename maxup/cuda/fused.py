"""relu(norm(conv(x)) + other) in one pass over memory, for forward passes without a gradient in bfloat16 on a GPU.

Scoring copies, certifying and evaluating are such passes. Small channels (16, 32, 64) leave a library's convolution and
the pointwise work after it bound by memory traffic and by unused parts of matrix units; one kernel does both. It is
`fused.cu`, compiled for the sizes at hand when they first appear; where that fails, a warning says so, and the layers
run one by one.
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxup.errors import error_message

TUNED = {
    16: (16, 16, 4, 3),
    32: (32, 8, 4, 3),
    64: (32, 8, 8, 1),
}  # by channels of the result: channels and rows of a warp, warps of a block, blocks of a processor
FOUND = torch.version.cuda is not None
KERNELS: dict[tuple[int | None, str], Callable[..., None] | None] = {}  # by device and definitions
LOCK = Lock()
launches = 0  # of kernels, by this process


def fits(x: Tensor, convs: Sequence[nn.Conv2d], norms: Sequence[nn.BatchNorm2d]) -> bool:
    """Whether the pass in which x arrives at such layers is one of these, and no hook waits for what they return."""
    return (
        FOUND
        and isinstance(x, Tensor)  # not what torch.fx traces with
        and x.is_cuda
        and x.dtype is torch.bfloat16
        and not torch.is_grad_enabled()
        and all(map(_plain_conv, convs))
        and all(map(_plain_norm, norms))
        and x.shape[1] == convs[0].in_channels
        and 0 < x.numel() < 2**31
        and not any(layer._forward_hooks or layer._forward_pre_hooks for layer in (*convs, *norms))
    )


def _plain_conv(conv: nn.Module) -> bool:
    """Whether it is what the kernel computes: 3x3 with one pixel of zeros around, no bias, the channels it knows."""
    return (
        isinstance(conv, nn.Conv2d)
        and conv.kernel_size == (3, 3)
        and conv.stride in ((1, 1), (2, 2))
        and conv.padding == (1, 1)
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and conv.bias is None
        and conv.in_channels in TUNED
        and conv.out_channels in TUNED
    )


def _plain_norm(norm: nn.Module) -> bool:
    """Whether it is a BatchNorm that normalizes by statistics it has, then scales and shifts."""
    return isinstance(norm, nn.BatchNorm2d) and norm.affine and not norm.training and norm.running_mean is not None


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
    out = _empty(x, weight, stride)
    if other is not None and other.shape != out.shape:
        raise ValueError(f"what is added has shape {tuple(other.shape)}; the convolution's is {tuple(out.shape)}")
    (n_out, n_in), (height, width) = weight.shape[:2], x.shape[2:]
    outputs, rows, warps, blocks = TUNED[n_out]
    rows = max(r for r in range(1, max(rows // stride, 1) + 1) if out.shape[2] % r == 0)
    definitions = {
        "HEIGHT": height, "WIDTH": width, "N_IN": n_in, "N_OUT": n_out, "STRIDE": stride, "EPS": f"{eps!r}f",
        "ADD": int(other is not None), "FLOAT_WEIGHT": int(weight.dtype is not x.dtype),
        "OUTPUTS": outputs, "ROWS": rows, "WARPS": warps, "BLOCKS": blocks,
    }  # fmt: skip
    kernel = _kernel(x.device, "".join(f"#define {name} {value}\n" for name, value in definitions.items()))
    if kernel is None:
        plain = F.conv2d(x, weight.to(x.dtype), None, stride, 1)
        plain = F.batch_norm(plain, mean, variance, gamma, beta, False, 0.0, eps)
        return out.copy_(F.relu(plain if other is None else plain + other))
    columns, groups = len(x) * out.shape[3], n_out // outputs
    tasks = -(-columns // 8) * (out.shape[2] // rows)  # of a warp each
    room = torch.cuda.get_device_properties(x.device).multi_processor_count * blocks // groups
    x, weight = _aligned(x), _aligned(weight if weight.dtype is x.dtype else weight.float())
    other = x if other is None else _aligned(other.to(x.dtype))
    statistics = [tensor.float() for tensor in (mean, variance, gamma, beta)]
    with torch.cuda.device(x.device):
        kernel(
            grid=(max(min(-(-tasks // warps), room), 1), groups, 1),
            block=(32 * warps, 1, 1),
            args=[x, weight, *statistics, other, out, columns],
        )
    global launches
    launches += 1
    return out


@_op.register_fake
def _(
    x: Tensor, weight: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor, beta: Tensor,
    other: Tensor | None, eps: float, stride: int,
) -> Tensor:  # fmt: skip
    return _empty(x, weight, stride)


def _empty(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    shape = (len(x), len(weight), -(-x.shape[2] // stride), -(-x.shape[3] // stride))
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _aligned(tensor: Tensor) -> Tensor:
    """A tensor, channels last, that the kernel may read 16 bytes at a time."""
    tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def _kernel(device: torch.device, definitions: str) -> Callable[..., None] | None:
    """The kernel on a GPU, or None where there is none; if it cannot be compiled, `fits` says no from then on."""
    global FOUND
    key = device.index, definitions
    if device.type == "cuda" and key not in KERNELS:
        with LOCK, torch.cuda.device(device):
            if key not in KERNELS and not torch.cuda.is_current_stream_capturing():
                try:
                    KERNELS[key] = _compile(definitions)
                except Exception as error:
                    KERNELS[key], FOUND = None, False
                    why = error_message(error)
                    warnings.warn(f"layers run one by one, no kernel could be made for this GPU: {why}", stacklevel=2)
    return KERNELS.get(key)


def _compile(definitions: str) -> Callable[..., None]:
    if torch.cuda.get_device_capability() < (8, 0):
        raise RuntimeError("this GPU has no matrix products of bfloat16")
    from torch.utils import cpp_extension

    home = cpp_extension.CUDA_HOME
    cpp_extension.CUDA_HOME = home or ""  # a folder of headers must be named, though the kernel includes none
    try:
        source = Path(__file__).with_name("fused.cu").read_text(encoding="utf-8")
        return torch.cuda._compile_kernel(definitions + source, "conv_norm_relu")
    finally:
        cpp_extension.CUDA_HOME = home

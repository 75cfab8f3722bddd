"""relu(norm(conv(x)) + other) in one kernel, for bfloat16 forward passes without gradients on a GPU.

Scoring, certification and evaluation run such passes. With few channels (16, 32, 64), cuDNN's convolution and the
pointwise operations after it are limited by memory traffic and underused tensor cores. The kernel, `fused.cu`, is
compiled for each new size on first use. If that fails, a warning says why, and the layers run separately.
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
}  # output channels -> channels and rows per warp, warps per block, blocks per multiprocessor
FOUND = torch.version.cuda is not None  # whether the kernel can be used; False once compilation failed
KERNELS: dict[tuple[int | None, str], Callable[..., None] | None] = {}  # (device index, definitions) -> kernel
LOCK = Lock()
launches = 0  # number of kernel launches in this process


def is_supported(x: Tensor, convs: Sequence[nn.Conv2d], norms: Sequence[nn.BatchNorm2d]) -> bool:
    """Whether the kernel supports these layers and this input, and no hook needs intermediate outputs."""
    return (
        FOUND
        and isinstance(x, Tensor)  # not a torch.fx proxy
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
    """Whether the kernel supports the convolution: 3x3, zero padding of 1, no bias, a supported number of channels."""
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
    """Whether the layer is an affine BatchNorm that uses running statistics."""
    return isinstance(norm, nn.BatchNorm2d) and norm.affine and not norm.training and norm.running_mean is not None


def conv_norm_relu(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, other: Tensor | None = None) -> Tensor:
    """Return relu(norm(conv(x)) + other) for a 3x3 convolution and a BatchNorm with running statistics."""
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
        raise ValueError(f"other has shape {tuple(other.shape)}; it must have the output's shape {tuple(out.shape)}")
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
    tasks = -(-columns // 8) * (out.shape[2] // rows)  # one per warp
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
    """Return the tensor in channels_last format, aligned for reads of 16 bytes."""
    tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def _kernel(device: torch.device, definitions: str) -> Callable[..., None] | None:
    """Return the compiled kernel, or None. If compilation fails, `is_supported` returns False from then on."""
    global FOUND
    key = device.index, definitions
    if device.type == "cuda" and key not in KERNELS:
        with LOCK, torch.cuda.device(device):
            if key not in KERNELS and not torch.cuda.is_current_stream_capturing():
                try:
                    KERNELS[key] = _compile(definitions)
                except Exception as error:
                    KERNELS[key], FOUND = None, False
                    reason = error_message(error)
                    warnings.warn(
                        f"layers run separately, because the fused kernel could not be compiled: {reason}", stacklevel=2
                    )
    return KERNELS.get(key)


def _compile(definitions: str) -> Callable[..., None]:
    if torch.cuda.get_device_capability() < (8, 0):
        raise RuntimeError("this GPU has no bfloat16 tensor cores (compute capability 8.0 or higher)")
    from torch.utils import cpp_extension

    home = cpp_extension.CUDA_HOME
    cpp_extension.CUDA_HOME = home or ""  # torch needs an include folder, although the kernel includes nothing
    try:
        source = Path(__file__).with_name("fused.cu").read_text(encoding="utf-8")
        return torch.cuda._compile_kernel(definitions + source, "conv_norm_relu")
    finally:
        cpp_extension.CUDA_HOME = home

"""The Triton kernel of `maxup.models.fused`: a 3x3 convolution with what follows it, one pass over memory."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def convolve(
    x, weight, mean, variance, gamma, beta, other, out, pixels, eps,
    by_output, by_input, by_row, by_column,
    height: tl.constexpr, width: tl.constexpr, stride: tl.constexpr,
    n_in: tl.constexpr, n_out: tl.constexpr, add: tl.constexpr,
    block: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """A `block` of the `pixels` of the result; tensors are channels last, all sizes powers of two.

    The nine taps are a loop whose loads run so many `stages` ahead of the products.
    """
    rows: tl.constexpr = height // stride
    columns: tl.constexpr = width // stride
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    column, row, image = pixel % columns * stride, pixel // columns % rows * stride, pixel // (columns * rows)
    inputs, outputs = tl.arange(0, n_in), tl.arange(0, n_out)
    centre = x + (((image * height + row) * width + column) * n_in)[:, None] + inputs[None, :]
    filters = weight + inputs[:, None] * by_input + outputs[None, :] * by_output
    total = tl.zeros((block, n_out), tl.float32)
    for tap in tl.range(9, num_stages=stages):
        dy, dx = tap // 3 - 1, tap % 3 - 1
        h, w = row + dy, column + dx
        inside = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (pixel < pixels)
        seen = tl.load(centre + (dy * width + dx) * n_in, mask=inside[:, None], other=0.0)
        total = tl.dot(seen, tl.load(filters + (dy + 1) * by_row + (dx + 1) * by_column), total)
    scale = tl.load(gamma + outputs) * tl.rsqrt(tl.load(variance + outputs) + eps)
    shift = tl.load(beta + outputs) - tl.load(mean + outputs) * scale
    total = total * scale[None, :] + shift[None, :]
    there = pixel[:, None] * n_out + outputs[None, :]
    if add:
        total += tl.load(other + there, mask=pixel[:, None] < pixels, other=0.0).to(tl.float32)
    tl.store(out + there, tl.maximum(total, 0.0).to(out.dtype.element_ty), mask=pixel[:, None] < pixels)

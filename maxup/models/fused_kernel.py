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
    block: tl.constexpr, taps: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    """A `block` of the `pixels` of the result; tensors are channels last, all sizes powers of two.

    A product of matrices takes so many `taps`: 1, or 3 neighbours in a row, which lie side by side. `depth` is how
    many inputs they have, filled up to a power of two.
    """
    rows: tl.constexpr = height // stride
    columns: tl.constexpr = width // stride
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    column, row, image = pixel % columns, pixel // columns % rows, pixel // (columns * rows)
    outputs, inner = tl.arange(0, n_out), tl.arange(0, depth)
    total = tl.zeros((block, n_out), tl.float32)
    for part in tl.static_range(9 // taps):
        dy, first = part * taps // 3, part * taps % 3
        dx = first + inner // n_in  # of the neighbour that an input belongs to
        h, w = row * stride + dy - 1, column[:, None] * stride + dx[None, :] - 1
        used = inner < taps * n_in
        inside = ((h >= 0) & (h < height) & (pixel < pixels))[:, None] & (w >= 0) & (w < width) & used[None, :]
        at = ((image * height + h) * width + column * stride + first - 1) * n_in
        seen = tl.load(x + at[:, None] + inner[None, :], mask=inside, other=0.0)
        place = weight + dy * by_row + dx * by_column + inner % n_in * by_input
        filters = tl.load(place[:, None] + outputs[None, :] * by_output, mask=used[:, None], other=0.0)
        total = tl.dot(seen, filters, total)
    scale = tl.load(gamma + outputs) * tl.rsqrt(tl.load(variance + outputs) + eps)
    shift = tl.load(beta + outputs) - tl.load(mean + outputs) * scale
    total = total * scale[None, :] + shift[None, :]
    there = pixel[:, None] * n_out + outputs[None, :]
    if add:
        total += tl.load(other + there, mask=pixel[:, None] < pixels, other=0.0).to(tl.float32)
    tl.store(out + there, tl.maximum(total, 0.0).to(out.dtype.element_ty), mask=pixel[:, None] < pixels)

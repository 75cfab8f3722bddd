"""Plot of randomized smoothing on one image: noisy copies, class counts and the certified radius."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from maxup.lab.report.contact_sheet import show_pixels
from maxup.lab.report.figure import COLORS, STYLE, save_figure
from maxup.smoothing.smooth import Certificate

COPIES = 6


def picture(
    path: Path,
    x: Tensor,
    counts: Sequence[int],
    certificate: Certificate,
    *,
    sigma: float,
    label: int,
    classes: Sequence[str],
) -> None:
    """Draw noisy copies of an image, the class counts and the certified radius.

    Args:
        path: File to write. The suffix selects the format.
        x: The image, pixels in [0, 1], (C, H, W).
        counts: Number of noisy copies predicted as each class.
        certificate: The certificate of the image.
        sigma: Standard deviation of the noise.
        label: The true class.
        classes: Names of the classes.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    noise = torch.randn(COPIES, *x.shape, generator=torch.Generator().manual_seed(0))
    with rc_context(STYLE):
        figure = Figure(figsize=(8.4, 2.7), layout="constrained", facecolor="white")
        left, right = figure.subfigures(1, 2, width_ratios=[1.15, 1], squeeze=False)[0]
        panels = left.subplots(2, 1 + COPIES // 2, squeeze=False)
        show_pixels(panels[0, 0], x)
        panels[0, 0].set_title(f"image: {classes[label]}", fontsize=9)
        panels[1, 0].axis("off")
        for number, copy in enumerate(x.cpu() + sigma * noise):
            panel = panels[number // (COPIES // 2), 1 + number % (COPIES // 2)]
            show_pixels(panel, copy)
        panels[0, 2].set_title(f"with noise, sigma {sigma:g}", fontsize=9)
        axes, shown = right.subplots(), sorted(range(len(counts)), key=lambda c: -counts[c])[:10]
        share = [100 * counts[c] / max(1, sum(counts)) for c in shown]
        colors = [COLORS[3] if c == label and certificate.predict >= 0 else COLORS[0] for c in shown]
        axes.barh(range(len(shown)), share, color=colors)
        axes.set_yticks(range(len(shown)), [classes[c] for c in shown])
        axes.invert_yaxis()
        axes.set_axisbelow(True)
        axes.set(xlim=(0, 100), xlabel=f"predictions for {sum(counts):,} other noisy copies [%]")
        axes.grid(visible=False, axis="y")
        if certificate.predict < 0:
            text = "abstains: no class is certain to have more than half"
        else:
            verdict = "correct" if certificate.predict == label else "wrong"
            text = f"{classes[certificate.predict]} ({verdict}) within l2 radius {certificate.radius:.3f}"
        axes.set_title(f"smoothed: {text}\nfrom {certificate.samples:,} noisy copies", fontsize=9.5)
        save_figure(figure, path, dpi=160)

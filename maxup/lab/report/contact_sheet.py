"""Figure of the m copies of a few images with their losses. A frame marks the copy that MaxUp trains on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor, nn

from maxup.errors import RunError
from maxup.isolation import preserve_state
from maxup.lab.recipes.build import build_perturbation
from maxup.lab.recipes.resolve import override_objective, resolve_objective
from maxup.lab.report.figure import save_figure
from maxup.objectives.maxup import MaxUp
from maxup.perturb.in_model import in_model_parts
from maxup.perturb.labels import entropy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from maxup.lab.train.runs import Run

INK, SOFT, FRAME = "#1d2530", "#5b6775", "#d1495b"


@dataclass(frozen=True)
class Copies:
    """The copies that MaxUp scored, and the ones it selected."""

    x: Tensor
    """All copies, (m, B, C, H, W)."""
    scores: Tensor
    """Their scores, (m, B): the losses, minus the entropy of mixed labels with score="kl"."""
    winner: Tensor
    """Index of the selected copy per example, (B,)."""
    score: str = "loss"
    """Name of the scores."""

    def only(self, examples: Tensor, *, scale: Tensor, shift: Tensor) -> "Copies":
        """Return some of the examples, with pixels x * scale + shift."""
        x = self.x[:, examples] * scale + shift
        return replace(self, x=x, scores=self.scores[:, examples], winner=self.winner[examples])


def copies_of_run(run: "Run", m: int, *, batch: int, images: int) -> tuple[Tensor, Copies, list[str]]:
    """Draw and score the copies of some training images of a run, as in training.

    Args:
        run: A run on images whose recipe has perturbations.
        m: Copies per image, 2 or more.
        batch: Index of the batch that the images are from.
        images: Number of images. They are of different classes as far as possible.

    Returns:
        The images, (B, C, H, W), and their copies, both with pixels in [0, 1], and the class name per image.
    """
    task = run.task
    if len(task.train.shape) != 3 or task.train.shape[0] not in (1, 3):
        raise RunError(f"examples of shape {task.train.shape} cannot be shown as images, which have 1 or 3 channels")
    if not 0 <= batch < len(task.loader):
        raise RunError(f"there is no batch {batch}: an epoch has batches 0 to {len(task.loader) - 1}")
    _, x, y = next(islice(iter(task.loader), batch, None))
    x = task.prepare(x)
    if task.augment is not None:
        x, y = task.augment(x, y, generator=task.generator)
    settings: dict[str, Any] = resolve_objective(override_objective(run.recipe.objective, {"name": "maxup"}))
    scoring = {key: settings[key] for key in ("norm", "chunk_size", "score")}
    perturbation = build_perturbation(run.recipe.perturb, len(task.train.classes), **task.pixels)
    maxup = MaxUp(perturbation, m=m, generator=task.objective.generator, **scoring)
    copies = draw_copies(maxup, run.model.train(), x, y)
    classes = y if y.ndim == 1 else y.argmax(1)  # (B,)
    chosen = different(classes, images)
    mean, std = torch.tensor([*task.pixels.values()], device=x.device)[:, :, None, None]  # (C, 1, 1) each
    shown = copies.only(chosen, scale=std, shift=mean)
    return x[chosen] * std + mean, shown, [task.train.classes[int(c)] for c in classes[chosen]]


def different(classes: Tensor, n: int) -> Tensor:
    """Return the indices of n examples, one of each class first."""
    seen: set[int] = set()
    new, again = list[int](), list[int]()
    for i, c in enumerate(classes.tolist()):
        (again if c in seen else new).append(i)
        seen.add(c)
    return torch.tensor((new + again)[:n], device=classes.device)


def draw_copies(maxup: MaxUp, model: nn.Module, x: Tensor, y: Tensor) -> Copies:
    """Let MaxUp select among m copies, and draw all copies again from the same state of its generator.

    The model is unchanged. The objective has made one step.
    """
    if in_model_parts(maxup.perturbation):
        raise ValueError("this perturbation acts inside the model, so its copies cannot be shown as images")
    if maxup.generator is None:
        raise ValueError("draw_copies draws the copies twice, so it needs MaxUp(..., generator=...)")
    m, again = maxup.copies(), Generator(x.device)
    again.set_state(maxup.generator.get_state())
    with torch.no_grad(), preserve_state(model, (x, y), norm=maxup.norm):
        worst = maxup.run(model, x, y).worst
    if worst is None or worst.copy is None:
        raise ValueError("with m = 1 there is nothing to select; use m = 2 or more")
    batches = [maxup.perturbation.apply((x, y), maxup.perturbation.draw((x, y), again)) for _ in range(m)]
    scores = torch.stack(worst.losses)  # (m, B)
    if maxup.score == "kl" and batches[0][1].is_floating_point():
        scores = scores - torch.stack([entropy(target) for _, target in batches])
    name = "KL" if maxup.score == "kl" else "loss"
    return Copies(torch.stack([copy for copy, _ in batches]), scores, worst.copy, name)


def contact_sheet(path: Path, originals: Tensor, copies: Copies, *, names: Sequence[str], title: str) -> None:
    """Draw one column per image: the image at the top, its copies below, and a frame around the selected copy.

    Args:
        path: File to write. The suffix selects the format.
        originals: The images, pixels in [0, 1], (B, C, H, W).
        copies: Their copies, with pixels in [0, 1].
        names: Class name per image.
        title: Text above the images.
    """
    from matplotlib.figure import Figure

    m, n = copies.scores.shape
    cell, gap, left = 0.92, 0.2, 0.68  # inches: an image with its margin, the score below it, the names on the left
    width = left + cell * n
    title = fill(title, int(13 * width))
    top = 0.34 + 0.16 * len(title.splitlines())
    height = top + cell + m * (cell + gap) + 0.04
    figure = Figure(figsize=(width, height), facecolor="white")

    def write(x: float, y: float, text: str, **style: Any) -> None:
        figure.text(x / width, 1 - y / height, text, **{"fontsize": 9, "color": SOFT, "va": "center", **style})

    write(width / 2, 0.08, title, ha="center", va="top", fontsize=9.5, color=INK)
    for row in range(m + 1):
        y = top + cell * row + gap * max(0, row - 1)
        write(0.08, y + cell / 2, f"copy {row}" if row else "image")
        if row:
            write(0.08, y + cell + 0.05, copies.score, fontsize=8)
        for column in range(n):
            x = left + cell * column
            panel = figure.add_axes((x / width, 1 - (y + cell - 0.06) / height, 0.84 / width, 0.84 / height))
            show_pixels(panel, copies.x[row - 1, column] if row else originals[column])
            if not row:
                write(x + 0.42, y - 0.03, names[column], ha="center", color=INK)
                continue
            won = int(copies.winner[column]) == row - 1
            style: Any = {"color": FRAME, "weight": "bold"} if won else {}
            number = f"{float(copies.scores[row - 1, column]):#.2g}".rstrip(".")
            write(x + 0.42, y + cell + 0.05, number, ha="center", **style)
            if won:
                panel.spines[:].set(visible=True, color=FRAME, linewidth=3)
    save_figure(figure, path, dpi=200)


def show_pixels(panel: "Axes", pixels: Tensor) -> None:
    """Show an image, (C, H, W) with pixels in [0, 1], without axes."""
    shown = pixels.detach().float().cpu().clamp(0, 1)
    gray = len(shown) == 1
    shown = shown[0] if gray else shown[:3].permute(1, 2, 0)  # (H, W) or (H, W, 3)
    panel.imshow(shown.numpy(), cmap="gray" if gray else None, vmin=0, vmax=1, interpolation="nearest")
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(False)

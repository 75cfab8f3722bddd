"""Measure the robustness of a run: accuracy and calibration on clean, corrupted and attacked test images."""

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from maxup.errors import RunError
from maxup.lab.data.images import evenly_spaced
from maxup.lab.environment import environment
from maxup.lab.progress import Progress
from maxup.lab.robustness.calibration import Calibration
from maxup.lab.robustness.corruptions import CORRUPTIONS
from maxup.lab.storage.atomic_io import read_json, write_json
from maxup.lab.train.runs import Run
from maxup.objectives.adversarial import Adversarial
from maxup.rng import make_generator

RADII = (0.02, 0.05, 0.1, 0.25, 0.5)  # of the attack, l2, for pixels in [0, 1]
STEPS = 10  # gradient steps of the attack
Levels = list[dict[str, float]]  # "level", and its metrics


def measure(run: Run, *, images: int | None = None, attack: bool = True, quiet: bool = False) -> dict[str, Any]:
    """Measure accuracy, negative log-likelihood and expected calibration error of a run on test images.

    Corruptions and the starting points of the attack depend only on the index of an image. They are the same for all
    models, batch sizes and numbers of images.

    Args:
        run: An image run.
        images: Use at most this many test images, evenly spaced. Default: all.
        attack: Whether to attack the images, which takes most of the time.
        quiet: Show no progress.

    Returns:
        The metrics of "clean" images, of each of the "corruptions" by level, their mean as "corrupted", those of "pgd"
        by level if there is an attack, and the number of "images".
    """
    task, data = run.task, run.task.test
    check_images(data)
    device = task.generator.device
    chosen = torch.tensor(evenly_spaced(len(data), images))
    loader = data.subset(chosen).loader(run.recipe.batch_size, training=False, seed=0, device=device)
    chosen = chosen.to(device)

    def forward(model: Any, pixels: Tensor) -> Tensor:
        logits: Tensor = model(task.prepare(pixels * data.top))
        return logits

    radii = RADII if attack else ()
    attacks = {
        radius: Adversarial(radius, steps=STEPS, clip=(0, 1), norm="running", forward=forward) for radius in radii
    }
    cells = [(name, level) for name, kind in CORRUPTIONS.items() for level in kind.levels]
    found = {cell: Calibration(device) for cell in [("clean", 0.0), *cells, *(("pgd", radius) for radius in radii)]}
    passes = 1 + len(cells) + (STEPS + 1) * len(radii)
    with Progress(passes * len(loader), quiet=quiet) as progress:

        def update(cell: tuple[str, float], x: Tensor, y: Tensor, passes: int = 1) -> None:
            with torch.no_grad():
                found[cell].update(forward(run.model, x), y)
            done = progress.done = progress.done + passes
            if progress.due():
                progress.show(done, f"robustness: {cell[0]}", run.recipe.batch_size, "images")

        for number, (rows, x, y) in enumerate(loader):
            x, indices = _pixels(x, data.top), chosen[rows]
            if number == 0 and attack:
                _check_differentiable(lambda pixels: forward(run.model, pixels), x)
            update(("clean", 0.0), x, y)
            for name, level in cells:
                update((name, level), CORRUPTIONS[name].apply(x, level, indices), y)
            for radius, pgd in attacks.items():
                moved, _ = pgd.attack(run.model, (x, y), starting_points(pgd, x, y, indices))
                update(("pgd", radius), moved, y, STEPS + 1)
    count = int(found["clean", 0.0].count.sum())  # without files that cannot be read
    if not count:
        example = data.path(int(chosen[0]))
        raise RunError(
            f"none of the {len(chosen)} test images can be read, such as {example}; fix them, or use more --images"
        )
    metrics = {cell: {"level": cell[1]} | one.metrics() for cell, one in found.items()}
    kinds = {name: [metrics[name, level] for level in kind.levels] for name, kind in CORRUPTIONS.items()}
    found_pgd = {"p": 2, "steps": STEPS, "levels": [metrics["pgd", radius] for radius in radii]}
    return {
        "images": count,
        "clean": found["clean", 0.0].metrics(),
        "corrupted": average([one for levels in kinds.values() for one in levels]),
        "corruptions": kinds,
        **({"pgd": found_pgd} if attack else {}),
    }


def check_images(data: Any) -> None:
    """Raise a RunError if these examples are not images."""
    if len(data.shape) != 3:
        raise RunError(
            f"robustness is measured on images, but the examples have shape {tuple(data.shape)}; use an image run"
        )


def average(levels: Levels) -> dict[str, float]:
    """Return the mean of each metric over levels.

    Example:
        >>> average([{"level": 1, "ece": 0.25}, {"level": 2, "ece": 0.75}])
        {'ece': 0.5}
    """
    return {name: mean(one[name] for one in levels) for name in levels[0] if name != "level"}


def save(found: dict[str, Any], folder: Path, *, checkpoint: str, step: int) -> tuple[Path, bool]:
    """Write robustness.json, or robustness-best.json, to the folder of a run.

    Returns:
        The path, and whether the file was written. It is unchanged if it has more images of the same step.
    """
    path = folder / ("robustness.json" if checkpoint == "last" else f"robustness-{checkpoint}.json")
    try:
        match read_json(path):
            case {"step": int(before), "images": int(images)} if before == step and images > found["images"]:
                return path, False
    except (OSError, ValueError):
        pass
    about = {"format": "maxup-robustness", "version": 1, "checkpoint": checkpoint, "step": step}
    write_json(path, about | found | {"environment": environment()})
    return path, True


def _pixels(x: Tensor, top: int) -> Tensor:
    """Return images in [0, 1]."""
    if x.is_floating_point():
        low, high = (float(value) for value in x.aminmax())
        if not 0 <= low <= high <= 1:
            raise RunError(f"robustness needs pixels in [0, 1], but they are from {low:.3g} to {high:.3g}; scale them")
    return x.float() / top


def _check_differentiable(network: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Raise if the network has no gradient with respect to its pixels, which the attack needs."""
    with torch.enable_grad():
        pixels = x[:1].clone().requires_grad_()
        logits = network(pixels)
        if logits.requires_grad and torch.autograd.grad(logits.sum(), pixels, allow_unused=True)[0] is not None:
            return
    raise RunError(
        "the attack of --robustness needs gradients with respect to the pixels, but the network's logits do not have "
        "them; remove torch.no_grad() and .detach() from its forward"
    )


def starting_points(attack: Adversarial, x: Tensor, y: Tensor, indices: Tensor) -> list[Tensor]:
    """Return the starting points of an attack, one tensor (B, C, H, W). Each depends only on the image's index."""
    pairs = zip(x.cpu().split(1), y.cpu().split(1), indices.tolist(), strict=True)
    drawn = [attack.perturbation.draw((a, b), make_generator("attack", i)) for a, b, i in pairs]
    return [torch.cat([start for (start,) in drawn]).to(x.device)]

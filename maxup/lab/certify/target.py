"""What is certified: a run's network, an exported one or the user's own, all taking pixels, with the images for it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, autocast, nn

from maxup.errors import RunError, format_error
from maxup.lab.data.images import Images
from maxup.lab.models.normalize import Normalized
from maxup.lab.recipes.schema import Recipe, noise_of
from maxup.lab.tasks.vision import load_splits
from maxup.lab.user_code import raised_in_user_code


@dataclass
class Target:
    """A network with the images it is certified on."""

    name: str
    model: nn.Module
    """Takes pixels in [0, 1], (B, C, H, W); in evaluation mode."""
    images: Images
    sigma: float | None = None
    """Of the noise on pixels it was trained with, where known."""
    step: int | None = None
    """Of the checkpoint it was opened from, if it is a run."""

    def pixels(self, indices: list[int]) -> Tensor:
        """Some of the images, (B, C, H, W) in [0, 1]."""
        return self.images.x[indices].float() / self.images.top


def of_folder(folder: Path, which: str = "last", *, root: str | None = None, **own: Any) -> Target:
    """From the folder of a run, or of a model that `maxup export` wrote.

    `root` is where its data are now, if not where the recipe says; `own` are `model_from` and `data_from` of a run
    trained with them.
    """
    from maxup.lab.models.export import CONFIG, load
    from maxup.lab.train.runs import open_run

    if (folder / CONFIG).is_file():
        from maxup.errors import RecipeError
        from maxup.lab.recipes.load import recipe_from

        model = load(folder, own.get("model_from"))
        try:
            recipe = recipe_from(model.config["recipe"])  # type: ignore[index, arg-type]
        except RecipeError as error:
            raise RunError(f"the recipe in {folder / CONFIG} is invalid: {error}") from None
        if recipe.task != "vision":
            raise RunError(f"{folder} holds a language model; certificates are of images")
        recipe.data.root = root or recipe.data.root
        return _target(str(folder), model, recipe, load_splits(recipe, own.get("data_from"))[2])
    run = open_run(folder, which, task="vision", root=root, **own)
    return replace(_target(str(folder), run.model, run.recipe, run.task.test), step=run.step)


def of_module(name: str, build: Callable[[], Any], images: Images) -> Target:
    """A user's own network, which takes pixels."""
    model = build()
    if not isinstance(model, nn.Module):
        raise RunError(f"--module {name} returned a {type(model).__name__}; it must return a torch.nn.Module")
    return Target(name, model.eval(), images)


def digest(model: nn.Module, images: Images) -> tuple[str, str]:
    """SHA-256 of a network, its structure and its weights; and of images with their labels.

    Example:
        >>> from maxup.lab.data import load_data
        >>> images, _ = load_data("digits")
        >>> [len(one) for one in digest(nn.Linear(2, 2), images)]
        [64, 64]
    """
    network = hashlib.sha256(repr(model).encode())
    for name, tensor in sorted(model.state_dict().items()):
        network.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        network.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return network.hexdigest(), images.digest


@torch.no_grad()
def answers(model: nn.Module, images: Images, device: torch.device, dtype: torch.dtype = torch.float32) -> list[float]:
    """A network's first logits for two images of seeded noise, which tell forward passes of the same weights apart.

    They are compared to one part in a hundred, so that devices and versions may round as they like; `dtype` is only for
    networks whose weights are not float32.

    Example:
        >>> from maxup.lab.data import load_data
        >>> images, _ = load_data("digits")
        >>> len(answers(nn.Flatten(), images, torch.device("cpu")))
        20
    """
    x = torch.rand(2, *images.shape, generator=torch.Generator().manual_seed(0)).to(device)
    half = dtype != torch.float32 and any(p.dtype != torch.float32 for p in model.parameters())
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            autocast(device.type, dtype, enabled=half),
        ):
            torch.manual_seed(0)  # of networks that draw noise themselves
            logits = model.to(device)(x)
    except Exception as error:  # of whatever type: it may be others' code
        if raised_in_user_code(error) or isinstance(error, torch.OutOfMemoryError):
            raise
        seen = f"the network, for images of shape {tuple(x.shape)} in float32,"
        raise ValueError(
            f"{seen} raised {format_error(error)}; it must take pixels, and have weights of --dtype"
        ) from error
    if not isinstance(logits, Tensor):
        return []  # certifying says what is wrong with it
    return [float(f"{value:.4g}") for value in logits.flatten()[:20].float().nan_to_num().tolist()]


def _target(name: str, model: nn.Module, recipe: Recipe, images: Any) -> Target:
    if not isinstance(images, Images) or not len(images):
        raise RunError(f"{name} has no test images in memory to certify on; give some with --data or --data_from")
    if not recipe.model.normalize:  # certificates are in units of pixels
        model = Normalized(model, images.mean, images.std).to(next(iter(model.parameters())).device)
    return Target(name, model.eval(), images, noise_of(recipe))

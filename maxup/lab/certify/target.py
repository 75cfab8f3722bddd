"""What is certified: the network of a run, an exported network or your network, with its test images."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, autocast, nn

from maxup.errors import RecipeError, RunError, a_type, format_error
from maxup.lab.data.images import Images
from maxup.lab.models import export
from maxup.lab.models.normalize import Normalized
from maxup.lab.output import say
from maxup.lab.recipes.load import recipe_from
from maxup.lab.recipes.schema import Recipe, gaussian_sigma
from maxup.lab.tasks.splits import load_splits
from maxup.lab.train.runs import open_run
from maxup.lab.user_code import raised_in_user_code
from maxup.rng import process_rank


@dataclass
class Target:
    """A network and the images that it is certified on."""

    name: str
    model: nn.Module
    """Takes pixels in [0, 1], (B, C, H, W). It is in evaluation mode."""
    images: Images
    sigma: float | None = None
    """Standard deviation of the noise on pixels that it was trained with, if known."""
    step: int | None = None
    """Step of the checkpoint, for a run."""

    def pixels(self, indices: list[int]) -> Tensor:
        """Return images by index, (B, C, H, W) in [0, 1]."""
        return self.images.x[indices].float() / self.images.top


def load_target(folder: Path, which: str = "last", *, root: str | None = None, **user_code: Any) -> Target:
    """Load the folder of a run, or of a model that `maxup export` wrote.

    Args:
        folder: The folder of the run or of the model.
        which: Checkpoint of a run: "last" or "best".
        root: Folder of the data, if it is not the recipe's.
        user_code: `model_from` and `data_from`, for a run that was trained with them.
    """
    if (folder / export.CONFIG).is_file():
        model = export.load(folder, user_code.get("model_from"))
        try:
            recipe = recipe_from(model.config["recipe"])  # type: ignore[index, arg-type]
        except RecipeError as error:
            raise RunError(f"the recipe in {folder / export.CONFIG} is invalid: {error}") from None
        if recipe.task != "vision":
            raise RunError(f"{folder} holds a language model, but only image classifiers can be certified")
        recipe.data.root = root or recipe.data.root
        return _target(str(folder), model, recipe, load_splits(recipe, user_code.get("data_from"))[2])
    run = open_run(folder, which, task="vision", root=root, **user_code)
    return replace(_target(str(folder), run.model, run.recipe, run.task.test), step=run.step)


def target_from_module(name: str, build: Callable[[], Any], data: Any, data_name: str) -> Target:
    """Build your network, which takes pixels.

    Args:
        name: The name of the function, for messages.
        build: Returns the network.
        data: Training and test images, as returned by `load_data` and `from_user`.
        data_name: The name of the data, for messages.
    """
    train, *_, test = data if isinstance(data, tuple) else (None, None)
    images = train if test is None else test
    if not isinstance(images, Images) or not len(images):
        raise RunError(f"{data_name} has no test images in memory; choose other data")
    _check_pixels(images, data_name)
    if test is None and process_rank() == 0:
        say(f"{data_name} has no test split, so training images are certified too")
    model = build()
    if not isinstance(model, nn.Module):
        raise RunError(f"--module {name} returned {a_type(model)}; it must return a torch.nn.Module")
    return Target(name, model.eval(), images)


def digest(model: nn.Module, images: Images) -> tuple[str, str]:
    """Return the SHA-256 of a network (structure and weights) and of images with their labels."""
    # Version 0.1 named the class Normalised; its certificates stay valid.
    network = hashlib.sha256(repr(model).replace("Normalized(", "Normalised(").encode())
    for name, tensor in sorted(model.state_dict().items()):
        network.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        network.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return network.hexdigest(), images.digest


@torch.no_grad()
def probe_logits(
    model: nn.Module, images: Images, device: torch.device, dtype: torch.dtype = torch.float32
) -> list[float]:
    """Return the first logits of a network for two images of seeded noise.

    They detect a different forward pass with the same weights. They are compared to 1 %, because devices and versions
    round differently. `dtype` matters only if the weights are not float32.
    """
    x = torch.rand(2, *images.shape, generator=torch.Generator().manual_seed(0)).to(device)
    half = dtype != torch.float32 and any(p.dtype != torch.float32 for p in model.parameters())
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            autocast(device.type, dtype, enabled=half),
        ):
            torch.manual_seed(0)  # for networks that draw noise
            logits = model.to(device)(x)
    except Exception as error:  # any type: it may come from user code
        if raised_in_user_code(error) or isinstance(error, torch.OutOfMemoryError):
            raise
        raise ValueError(
            f"for float32 images of shape {tuple(x.shape)} the network raised {format_error(error)}; it must "
            "accept images in [0, 1], and its weights must match --dtype"
        ) from error
    if not isinstance(logits, Tensor):
        return []  # certification reports the problem
    return [float(f"{value:.4g}") for value in logits.flatten()[:20].float().nan_to_num().tolist()]


def check_certifiable(images: Any, name: str) -> None:
    """Raise a RunError if these test images, of the run or data `name`, cannot be certified."""
    if not isinstance(images, Images) or not len(images):
        raise RunError(f"{name} has no test images in memory to certify on; give images with --data or --data_from")
    _check_pixels(images, name)


def _target(name: str, model: nn.Module, recipe: Recipe, images: Any) -> Target:
    check_certifiable(images, name)
    if not recipe.model.normalize:  # certified radii are in units of pixels
        model = Normalized(model, images.mean, images.std).to(next(iter(model.parameters())).device)
    return Target(name, model.eval(), images, gaussian_sigma(recipe))


def _check_pixels(images: Images, name: str) -> None:
    """Raise a RunError if examples are not images with pixels in [0, 1], the unit of a certified radius."""
    if len(images.shape) != 3:
        raise RunError(f"{name} has examples of shape {images.shape}, but only images can be certified; use images")
    if images.x.is_floating_point() and not 0 <= float(images.x.min()) <= float(images.x.max()) <= 1:
        low, high = float(images.x.min()), float(images.x.max())
        raise RunError(
            f"{name} has pixels from {low:.3g} to {high:.3g}, but certification needs pixels in [0, 1]; scale them"
        )

"""What to measure: a network, batches, a loss and a perturbation."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_map

from maxup.batch import Batch, batch_size, leaves
from maxup.diagnostics.inputs import make_inputs
from maxup.errors import DataError, RecipeError, error_message
from maxup.lab.data import load_data
from maxup.lab.data.images import Images
from maxup.lab.data.user_data import from_user
from maxup.lab.models import create_model
from maxup.lab.models.count import count_parameters
from maxup.lab.recipes.build import build_perturbation
from maxup.lab.recipes.document import check_document, parse_yaml
from maxup.lab.tasks.network import check_module, check_signature
from maxup.losses import cross_entropy
from maxup.objectives.base import Forward, LossFn, call_model
from maxup.perturb.in_model import in_model_parts
from maxup.perturb.noise import Gaussian

RANDOM = 4  # different batches of random data, which stay on the device


@dataclass
class Workload:
    """A network and how it is trained.

    Args:
        name: Name of the network, for tables.
        model: The network, on its device.
        batches: Returns the batch with a number, on the device. Numbers repeat after some batches.
        perturbation: P(.|x).
        device: Device of the network and the batches.
        data: Where the batches come from, for tables.
        loss_fn: Loss per example.
        forward: How to call the network.
        precision: "no", or "bf16" for autocast.
    """

    name: str
    model: nn.Module
    batches: Callable[[int], Batch]
    perturbation: Any
    device: torch.device
    data: str
    loss_fn: LossFn = cross_entropy
    forward: Forward = call_model
    precision: str = "no"

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of the forward passes."""
        bf16 = self.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext()

    def generator(self) -> Generator:
        """Return a new generator for draws."""
        return Generator(self.device).manual_seed(0)

    def describe(self) -> dict[str, Any]:
        """Return what identifies the workload in a result file."""
        first = self.batches(0)
        return {
            "network": self.name,
            "parameters": count_parameters(self.model),
            "perturbation": repr(self.perturbation),
            "data": self.data,
            "batch_size": batch_size(first),
            "input": [list(leaf.shape[1:]) for leaf in leaves((first[0], None))],
            "precision": self.precision,
        }


def from_network(
    name: str | None,
    *,
    model_from: Callable[..., nn.Module] | None = None,
    images: Images | None = None,
    data: str = "random",
    shape: Sequence[int] = (3, 32, 32),
    num_classes: int = 10,
    batch_size: int,
    perturb: Sequence[Any] | None = None,
    device: torch.device,
    precision: str = "no",
) -> Workload:
    """Make a workload from a network by name, or from the user's, and from images or random data.

    Args:
        name: Name of a network, for `create_model` or, with `model_from`, for tables.
        model_from: Builds the network: (shape, num_classes).
        images: The training images. They determine the shape and the number of classes.
        data: Name of the images.
        shape: Shape of an example of random data.
        num_classes: Number of classes of random data.
        batch_size: Examples per batch.
        perturb: List of `{name: ..., arguments}`. Default: Cutout of half the side, or Gaussian noise if `shape` is not
            that of an image.
        device: Device of the network and the batches.
        precision: "no" or "bf16".
    """
    if images is not None:
        shape, num_classes = images.shape, len(images.classes)
    shape = tuple(shape)
    if model_from is not None:
        check_signature(model_from, {})
    create = model_from or partial(create_model, name or "")
    model = check_module(create(shape=shape, num_classes=num_classes))
    channels_last = device.type == "cuda" and len(shape) == 3
    model.train().to(device)
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # in place
    pixels = {} if images is None else {"mean": images.mean, "std": images.std}
    if perturb is None:
        perturb = [{"name": "cutout", "length": max(shape[1] // 2, 1)}] if len(shape) == 3 else []
    perturbation = build_perturbation(list(perturb), num_classes, **pixels) if perturb else Gaussian(0.1)
    for part in in_model_parts(perturbation):
        part.attach(model)
    source = _random_batches(shape, num_classes, batch_size) if images is None else _image_batches(images, batch_size)
    layout = torch.channels_last if channels_last else torch.preserve_format

    @lru_cache(RANDOM)
    def batches(number: int) -> Batch:
        x, y = source(number)
        return x.to(device, memory_format=layout), y.to(device)

    count = RANDOM if images is None else len(images) // batch_size
    return Workload(
        name or "model", model, lambda number: batches(number % count), perturbation, device, data, precision=precision
    )


def from_setup(name: str, returned: Any, *, device: torch.device, precision: str = "no") -> Workload:
    """Make a workload from what the user's function returned, see `make_inputs`."""
    inputs = make_inputs(returned)
    batch = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, inputs.batch)
    return Workload(
        name, inputs.model.to(device), lambda number: batch, inputs.perturbation, device, "one batch of the function",
        loss_fn=inputs.loss_fn, forward=inputs.forward, precision=precision,
    )  # fmt: skip


def parse_perturb(text: str) -> list[Any]:
    """Return the list of perturbations in an option: a list, one of them, or only a name.

    Example:
        >>> parse_perturb("cutmix"), parse_perturb("{name: cutout, length: 8}")
        ([{'name': 'cutmix'}], [{'name': 'cutout', 'length': 8}])
    """
    try:
        document = parse_yaml(text)
    except RecipeError:
        raise
    except Exception as error:  # of any type, see `read_yaml`
        raise RecipeError(f"--perturb cannot be read as YAML: {error_message(error)}") from None
    check_document(document)
    specs = document if isinstance(document, list) else [document]
    specs = [{"name": spec} if isinstance(spec, str) else spec for spec in specs]
    if not specs or not all(isinstance(spec, dict) and "name" in spec for spec in specs):
        raise RecipeError(
            f"--perturb must be a name or a list such as '[{{name: cutout, length: 16}}]', but is {text!r:.60}"
        )
    return specs


def load_images(name: str | None, root: str | None, data_from: Callable[[], Any] | None) -> Images | None:
    """Return the training images of a data set or of the user's function, or None if neither is given."""
    if data_from is None and name is None:
        return None
    loaded = from_user(data_from()) if data_from is not None else load_data(str(name), root)
    images = loaded[0] if isinstance(loaded, tuple) else loaded
    if not isinstance(images, Images):
        what = "the data of --data_from" if data_from is not None else name
        raise DataError(f"{what} is not a set of images in memory; use another data set, or fewer images")
    return images


def _random_batches(shape: Sequence[int], num_classes: int, size: int) -> Callable[[int], Batch]:
    def batch(number: int) -> Batch:
        g = Generator().manual_seed(number)
        return torch.randn(size, *shape, generator=g), torch.randint(num_classes, (size,), generator=g)

    return batch


def _image_batches(images: Images, size: int) -> Callable[[int], Batch]:
    if len(images) < size:
        raise DataError(f"a batch has {size} images, but the data has {len(images)}; use a smaller --batch_size")
    order = torch.randperm(len(images), generator=Generator().manual_seed(0))

    def batch(number: int) -> Batch:
        rows = order[size * number :][:size]
        return images.normalize(images.x[rows]), images.y[rows]

    return batch

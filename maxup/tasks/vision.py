"""Image classification: what a recipe builds, what a step does, what is measured."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from maxup.data import load_data
from maxup.data.images import Images, own_images, split
from maxup.data.loader import DeviceLoader
from maxup.models import create_model
from maxup.objectives.adversarial import Adversarial
from maxup.objectives.average import Average
from maxup.objectives.base import Objective
from maxup.objectives.hard_examples import HardExamples
from maxup.objectives.maxup import MaxUp
from maxup.objectives.outcome import Outcome
from maxup.objectives.warmup import warmup
from maxup.perturb.attach import attached
from maxup.perturb.base import Perturbation
from maxup.perturb.compose import Compose
from maxup.recipes.schema import Recipe, Spec
from maxup.registry import PERTURBATIONS, build, takes


Batch = tuple[Tensor, Tensor, Tensor]


class Vision:
    """The data, the network and the objective of one recipe, on one device.

    `maxup.tasks` says what the loop asks of a task.

    Args:
        recipe: What to build.
        device: Where.
        rank: Number of this process.
        world_size: How many processes share a batch.
        model_from: Builds the network instead of the recipe's.
        data_from: Returns the data instead of the recipe's.
    """

    judge, lower, unit = "accuracy", False, "examples"
    identity: dict[str, str] = {}  # noqa: RUF012  # nothing to tell checkpoints apart by, besides the recipe

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        *,
        rank: int = 0,
        world_size: int = 1,
        model_from: Callable[..., nn.Module] | None = None,
        data_from: Callable[[], Any] | None = None,
    ) -> None:
        self.recipe = recipe
        self.train, self.validation, self.test = load_splits(recipe, data_from)
        if recipe.batch_size % world_size:
            raise ValueError(f"batch_size={recipe.batch_size} cannot be shared evenly by {world_size} processes")
        loader = partial(DeviceLoader, device=device, rank=rank, world_size=world_size)
        size = recipe.batch_size // world_size
        drop = len(self.train) > recipe.batch_size  # full batches only, where there is at least one
        self.loader = loader(self.train, size, shuffle=True, seed=recipe.seed, drop_last=drop)
        self.evaluation = {
            name: loader(images, 4 * size, shuffle=False, seed=0, pad=False)
            for name, images in (("validation", self.validation), ("test", self.test))
            if images is not None
        }
        self.every_epoch = tuple(self.evaluation)
        classes = len(self.train.classes)
        create = model_from or partial(create_model, recipe.model.name)
        model = create(shape=tuple(self.train.x.shape[1:]), classes=classes, **recipe.model.args).to(device)
        if device.type == "cuda":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # in place
        self.model = model
        pixels: dict[str, Any] = {"mean": self.train.mean, "std": self.train.std}
        self.augment = perturbation(recipe.augment, classes, **pixels) if recipe.augment else None
        self.objective = objective(recipe, classes, len(self.loader), **pixels)
        for inside in attached(self.objective.perturbation):
            inside.attach(self.model)
        # Streams of their own for augmentation and copies, the same in every run of this seed and rank.
        seeds = [2 * (recipe.seed * 1_000_003 + rank) + i for i in range(2)]
        self.generator, self.objective.generator = (Generator(device).manual_seed(seed) for seed in seeds)

    def step(self, model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Outcome:
        """One batch's loss: normalise the bytes, augment, and ask the objective."""
        _, x, y = batch
        x = self.train.normalise(x)
        if self.augment is not None:
            x, y = self.augment(x, y, generator=self.generator)
        return self.objective.run(model, x, y)

    @torch.no_grad()
    def evaluate(self, model: Any, name: str) -> tuple[dict[str, Tensor], int]:
        """Sums of losses and of right answers, and the number of examples: this process's share of a split."""
        model.eval()
        sums, count = {metric: torch.zeros((), device=self.generator.device) for metric in ("loss", "accuracy")}, 0
        for _, x, y in self.evaluation[name]:
            output = model(self.train.normalise(x))
            sums["loss"] += nn.functional.cross_entropy(output, y, reduction="sum")
            sums["accuracy"] += (output.argmax(1) == y).sum()
            count += len(y)
        model.train()
        return sums, count

    def measures(self, means: dict[str, float]) -> dict[str, float]:
        """What is told of a split, from the means of what `evaluate` sums."""
        return means

    def pace(self, batch: Batch) -> float:
        """Factor of the learning rate."""
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        """What a step leaves for the next, besides what the loop knows: nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""

    def refuse_another(self, identity: dict[str, str], folder: Path) -> None:
        """A sentence where a checkpoint is of other data."""

    def description(self) -> dict[str, Any]:
        """What somebody who loads the exported model needs to know of the data."""
        images = self.train
        return {
            "classes": list(images.classes),
            "shape": list(images.x.shape[1:]),
            "mean": list(images.mean),
            "std": list(images.std),
            "top": images.top,
        }

    def finish(self, model: nn.Module, folder: Path, *, quiet: bool) -> dict[str, float]:
        """What is measured once, at the end."""
        return {}


def load_splits(
    recipe: Recipe, data_from: Callable[[], Any] | None = None
) -> tuple[Images, Images | None, Images | None]:
    """Training, validation (None unless asked for) and test images; the seed decides who goes where."""
    train, test = own_images(data_from()) if data_from else load_data(recipe.data.name, recipe.data.root)
    if recipe.data.train_size is not None:
        train, rest = split(train, recipe.data.train_size, recipe.seed)
        test = rest if test is None else test
    elif test is None:
        raise ValueError(f"{recipe.data.name} has no test split of its own; set data.train_size, the rest is the test")
    validation = None
    if recipe.data.validation:
        train, validation = split(train, round((1 - recipe.data.validation) * len(train)), recipe.seed)
    return train, validation, test


def perturbation(specs: list[Spec], classes: int, **pixels: Any) -> Perturbation:
    """A perturbation from a recipe's list, composed where there are several.

    Those that take `num_classes`, and `mean` and `std` of the normalisation, learn them where the recipe says nothing.
    """
    known, parts = {"num_classes": classes, **pixels}, []
    for spec in specs:
        if not isinstance(spec, dict) or "name" not in spec:
            raise ValueError(f"a perturbation is {{name: ..., arguments}}, but the recipe says {spec!r}")
        arguments = {k: v for k, v in spec.items() if k != "name"}
        wanted = takes(PERTURBATIONS, "perturbation", spec["name"])
        arguments = {k: v for k, v in known.items() if k in wanted} | arguments
        parts.append(build(PERTURBATIONS, "perturbation", spec["name"], **arguments))
    return parts[0] if len(parts) == 1 else Compose(*parts)


def objective(recipe: Recipe, classes: int, steps_per_epoch: int, **pixels: Any) -> Objective:
    """The recipe's objective; `pixels` are `mean` and `std` of the normalisation."""
    knobs = recipe.maxup
    if recipe.objective == "hard_examples":
        return HardExamples(recipe.hard_fraction)
    if recipe.objective == "adversarial":
        return Adversarial(recipe.adversarial.radius, p=recipe.adversarial.p, steps=recipe.adversarial.steps)
    if not recipe.perturb:
        raise ValueError(f"objective {recipe.objective!r} draws copies, but the recipe's perturb is empty")
    drawn = perturbation(recipe.perturb, classes, **pixels)
    if recipe.objective == "standard":
        return MaxUp(drawn, m=1)
    epochs = min(knobs.warmup, max(1, recipe.epochs // 4))
    m = warmup(knobs.m, steps=epochs * steps_per_epoch)
    if recipe.objective == "average":
        return Average(drawn, m=m)
    return MaxUp(drawn, m=m, norm=knobs.norm, strategy=knobs.strategy, chunk=knobs.chunk, rank=knobs.rank)

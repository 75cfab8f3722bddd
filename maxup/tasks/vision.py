"""Image classification: what a recipe builds, what a step does, what is measured."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

from maxup.data import load_data
from maxup.data.images import Images, own_images, split
from maxup.data.loader import DeviceLoader
from maxup.models import create_model
from maxup.models.normalised import Normalised
from maxup.objectives.adversarial import Adversarial
from maxup.objectives.average import Average
from maxup.objectives.base import Objective
from maxup.objectives.hard_examples import HardExamples
from maxup.objectives.maxup import MaxUp
from maxup.objectives.outcome import Outcome
from maxup.objectives.smoothadv import SmoothAdv, rising
from maxup.objectives.warmup import warmup
from maxup.perturb.attach import attached
from maxup.perturb.base import Perturbation
from maxup.perturb.compose import Compose
from maxup.recipes.schema import Recipe, Spec, noise_of
from maxup.registry import PERTURBATIONS, build, takes


class Vision:
    """The data, the network and the objective of one recipe, on one device.

    Args:
        recipe: What to build.
        device: Where.
        rank: Number of this process.
        world_size: How many processes share a batch.
        model_from: Builds the network instead of the recipe's.
        data_from: Returns the data instead of the recipe's.
    """

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
        classes = len(self.train.classes)
        create = model_from or partial(create_model, recipe.model.name)
        model = create(shape=tuple(self.train.x.shape[1:]), classes=classes, **recipe.model.args)
        if recipe.model.normalise:
            model = Normalised(model, self.train.mean, self.train.std)
        model.to(device)
        if device.type == "cuda":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # in place
        self.model = model
        mean, std = self.train.mean, self.train.std
        if recipe.model.normalise:  # what is augmented is pixels
            mean, std = (0.0,) * len(mean), (1.0,) * len(std)
        self.pixels: dict[str, Any] = {"mean": mean, "std": std}  # of what `prepare` returns
        self.augment = perturbation(recipe.augment, classes, **self.pixels) if recipe.augment else None
        self.objective = objective(recipe, classes, len(self.loader), **self.pixels)
        for inside in attached(self.objective.perturbation):
            inside.attach(self.model)
        # Streams of their own for augmentation and copies, the same in every run of this seed and rank.
        seeds = [2 * (recipe.seed * 1_000_003 + rank) + i for i in range(2)]
        self.generator, self.objective.generator = (Generator(device).manual_seed(seed) for seed in seeds)

    def step(self, model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Outcome:
        """One batch's loss: prepare the bytes, augment, and ask the objective."""
        _, x, y = batch
        x = self.prepare(x)
        if self.augment is not None:
            x, y = self.augment(x, y, generator=self.generator)
        return self.objective.run(model, x, y)

    def prepare(self, x: Tensor) -> Tensor:
        """Bytes as the network takes them: pixels in [0, 1] where it normalises by itself, else normalised."""
        return x.float() / self.train.top if self.recipe.model.normalise else self.train.normalise(x)

    @torch.no_grad()
    def evaluate(self, model: Any, name: str) -> tuple[Tensor, Tensor, int]:
        """Sum of losses, number of right answers, number of examples: of this process's share of a split."""
        model.eval()
        device, count = self.generator.device, 0
        loss, right = torch.zeros((), device=device), torch.zeros((), device=device)
        for _, x, y in self.evaluation[name]:
            output = model(self.prepare(x))
            loss += nn.functional.cross_entropy(output, y, reduction="sum")
            right += (output.argmax(1) == y).sum()
            count += len(y)
        model.train()
        return loss, right, count


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
    if recipe.objective == "smoothadv":
        return _smoothadv(recipe, steps_per_epoch)
    drawn = perturbation(recipe.perturb, classes, **pixels)
    if recipe.objective == "standard":
        return MaxUp(drawn, m=1)
    epochs = min(knobs.warmup, max(1, recipe.epochs // 4))
    m = warmup(knobs.m, steps=epochs * steps_per_epoch)
    if recipe.objective == "average":
        return Average(drawn, m=m)
    return MaxUp(drawn, m=m, norm=knobs.norm, strategy=knobs.strategy, chunk=knobs.chunk, rank=knobs.rank)


def _smoothadv(recipe: Recipe, steps_per_epoch: int) -> SmoothAdv:
    knobs, sigma = recipe.smoothadv, noise_of(recipe)
    if sigma is None:
        raise ValueError(
            f"objective 'smoothadv' attacks pixels under Gaussian noise, but the recipe's perturb is {recipe.perturb} "
            f"and model.normalise {recipe.model.normalise}; set [{{name: gaussian, sigma: ...}}] and true"
        )
    epochs = min(knobs.warmup, max(1, recipe.epochs // 4))
    radius = rising(knobs.radius, epochs=epochs, steps_per_epoch=steps_per_epoch)
    return SmoothAdv(sigma, radius, samples=knobs.samples, steps=knobs.steps, attack=knobs.attack)

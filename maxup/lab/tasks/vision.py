"""Image classification: what a recipe builds, what a step does, what is measured."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from maxup.errors import RunError
from maxup.lab.data.folder import Folder
from maxup.lab.recipes.build import build_perturbation
from maxup.lab.recipes.load import refuse_settings
from maxup.lab.recipes.objectives import DRAW_ONCE, Context, build_objective
from maxup.lab.recipes.schema import LanguageConfig, Recipe
from maxup.lab.storage.atomic_io import sha256
from maxup.lab.tasks.network import build_network
from maxup.lab.tasks.splits import load_splits
from maxup.losses import cross_entropy
from maxup.objectives.maxup import MaxUp
from maxup.objectives.outcome import Outcome
from maxup.perturb.in_model import clear, in_model_parts
from maxup.rng import stream_seed

Batch = tuple[Tensor, Tensor, Tensor]

FOR_TEXT = (
    "objective.unit",
    *(f"language.{field.name}" for field in fields(LanguageConfig)),
)  # settings that nothing here reads


class Vision:
    """The data, the network and the objective of one recipe, on one device.

    `maxup.lab.tasks` says what the loop asks of a task.

    Args:
        recipe: What to build.
        device: Where.
        rank: Number of this process.
        world_size: How many processes share a batch.
        model_from: Builds the network instead of the recipe's.
        data_from: Returns the data instead of the recipe's.
        check_network: Gets this task and its network on the meta device, to refuse it before its memory is taken.
    """

    monitor, lower_is_better, unit = "accuracy", False, "examples"

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        *,
        rank: int = 0,
        world_size: int = 1,
        model_from: Callable[..., nn.Module] | None = None,
        data_from: Callable[[], Any] | None = None,
        check_network: Callable[[Any, nn.Module], None] | None = None,
    ) -> None:
        self.recipe = recipe
        refuse_settings(recipe, FOR_TEXT, "text")
        self.identity = {"model_from": _name(model_from), "data_from": _name(data_from)}
        self.train, self.validation, self.test = load_splits(recipe, data_from)
        if data_from is not None:
            self.identity["data"] = self.train.digest
        elif isinstance(self.train, Folder):
            self.identity["data"] = sha256(f"{self.train.digest} {self.test.digest}".encode())
        if recipe.batch_size % world_size:
            raise ValueError(f"batch_size={recipe.batch_size} cannot be shared evenly by {world_size} processes")
        where: Any = {"device": device, "rank": rank, "world_size": world_size}
        size = recipe.batch_size // world_size
        drop = len(self.train) > recipe.batch_size  # full batches only, where there is at least one
        self.loader = self.train.loader(size, training=True, seed=recipe.seed, drop_last=drop, **where)
        files = isinstance(self.train, Folder)  # of large images
        self.evaluation = {
            name: images.loader(size if files else 4 * size, training=False, seed=0, **where)
            for name, images in (("validation", self.validation), ("test", self.test))
            if images is not None
        }
        self.every_epoch = tuple(self.evaluation)
        classes = len(self.train.classes)
        self.metrics = ["loss", "accuracy", *["top5_accuracy"] * (classes > (5 if files else 10))]
        check = partial(check_network, self) if check_network else None
        self.model = build_network(recipe, self.train, device, model_from, check)
        mean, std = self.train.mean, self.train.std
        if recipe.model.normalize:  # what is augmented is pixels
            mean, std = (0.0,) * len(mean), (1.0,) * len(std)
        self.pixels: dict[str, Any] = {"mean": mean, "std": std}  # of what `prepare` returns
        self.augment = build_perturbation(recipe.augment, classes, **self.pixels) if recipe.augment else None
        drawn = build_perturbation(recipe.perturb, classes, **self.pixels) if recipe.perturb else None
        name = recipe.objective["name"]
        if recipe.optim.sam is not None and name not in ("standard", "maxup"):
            raise ValueError(f"optim.sam goes with the objectives standard and maxup, not {name!r}")
        self.once = drawn if name in DRAW_ONCE else None  # one draw of P(.|x): the objective draws no copies
        self.objective = build_objective(Context(recipe, drawn, lambda epochs: epochs * len(self.loader)))
        for inside in in_model_parts(self.objective.perturbation) + in_model_parts(self.once):
            inside.attach(self.model)
        # Streams of their own for augmentation and copies, the same in every run of this seed and rank.
        seeds = [stream_seed(recipe.seed, rank, stream) for stream in range(2)]
        self.generator, self.objective.generator = (Generator(device).manual_seed(seed) for seed in seeds)

    def step(self, model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Outcome:
        """One batch's loss: prepare the bytes, augment, and ask the objective."""
        outcome = self.objective.run(model, *self._augmented(batch))
        clear(self.once)
        return outcome

    @contextmanager
    def repeatable(self, model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Iterator[Callable[[], Tensor]]:
        """The same loss as a function that can be called again, on the same copies: SAM needs it at two points."""
        assert isinstance(self.objective, MaxUp)
        with self.objective.selected(model, *self._augmented(batch)) as (x, y):
            yield lambda: cross_entropy(model(x), y).mean()

    def _augmented(self, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        _, x, y = batch
        x = self.prepare(x)
        if self.augment is not None:
            x, y = self.augment(x, y, generator=self.generator)
        return (x, y) if self.once is None else self.once(x, y, generator=self.objective.generator)

    def prepare(self, x: Tensor) -> Tensor:
        """Bytes as the network takes them: pixels in [0, 1] where it normalizes by itself, else normalized."""
        pixels: Tensor = x.float() / self.train.top if self.recipe.model.normalize else self.train.normalize(x)
        return pixels

    @torch.no_grad()
    def evaluate(self, model: Any, name: str) -> tuple[dict[str, Tensor], int]:
        """Sums of losses and of right answers by metric, and the number of examples: this process's share of a split.

        With image folders of more than 5 classes, or more than 10 classes, an answer is also "top5_accuracy" right
        where the class is among the five most probable.
        """
        model.eval()
        sums, count = {metric: torch.zeros((), device=self.generator.device) for metric in self.metrics}, 0
        for _, x, y in self.evaluation[name]:
            output = model(self.prepare(x))
            sums["loss"] += nn.functional.cross_entropy(output, y, reduction="sum")
            sums["accuracy"] += (output.argmax(1) == y).sum()
            if "top5_accuracy" in sums:
                sums["top5_accuracy"] += (output.topk(5).indices == y[:, None]).sum()
            count += len(y)
        model.train()
        return sums, count

    def measures(self, means: dict[str, float]) -> dict[str, float]:
        """What is told of a split, from the means of what `evaluate` sums."""
        return means

    def lr_scale(self, batch: Batch) -> float:
        """Factor of the learning rate."""
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        """What a step leaves for the next, besides what the loop knows: nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""

    def refuse_another(self, identity: dict[str, str], folder: Path) -> None:
        """A sentence where a checkpoint is of a network or data of somebody's own, and they are not these.

        Or of image folders with other classes or files. Old checkpoints do not say.
        """
        for option, mine in self.identity.items():
            theirs = identity.get(option, "")
            if option == "data" and theirs not in ("", mine) and isinstance(self.train, Folder):
                raise RunError(
                    f"the classes, names or sizes of the images in {self.train.root.parent} are not those that "
                    f"{folder} was trained with; restore them, or pass --accept_changed_data to train, eval, export "
                    "or show"
                )
            if option == "data" and theirs not in ("", mine):
                raise RunError(
                    f"{folder} was trained with other data than --data_from {self.identity['data_from']} returns now; "
                    "let it return the same at every call (seed what is random), or choose another folder"
                )
            if option != "data" and theirs != mine:
                what = f"--{option} {theirs}" if theirs else f"the recipe's own {option.removesuffix('_from')}"
                raise RunError(
                    f"{folder} was trained with {what}, and this is {f'--{option} {mine}' if mine else 'without'}; "
                    "use the same, or choose another folder"
                )

    def description(self) -> dict[str, Any]:
        """What somebody who loads the exported model needs to know of the data."""
        images = self.train
        return {
            "classes": list(images.classes),
            "shape": list(images.shape),
            "mean": list(images.mean),
            "std": list(images.std),
            "top": images.top,
        }

    def finish(self, model: nn.Module, folder: Path, *, asked: Callable[[], bool], quiet: bool) -> dict[str, float]:
        """What is measured once, at the end."""
        return {}

    def skipped(self) -> set[str]:
        """The image files that could not be read so far, by this process."""
        loaders = (self.loader, *self.evaluation.values())
        return {str(loader.folder.path(i)) for loader in loaders for i in getattr(loader, "unreadable", ())}


def _name(function: Callable[..., Any] | None) -> str:
    """MODULE:FUNCTION, or nothing."""
    if function is None:
        return ""
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}"

"""Image classification: data, network, training step and evaluation of a recipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from maxup.errors import RecipeError, RunError
from maxup.lab.data.folder import Folder
from maxup.lab.data.images import Images
from maxup.lab.data.stream import Stream
from maxup.lab.recipes.build import build_perturbation
from maxup.lab.recipes.load import reject_settings
from maxup.lab.recipes.objectives import DRAW_ONCE, ObjectiveContext, build_objective
from maxup.lab.recipes.schema import LanguageConfig, Recipe
from maxup.lab.storage.atomic_io import sha256
from maxup.lab.tasks.network import build_network
from maxup.lab.tasks.splits import load_splits
from maxup.lab.user_code import function_name, is_importable
from maxup.losses import cross_entropy
from maxup.objectives.maxup import MaxUp
from maxup.objectives.outcome import Outcome
from maxup.perturb.in_model import clear, in_model_parts
from maxup.perturb.labels import probabilities
from maxup.rng import stream_seed

Batch = tuple[Tensor, Tensor, Tensor]  # indices, images, labels

FOR_TEXT = ("objective.unit", *(f"language.{field.name}" for field in fields(LanguageConfig)))  # not used here


class Vision:
    """The data, the network and the objective of a recipe. `maxup.lab.tasks` describes the interface.

    Args:
        world_size: Number of processes that share a batch.
        model_from: Builds the network instead of the recipe's.
        data_from: Returns the data instead of the recipe's.
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
    ) -> None:
        self.recipe = recipe
        reject_settings(recipe, FOR_TEXT, "text")
        self.identity = {"model_from": function_name(model_from), "data_from": function_name(data_from)}
        self.train, self.validation, self.test, self.seed_selects_data = load_splits(recipe, data_from)
        if data_from is not None or isinstance(self.train, Folder):
            parts = [self.train, self.test, *([self.validation] if self._has_validation() else [])]
            self.identity["data"] = sha256(" ".join(part.digest for part in parts).encode())
        self._check_flips()
        if recipe.model.normalize and len(self.train.shape) != 3:
            raise RecipeError(
                f"model.normalize is for images, but your examples have shape {self.train.shape}; set it to false"
            )
        if recipe.batch_size % world_size:
            raise RecipeError(
                f"batch_size={recipe.batch_size} is not a multiple of {world_size}, the number of processes"
            )
        where: Any = {"device": device, "rank": rank, "world_size": world_size}
        size = recipe.batch_size // world_size
        drop = len(self.train) > recipe.batch_size  # full batches only, if there is at least one
        options = {"alternating_flip": recipe.data.alternating_flip, "drop_last": drop, **where}
        self.loader = self.train.loader(size, training=True, seed=recipe.seed, **options)
        from_folder = isinstance(self.train, Folder)
        is_large = from_folder or isinstance(self.train, Stream)
        self.evaluation = {
            name: images.loader(size if is_large else 4 * size, training=False, seed=0, **where)
            for name, images in (("validation", self.validation), ("test", self.test))
            if images is not None
        }
        self.every_epoch = tuple(self.evaluation)
        classes = len(self.train.classes)
        self.metric_names = ["loss", "accuracy"]
        if classes > (5 if from_folder else 10):
            self.metric_names.append("top5_accuracy")
        if recipe.data.flip_test:
            self.metric_names.append("flip_accuracy")
        if recipe.objective.get("shortlist") and not from_folder and self.train.dtype == torch.int64:
            raise RecipeError("objective.shortlist needs images or numbers, but your data are token ids; remove it")
        tokens = [part.x.max() for part in (self.train, self.validation, self.test) if _holds_tokens(part)]
        largest = int(max(tokens, default=0))
        self.model = build_network(recipe, self.train, device, model_from, largest_token=largest)
        mean, std = self.train.mean, self.train.std
        if recipe.model.normalize:  # augmentation gets pixels
            mean, std = (0.0,) * len(mean), (1.0,) * len(std)
        self.pixels: dict[str, Any] = {"mean": mean, "std": std}  # normalization of what `prepare` returns
        in_range = recipe.model.normalize and self.train.in_unit_range and self.test.in_unit_range
        self.clip = (0.0, 1.0) if in_range else None  # range of the network's input, if it takes pixels
        self.augment = build_perturbation(recipe.augment, classes, **self.pixels) if recipe.augment else None
        perturbation = build_perturbation(recipe.perturb, classes, **self.pixels) if recipe.perturb else None
        name = recipe.objective["name"]
        if recipe.optim.sam is not None and name not in ("standard", "maxup"):
            raise RecipeError(f"optim.sam needs objective standard or maxup, but the objective is {name!r}")
        self.perturb_once = perturbation if name in DRAW_ONCE else None  # drawn once per example
        self.objective = build_objective(ObjectiveContext(recipe, perturbation, self.loader.steps, clip=self.clip))
        for inside in in_model_parts(self.objective.perturbation) + in_model_parts(self.perturb_once):
            inside.attach(self.model)
        # Separate random streams for augmentation and copies. They depend only on the seed and the rank.
        seeds = [stream_seed(recipe.seed, rank, stream) for stream in range(2)]
        self.generator, self.objective.generator = (Generator(device).manual_seed(seed) for seed in seeds)

    def _has_validation(self) -> bool:
        """Whether there are validation images, which for image folders must be in a separate folder."""
        if self.validation is None or not isinstance(self.train, Folder):
            return self.validation is not None
        return bool(self.validation.root != self.train.root)

    def _check_flips(self) -> None:
        """Raise a RecipeError if a setting of flips does not fit the data or the augmentation."""
        data, is_folder = self.recipe.data, isinstance(self.train, Folder)
        for name in ("alternating_flip", "flip_test"):
            if getattr(data, name) and len(self.train.shape) != 3:
                raise RecipeError(
                    f"data.{name} is for images, but your examples have shape {self.train.shape}; set it to false"
                )
        flips = any(spec.get("name") == "crop_flip" and spec.get("flip", True) for spec in self.recipe.augment)
        if data.alternating_flip and (is_folder or flips):
            who, fix = "image folders flip", "remove it"
            if not is_folder:
                who, fix = "crop_flip flips", "add flip: false to crop_flip"
            raise RecipeError(f"data.alternating_flip has no effect, because {who} images at random; {fix}")

    def step(self, model: Any, batch: Batch) -> Outcome:
        """Prepare and augment a batch, and return the outcome of the objective."""
        outcome = self.objective.run(model, *self._augmented(batch))
        clear(self.perturb_once)
        return outcome

    @contextmanager
    def repeatable(self, model: Any, batch: Batch) -> Iterator[Callable[[], Tensor]]:
        """Yield the loss of a batch as a function. SAM calls it twice, on the same copies."""
        assert isinstance(self.objective, MaxUp)
        with self.objective.selected(model, *self._augmented(batch)) as (x, y):
            yield lambda: cross_entropy(model(x), y).mean()

    def _augmented(self, batch: Batch) -> tuple[Tensor, Tensor]:
        _, x, y = batch
        x = self.prepare(x)
        if self.augment is not None:
            x, y = self.augment(x, y, generator=self.generator)
        if smoothing := self.recipe.optim.label_smoothing:
            classes = len(self.train.classes)
            y = (1 - smoothing) * probabilities(y, classes, "label smoothing") + smoothing / classes
        return (x, y) if self.perturb_once is None else self.perturb_once(x, y, generator=self.objective.generator)

    def prepare(self, x: Tensor) -> Tensor:
        """Convert a batch to the network's input: pixels in [0, 1] if it normalizes them, otherwise normalized values.

        Token ids are returned as they are.
        """
        pixels: Tensor = x.float() / self.train.top if self.recipe.model.normalize else self.train.normalize(x)
        return pixels

    @torch.no_grad()
    def evaluate(self, model: Any, name: str) -> tuple[dict[str, Tensor], int]:
        """Return the sum of each metric and the number of examples, over this process's share of a split.

        "top5_accuracy" is among the metrics of more than 10 classes, or more than 5 for image folders, and
        "flip_accuracy" with data.flip_test.
        """
        model.eval()
        sums, count = {metric: torch.zeros((), device=self.generator.device) for metric in self.metric_names}, 0
        for _, x, y in self.evaluation[name]:
            x = self.prepare(x)
            output = model(x)
            sums["loss"] += nn.functional.cross_entropy(output, y, reduction="sum")
            sums["accuracy"] += (output.argmax(1) == y).sum()
            if "top5_accuracy" in sums:
                sums["top5_accuracy"] += (output.topk(5).indices == y[:, None]).sum()
            if "flip_accuracy" in sums:
                both = output.softmax(1) + model(x.flip(-1)).softmax(1)
                sums["flip_accuracy"] += (both.argmax(1) == y).sum()
            count += len(y)
        model.train()
        return sums, count

    def report_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """Return the metrics of a split from the means of the sums."""
        return means

    def lr_scale(self, batch: Batch) -> float:
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return the state carried from step to step: none."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state."""

    def check_identity(self, identity: dict[str, str], folder: Path) -> None:
        """Raise a RunError if a checkpoint was trained with other user code, image folders or data.

        Old checkpoints do not record the data, or only the user's training data. A function without a name to import
        may have another name now; its data are compared.
        """
        for option, now in self.identity.items():
            before = identity.get(option, "")
            if option == "data" and before not in ("", now) and isinstance(self.train, Folder):
                same = self.train.root == self.test.root  # split automatically
                root = self.train.root if same else self.train.root.parent
                raise RunError(
                    f"the classes, names or sizes of the images in {root} are not those that "
                    f"{folder} was trained with; restore them, or pass --accept_changed_data to train, eval, export "
                    "or show"
                )
            if option == "data" and before not in ("", now) and before != self.train.digest:
                raise RunError(
                    f"{folder} was trained with other data than --data_from {self.identity['data_from']} returns now; "
                    "make it return the same data in every call (seed its randomness), choose another folder, or pass "
                    "--accept_changed_data to train, eval, export or show"
                )
            if option != "data" and before != now and not (now and before and not is_importable(before)):
                what = f"with --{option} {before}" if before else f"without --{option}"
                this = f"this command has --{option} {now}" if now else "the option is missing here"
                raise RunError(f"{folder} was trained {what}, but {this}; use the same, or choose another folder")

    def description(self) -> dict[str, Any]:
        """Return what a user of the exported model needs to know about the data."""
        images = self.train
        return {
            "classes": list(images.classes),
            "shape": list(images.shape),
            "mean": list(images.mean),
            "std": list(images.std),
            "top": images.top,
            "columns": [str(name) for name in getattr(images, "columns", ())],  # of rows, in order
        }

    def finish(
        self, model: nn.Module, folder: Path, *, should_stop: Callable[[], bool], quiet: bool
    ) -> dict[str, float]:
        """Return metrics that are computed once after training: none."""
        return {}

    def skipped(self) -> set[str]:
        """Return the image files that this process could not read so far."""
        loaders = (self.loader, *self.evaluation.values())
        return {str(loader.folder.path(i)) for loader in loaders for i in getattr(loader, "unreadable", ())}


def _holds_tokens(part: Any) -> bool:
    """Whether this part holds token ids in memory."""
    return isinstance(part, Images) and part.dtype == torch.int64

"""Image classification: what a recipe builds, what a step does, what is measured."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from maxup.errors import DataError, RunError, format_error
from maxup.isolation import preserve_state
from maxup.lab.data import load_data
from maxup.lab.data.folder import MEAN, STD, Folder
from maxup.lab.data.images import Images, own_images, own_scale, split
from maxup.lab.models import create_model
from maxup.lab.models.external import is_external
from maxup.lab.models.frozen import freeze_norm
from maxup.lab.models.normalize import Normalized
from maxup.lab.models.weights import load_weights
from maxup.lab.recipes.load import refuse_settings
from maxup.lab.recipes.schema import Data, LanguageConfig, Recipe, Spec, first_epochs, noise_of
from maxup.lab.registry import PERTURBATIONS, build, takes
from maxup.lab.storage.atomic_io import sha256
from maxup.objectives.adversarial import Adversarial
from maxup.objectives.average import Average
from maxup.objectives.base import Objective, cross_entropy
from maxup.objectives.hard_examples import HardExamples
from maxup.objectives.maxup import MaxUp
from maxup.objectives.outcome import Outcome
from maxup.objectives.schedules import warmup
from maxup.objectives.smoothadv import SmoothAdv, rising
from maxup.perturb.base import Perturbation
from maxup.perturb.compose import Compose
from maxup.perturb.in_model import clear, in_model_parts
from maxup.rng import stream_seed

Batch = tuple[Tensor, Tensor, Tensor]

FOR_TEXT = (
    "maxup.unit",
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
        self.recipe, self.check_network = recipe, check_network
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
        self.model = self._network(device, classes, model_from)
        mean, std = self.train.mean, self.train.std
        if recipe.model.normalize:  # what is augmented is pixels
            mean, std = (0.0,) * len(mean), (1.0,) * len(std)
        self.pixels: dict[str, Any] = {"mean": mean, "std": std}  # of what `prepare` returns
        self.augment = perturbation(recipe.augment, classes, **self.pixels) if recipe.augment else None
        self.once: Perturbation | None = None  # one draw of P(.|x), where the objective draws no copies of its own
        if recipe.objective in ("hard_examples", "adversarial") and recipe.perturb:
            self.once = perturbation(recipe.perturb, classes, **self.pixels)
        self.objective = objective(recipe, classes, len(self.loader), **self.pixels)
        for inside in in_model_parts(self.objective.perturbation) + in_model_parts(self.once):
            inside.attach(self.model)
        # Streams of their own for augmentation and copies, the same in every run of this seed and rank.
        seeds = [stream_seed(recipe.seed, rank, stream) for stream in range(2)]
        self.generator, self.objective.generator = (Generator(device).manual_seed(seed) for seed in seeds)

    def _network(self, device: torch.device, classes: int, model_from: Callable[..., nn.Module] | None) -> nn.Module:
        said = self.recipe.model
        if model_from is not None and said.pretrained:
            raise ValueError(
                "model.pretrained is for networks by name; with --model_from use model.weights, or neither"
            )
        given = {"shape", "num_classes"} if model_from else {"shape", "num_classes", "name", "pretrained"}
        if twice := sorted(given & set(said.args)):
            raise ValueError(
                f"model.args must not have {twice[0]!r}: name and pretrained stand beside args, in model, and shape "
                "and num_classes are the data's"
            )
        if said.new_head and said.weights is None:
            raise ValueError("model.new_head is for the last layer of model.weights, and there are none; leave it out")
        create = model_from or partial(create_model, said.name, pretrained=said.pretrained)

        def build() -> nn.Module:
            model = create(shape=self.train.shape, num_classes=classes, **said.args)
            if not isinstance(model, nn.Module):
                raise TypeError(f"model_from returned a {type(model).__name__}; it must return a torch.nn.Module")
            return Normalized(model, self.train.mean, self.train.std) if said.normalize else model

        if self.check_network and model_from is None and not is_external(said.name):  # others may not build there
            with torch.device("meta"):
                self.check_network(self, build())
        model = build()
        if said.weights is not None:
            load_weights(model, said.weights, new_head=said.new_head)
        if said.freeze_norm:
            freeze_norm(model)
        model.to(device)
        if device.type == "cuda":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # in place
        who = "model_from: your network" if model_from else said.name if is_external(said.name) else None
        if who is not None:
            side = self.recipe.data.test_size  # of folders, where it is another
            for shape in [self.train.shape, *([(3, side, side)] if side else [])]:
                _try(who, model, torch.zeros(2, *shape, device=device), classes)
        return model

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


def _try(who: str, model: nn.Module, x: Tensor, classes: int) -> None:
    """Call a network that is not ours once, without a trace: a sentence where it does not fit the data."""
    seen = f"{who}, for images of shape {tuple(x.shape)},"
    try:
        with preserve_state(model, (x, None)), torch.no_grad():
            output = model(x)
    except Exception as error:  # of whatever type: it is others' code
        raise ValueError(f"{seen} raised {format_error(error)}") from error
    if not isinstance(output, Tensor):
        raise ValueError(f"{seen} returned a {type(output).__name__}; return logits of shape (2, {classes})")
    if output.ndim != 2 or len(output) != 2 or output.shape[1] < classes:
        raise ValueError(
            f"{seen} returned shape {tuple(output.shape)}; {classes} classes want logits of shape (2, {classes})"
        )


def _name(function: Callable[..., Any] | None) -> str:
    """MODULE:FUNCTION, or nothing."""
    if function is None:
        return ""
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}"


def load_splits(recipe: Recipe, data_from: Callable[[], Any] | None = None) -> tuple[Any, Any, Any]:
    """Training, validation (None unless asked for) and test images; the seed decides who goes where.

    All are `Images` or all are `Folder`s. Where the test is the rest of one's own images, it has no part in the mean
    and deviation that all are normalized by.
    """
    train: Any
    test: Any
    train, test = own_images(data_from()) if data_from else load_data(recipe.data.name, recipe.data.root)
    if recipe.data.train_size is not None:
        train, rest = split(train, recipe.data.train_size, recipe.seed)
        if test is None and data_from is not None:
            mean, std = own_scale(train.x)
            train, rest = (replace(part, mean=mean, std=std) for part in (train, rest))
        test = rest if test is None else test
    elif test is None and data_from is not None:
        raise ValueError(
            "data_from returned (x, y), no test images; return (x, y, x_test, y_test), or set data.train_size: the "
            f"rest of its {len(train)} images is then the test"
        )
    elif test is None:
        raise ValueError(f"{recipe.data.name} has no test split of its own; set data.train_size, the rest is the test")
    train, test = (_as_said(images, recipe) for images in (train, test))
    validation = None
    if recipe.data.validation:
        kept = round((1 - recipe.data.validation) * len(train))
        if kept in (0, len(train)):
            raise DataError(
                f"data.validation={recipe.data.validation} of {len(train)} training images leaves {kept} to train on; "
                "choose a fraction that leaves some for both, or 0"
            )
        train, validation = split(train, kept, recipe.seed)
    return train, validation, test


def _as_said(images: Images | Folder, recipe: Recipe) -> Images | Folder:
    """Images normalized as the recipe says, and those of folders decoded so."""
    said, decoding = recipe.data, ("size", "test_size", "crop_fraction", "interpolation")
    if isinstance(images, Images):
        for name in decoding:
            if getattr(said, name) != getattr(Data(), name):
                raise DataError(f"data.{name} is for image folders, and these images are arrays; leave it out")
        return replace(images, mean=tuple(said.mean or images.mean), std=tuple(said.std or images.std))
    mean, std = tuple(said.mean or MEAN), tuple(said.std or STD)
    if not len(mean) == len(std) == 3 or min(std) <= 0:
        raise DataError(f"data.mean={said.mean} and data.std={said.std} must be three numbers each, data.std above 0")
    decoded = {name: getattr(said, name) for name in (*decoding, "workers")}
    return replace(images, mean=mean, std=std, **decoded)


def perturbation(specs: list[Spec], classes: int, **pixels: Any) -> Perturbation:
    """A perturbation from a recipe's list, composed where there are several.

    Those that take `num_classes`, and `mean` and `std` of the normalization, learn them where the recipe says nothing.
    """
    known, parts = {"num_classes": classes, **pixels}, []
    for spec in specs:
        if not isinstance(spec, dict) or "name" not in spec:
            raise ValueError(f"a perturbation is {{name: ..., arguments}}, but the recipe says {spec!r}")
        arguments = {k: v for k, v in spec.items() if k != "name"}
        if "key" in arguments:
            raise ValueError(f"perturbation {spec['name']!r}: key chooses a part of x, which is one tensor; drop it")
        if "mask_fill" in arguments:
            raise ValueError(
                f"perturbation {spec['name']!r}: mask_fill is for masks, and the labels are classes; drop it"
            )
        wanted = takes(PERTURBATIONS, "perturbation", spec["name"])
        arguments = {k: v for k, v in known.items() if k in wanted} | arguments
        parts.append(build(PERTURBATIONS, "perturbation", spec["name"], **arguments))
    return parts[0] if len(parts) == 1 else Compose(*parts)


def objective(recipe: Recipe, classes: int, steps_per_epoch: int, **pixels: Any) -> Objective:
    """The recipe's objective; `pixels` are `mean` and `std` of the normalization."""
    knobs = recipe.maxup
    if recipe.optim.sam is not None and recipe.objective not in ("standard", "maxup"):
        raise ValueError(f"optim.sam goes with the objectives standard and maxup, not {recipe.objective!r}")
    if recipe.objective == "hard_examples":
        return HardExamples(recipe.hard_fraction)
    if recipe.objective == "adversarial":
        ball, beyond = recipe.adversarial, ("gaussian", "uniform_ball", "lighting")
        # Pixels stay in [0, 1], unless they carry noise that is not cut off there.
        inside = recipe.model.normalize and not any(spec["name"] in beyond for spec in recipe.augment + recipe.perturb)
        return Adversarial(ball.radius, p=ball.p, steps=ball.steps, clip=(0.0, 1.0) if inside else None)
    if not recipe.perturb:
        raise ValueError(f"objective {recipe.objective!r} draws copies, but the recipe's perturb is empty")
    if recipe.objective == "smoothadv":
        return _smoothadv(recipe, steps_per_epoch)
    drawn = perturbation(recipe.perturb, classes, **pixels)
    if recipe.objective == "standard":
        return MaxUp(drawn, m=1)
    epochs = first_epochs(knobs.warmup, recipe.epochs)
    m = warmup(knobs.m, steps=epochs * steps_per_epoch)
    if recipe.objective == "average":
        return Average(drawn, m=m)
    return MaxUp(
        drawn,
        m=m,
        norm=knobs.norm,
        strategy=knobs.strategy,
        chunk_size=knobs.chunk,
        masks=knobs.masks,
        score=knobs.rank,
    )


def _smoothadv(recipe: Recipe, steps_per_epoch: int) -> SmoothAdv:
    knobs, sigma = recipe.smoothadv, noise_of(recipe)
    if sigma is None:
        raise ValueError(
            f"objective 'smoothadv' attacks pixels under Gaussian noise, but the recipe's perturb is {recipe.perturb} "
            f"and model.normalize {recipe.model.normalize}; set [{{name: gaussian, sigma: ...}}] and true"
        )
    epochs = first_epochs(knobs.warmup, recipe.epochs)
    radius = rising(knobs.radius, epochs=epochs, steps_per_epoch=steps_per_epoch)
    return SmoothAdv(sigma, radius, samples=knobs.samples, steps=knobs.steps, attack=knobs.attack)

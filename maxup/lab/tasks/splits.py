"""Load the training, validation and test images of a recipe."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from maxup.errors import DataError
from maxup.lab.data import load_data
from maxup.lab.data.folder import MEAN, STD, Folder
from maxup.lab.data.images import split
from maxup.lab.data.stream import Stream
from maxup.lab.data.user_data import from_user
from maxup.lab.recipes.schema import Data, Recipe

TEST = 0.2  # fraction of data without test images
DECODING = ("size", "test_size", "crop_fraction", "interpolation")  # settings for image folders


def load_splits(recipe: Recipe, data_from: Callable[[], Any] | None = None) -> tuple[Any, Any, Any, bool]:
    """Return the training, validation and test images, and whether the seed selects the training images.

    Data without test images are split: `TEST` of them, stratified by class, are the test images, but each class keeps
    an image for training. Validation is None if there is none.

    Mean and std of the user's data are never computed from test images. They include images that `data.validation`
    holds out, and, if the data have a test set, those that `data.train_size` leaves out. Runs do not record them, so
    another choice would change the input of existing runs.
    """
    load = from_user(data_from(), recipe.data.workers) if data_from else load_data(recipe.data.name, recipe.data.root)
    if not isinstance(load, tuple):
        raise DataError(f"{recipe.data.name} is a text, but this recipe is for images; set task to language")
    train, *held_out, test = load
    if held_out and recipe.data.validation:
        raise DataError("the data have validation images, so data.validation has no effect; set it to 0")
    size = recipe.data.train_size
    automatic = size is None and test is None
    if automatic:
        size = _training_size(len(train))
    if data_from is not None and len(seen := train.y.unique()) < 2:
        raise DataError(
            f"your training data have one class, {train.classes[int(seen[0])]}, but a classifier needs two or more; "
            "return examples of every class"
        )
    if size is not None:
        train, rest = split(train, size, recipe.seed, every_class=automatic)
        if test is None and data_from is not None:
            train = train.with_statistics()
            rest = replace(rest, mean=train.mean, std=train.std)
        test = rest if test is None else test
    if data_from is None and not isinstance(train, Folder) and (changed := decoding_settings(recipe)):
        raise DataError(f"{changed[0]} is for image folders, but these images are arrays; remove it")
    train, test, *held_out = (_configure(images, recipe.data) for images in (train, test, *held_out))
    validation = held_out[0] if held_out else None
    if recipe.data.validation:
        kept = round((1 - recipe.data.validation) * len(train))
        if kept in (0, len(train)):
            raise DataError(
                f"data.validation={recipe.data.validation} of {len(train)} images leaves {kept} for training; choose a "
                "fraction that leaves images for both, or 0"
            )
        every_class = kept >= len(train.y.unique())
        train, validation = split(train, kept, recipe.seed, every_class=every_class)
    return train, validation, test, size is not None or recipe.data.validation > 0


def decoding_settings(recipe: Recipe) -> list[str]:
    """Return the settings for image folders that a recipe changes. They have no effect on the user's data."""
    return [f"data.{name}" for name in DECODING if getattr(recipe.data, name) != getattr(Data(), name)]


def _training_size(count: int) -> int:
    """Return the number of training images of data without test images."""
    if count < 2:
        raise DataError(f"the data have {count} example, but training and test need one each; add more")
    return min(max(round((1 - TEST) * count), 1), count - 1)


def _configure(images: Any, settings: Data) -> Any:
    """Apply the recipe's normalization, its decoding of image folders, and its workers."""
    if not isinstance(images, Folder):
        mean, std = tuple(settings.mean or images.mean), tuple(settings.std or images.std)
        if isinstance(images, Stream):
            images = replace(images, workers=settings.workers)
        return replace(images, mean=mean, std=std)
    mean, std = tuple(settings.mean or MEAN), tuple(settings.std or STD)
    if not len(mean) == len(std) == 3 or min(std) <= 0:
        raise DataError(
            f"data.mean={settings.mean} and data.std={settings.std} must be three numbers each, data.std above 0"
        )
    return replace(images, mean=mean, std=std, **{name: getattr(settings, name) for name in (*DECODING, "workers")})

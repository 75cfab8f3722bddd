"""Load the training, validation and test images of a recipe."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from maxup.errors import DataError
from maxup.lab.data import load_data
from maxup.lab.data.folder import MEAN, STD, Folder
from maxup.lab.data.images import Images, from_arrays, mean_and_std, split
from maxup.lab.recipes.schema import Data, Recipe


def load_splits(recipe: Recipe, data_from: Callable[[], Any] | None = None) -> tuple[Any, Any, Any]:
    """Return the training, validation and test images. The seed determines the split.

    All are `Images`, or all are `Folder`s. Validation is None if the recipe has none. If the user's data are split into
    training and test images, mean and std for the normalization are computed from the training images only.
    """
    train: Any
    test: Any
    train, test = from_arrays(data_from()) if data_from else load_data(recipe.data.name, recipe.data.root)
    if recipe.data.train_size is not None:
        train, rest = split(train, recipe.data.train_size, recipe.seed)
        if test is None and data_from is not None:
            mean, std = mean_and_std(train.x)
            train, rest = (replace(part, mean=mean, std=std) for part in (train, rest))
        test = rest if test is None else test
    elif test is None and data_from is not None:
        raise DataError(
            "data_from returned (x, y) without test images; return (x, y, x_test, y_test), or set data.train_size to "
            f"test on the rest of its {len(train)} images"
        )
    elif test is None:
        raise DataError(f"{recipe.data.name} has no test split; set data.train_size to test on the rest")
    train, test = (_configure(images, recipe.data) for images in (train, test))
    validation = None
    if recipe.data.validation:
        kept = round((1 - recipe.data.validation) * len(train))
        if kept in (0, len(train)):
            raise DataError(
                f"data.validation={recipe.data.validation} of {len(train)} images leaves {kept} for training; choose a "
                "fraction that leaves images for both, or 0"
            )
        train, validation = split(train, kept, recipe.seed)
    return train, validation, test


def _configure(images: Images | Folder, settings: Data) -> Images | Folder:
    """Apply the recipe's normalization, and its decoding of image folders."""
    decoding = ("size", "test_size", "crop_fraction", "interpolation")
    if isinstance(images, Images):
        for name in decoding:
            if getattr(settings, name) != getattr(Data(), name):
                raise DataError(f"data.{name} is for image folders, but these images are arrays; remove it")
        return replace(images, mean=tuple(settings.mean or images.mean), std=tuple(settings.std or images.std))
    mean, std = tuple(settings.mean or MEAN), tuple(settings.std or STD)
    if not len(mean) == len(std) == 3 or min(std) <= 0:
        raise DataError(
            f"data.mean={settings.mean} and data.std={settings.std} must be three numbers each, data.std above 0"
        )
    return replace(images, mean=mean, std=std, **{name: getattr(settings, name) for name in (*decoding, "workers")})

"""The training, validation and test images of a recipe."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from maxup.errors import DataError
from maxup.lab.data import load_data
from maxup.lab.data.folder import MEAN, STD, Folder
from maxup.lab.data.images import Images, from_arrays, mean_and_std, split
from maxup.lab.recipes.schema import Data, Recipe


def load_splits(recipe: Recipe, data_from: Callable[[], Any] | None = None) -> tuple[Any, Any, Any]:
    """Training, validation (None unless asked for) and test images; the seed decides who goes where.

    All are `Images` or all are `Folder`s. Where the test is the rest of one's own images, it has no part in the mean
    and deviation that all are normalized by.
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

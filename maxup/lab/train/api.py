"""`maxup.train`: train a recipe from Python, as `maxup train` does.

The loop and its packages are imported on the first call, so that looking up `maxup.train` is fast.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from torch import nn

from maxup.errors import MaxUpError, RecipeError, RunError, a_type

if TYPE_CHECKING:
    from maxup.lab.recipes.schema import Recipe


def train(
    recipe: str | os.PathLike[str],
    overrides: Mapping[str, Any] | Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    *,
    model_from: Callable[..., nn.Module] | None = None,
    data_from: Callable[[], Any] | None = None,
    extend: bool = False,
    restart: bool = False,
    save_every: float = 60.0,
    trackers: Sequence[str] = (),
    accept_changed_data: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train a recipe, or resume it, as `maxup train` does.

    Args:
        recipe: The name of a recipe, or a YAML file.
        overrides: Settings by dotted name, such as `{"objective.m": 8, "seed": 1}`, or options of the command line,
            such as `["--objective.m", "8"]`. Values are text, numbers, paths, None, and lists and dicts of them.
        out: The folder of the run. None: `runs/RECIPE/seed-N`. The same call resumes the run in this folder.
        model_from: Your network, `(shape, num_classes, **model.args)`, instead of the recipe's.
        data_from: Your data instead of the recipe's, such as `() -> (x, y)`, a Dataset, or (train, test).
        extend: Continue a run with fewer epochs, if its schedule allows it.
        restart: Start over. The folder of an earlier run is renamed.
        save_every: Seconds between checkpoints.
        trackers: Trackers of Accelerate, such as `["tensorboard"]`.
        accept_changed_data: Resume even if the images have changed since the run started.
        quiet: Print nothing.

    Returns:
        The content of run.json: the metrics of the last and the best epoch, the recipe, seed, seconds and environment.

    Raises:
        TypeError: An argument has a wrong type.
        RecipeError: The recipe or an override is invalid.
        UserCodeError: `model_from` did not return a network.
        DataError: The data, or what `data_from` returned, is missing or invalid.
        ModelError: The network cannot be built, or its weights do not match.
        CheckpointError: A checkpoint cannot be written or read, or another process trains in the folder.
        RunError: The run cannot be trained or resumed, or was interrupted. All of these but TypeError are `MaxUpError`.

    Example:
        >>> import tempfile
        >>> small = {"epochs": 1, "data.train_size": 100, "model.args": {"hidden": [8]}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train("digits/mlp-gaussian-maxup", small, folder, quiet=True)
        >>> result["last"]["epoch"], sorted(result)[:3]
        (1, ['best', 'compile_seconds', 'environment'])
    """
    from maxup.lab.recipes.load import parse_recipe
    from maxup.lab.train import loop

    name, words = os.fspath(recipe), _words(overrides)
    _check_function("model_from", model_from, "shape, num_classes")
    _check_function("data_from", data_from, "")
    if out is not None and not os.fspath(out):
        raise RunError("out is empty; name a folder for the run, or use None for runs/RECIPE/seed-N")
    try:
        parsed = parse_recipe(name, words)
        return loop.train(
            parsed,
            run_folder(name, parsed) if out is None else Path(out),
            name=name,
            extend=extend,
            restart=restart,
            save_every=save_every,
            trackers=trackers,
            accept_changed_data=accept_changed_data,
            quiet=quiet,
            model_from=model_from,
            data_from=data_from,
        )
    except MaxUpError as error:
        error.args = (_name_arguments(str(error)),)
        raise


def _name_arguments(message: str) -> str:
    """Replace options of the command in a message by arguments of `train` and settings.

    Example:
        >>> _name_arguments("continue it with --extend, give more --epochs, or start over with maxup train --restart")
        'continue it with extend=True, give more epochs, or start over with restart=True'
    """
    flags = {flag: f"{flag}=True" for flag in ("extend", "restart", "accept_changed_data")}
    names = {**flags, "out": "out="}
    message = message.removesuffix(" (see maxup train --help)")
    return re.sub(r"(?<!\S)(?:maxup train )?--([a-z_.]+)", lambda found: names.get(found[1], found[1]), message)


def run_folder(name: str, recipe: "Recipe") -> Path:
    """Return the default folder of a run."""
    from maxup.lab.recipes.load import run_name

    return Path("runs") / run_name(name) / f"seed-{recipe.seed}"


def _words(overrides: Any) -> list[str]:
    """Return overrides as options of the command line."""
    if isinstance(overrides, Mapping):
        return [f"--{key}={_text(value, str(key))}" for key, value in overrides.items()]
    if isinstance(overrides, list | tuple):
        return [_text(word, "an option") for word in overrides]
    raise TypeError(
        f"overrides={overrides!r:.60}: pass a dict such as {{'objective.m': 8}}, or a list such as "
        "['--objective.m', '8']"
    )


def _text(value: Any, name: str) -> str:
    """Return a value as the command line has it. JSON is YAML; text needs no quotes."""

    def plain(value: Any) -> Any:
        if isinstance(value, numpy.generic):
            return value.item()
        return os.fspath(value)  # or TypeError

    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    try:
        return value if isinstance(value, str) else json.dumps(value, default=plain)
    except (TypeError, ValueError):
        raise RecipeError(
            f"{name} is {value!r:.60}, {a_type(value)}; use text, a number, a path, None, or a list or dict of them"
        ) from None


def _check_function(name: str, function: Any, arguments: str) -> None:
    if function is not None and not callable(function):
        raise TypeError(f"{name}={function!r:.60}: pass a function ({arguments}), not its name or its result")

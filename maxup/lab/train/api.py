"""`maxup.train`: train a recipe from Python, as `maxup train` does.

The loop and its packages are imported on the first call, so that looking up `maxup.train` is fast.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

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
            such as `["--objective.m", "8"]`.
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
        RecipeError: The recipe or an override is invalid.
        DataError: The data is missing.
        RunError: The run cannot be trained or resumed.

    Example:
        >>> import tempfile
        >>> small = {"epochs": 1, "data.train_size": 100, "model.args": {"hidden": [8]}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train("digits/mlp-gaussian-maxup", small, folder, quiet=True)
        >>> result["last"]["epoch"], sorted(result)[:3]
        (1, ['best', 'environment', 'last'])
    """
    from maxup.lab.data.find import check_root
    from maxup.lab.recipes.load import parse_recipe
    from maxup.lab.train import loop

    name = os.fspath(recipe)
    words = (
        [f"--{key}={_text(value)}" for key, value in overrides.items()] if isinstance(overrides, Mapping) else overrides
    )
    parsed = parse_recipe(name, list(words))
    if data_from is None:
        check_root(parsed.data.name, parsed.data.root)
    return loop.train(
        parsed,
        run_folder(name, parsed) if out is None else Path(out),
        name=name,
        extend=extend,
        restart=restart,
        save_every=save_every,
        trackers=list(trackers),
        accept_changed_data=accept_changed_data,
        quiet=quiet,
        model_from=model_from,
        data_from=data_from,
    )


def run_folder(name: str, recipe: "Recipe") -> Path:
    """Return the default folder of a run."""
    from maxup.lab.recipes.load import run_name

    return Path("runs") / run_name(name) / f"seed-{recipe.seed}"


def _text(value: Any) -> str:
    """Return a value as the command line has it. JSON is YAML; text needs no quotes."""
    return value if isinstance(value, str) else json.dumps(value)

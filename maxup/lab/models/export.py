"""Models to share: weights in safetensors, the rest in config.json. Reading them runs no code of theirs.

config.json names a model of our registry and its arguments; nothing else in it is imported or called.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maxup.errors import LoadError, error_message
from maxup.lab.models import create_model
from maxup.lab.models.normalize import Normalized
from maxup.lab.registry import LANGUAGE_MODELS, build
from maxup.lab.storage.atomic_io import dump, parse, read, remove, sha256, sync, to_words, write

FORMAT, VERSION = "maxup-model", 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"
LARGEST = 1 << 24  # bytes of config.json: a million words of 12 letters fit, and parsing takes at most half a GiB


def save(
    folder: Path, model: nn.Module, config: dict[str, Any], model_from: Callable[..., nn.Module] | None = None
) -> None:
    """Write model.safetensors and config.json to a folder, which must be new or empty, and load them again as a check.

    Args:
        folder: Where to write.
        model: The model whose weights are written.
        config: What `load` returns as `model.config`: the recipe, the classes, the shape (C, H, W), and more.
        model_from: The function that builds your network, for a run trained with --model_from.

    Raises:
        LoadError: The files cannot be written or read back; then none of them is left.
    """
    from safetensors.torch import save as to_bytes

    from maxup.lab.storage.state_io import pack

    made = not folder.exists()
    try:
        if not made and (not folder.is_dir() or any(folder.iterdir())):
            raise LoadError(f"{folder} is there already and not an empty folder; choose another, or remove it")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # of a name that no file can have, too
        raise LoadError(f"{folder} could not be written: {error_message(error)}") from error
    try:
        weights = to_bytes(pack(dict(model.state_dict()))[0])
        files = {WEIGHTS: {"size": len(weights), "sha256": sha256(weights)}}
        write(folder / WEIGHTS, weights)
        write(folder / CONFIG, dump({"format": FORMAT, "version": VERSION, "files": files} | to_words(config)))
        sync(folder)
        load(folder, model_from)
    except BaseException as error:
        if not isinstance(error, FileExistsError):  # which another process has just written
            for name in (WEIGHTS, CONFIG):
                remove(folder / name)
            with suppress(OSError):
                if made:
                    folder.rmdir()
        if isinstance(error, LoadError):
            why = error_message(error.__cause__ or error)
            raise LoadError(f"the exported model cannot be read back ({why}); nothing was left in {folder}") from error
        if isinstance(error, OSError | ValueError):
            raise LoadError(f"{folder} could not be written: {error_message(error)}") from error
        raise


def load(folder: str | os.PathLike[str], model_from: Callable[..., nn.Module] | None = None) -> nn.Module:
    """The model that `maxup export RUN DIR` wrote, in evaluation mode; its `config` says what it was trained on.

    It takes images normalized as the config says, `(x / top - mean) / std` for bytes x of shape (B, C, H, W), or
    pixels, `x / top`, if the recipe's `model.normalize` says that it normalizes by itself. A language model takes
    tokens (B, T), which are places in `config["words"]`; `model.decode(model(tokens).output)` are scores of the next
    ones. Nothing in the folder can run code.

    Args:
        folder: The folder with model.safetensors and config.json.
        model_from: Your function `(shape, num_classes, **model.args)`, for a run trained with --model_from.

    Raises:
        LoadError: One sentence about what is missing or wrong.

    Example:
        >>> load("nowhere")
        Traceback (most recent call last):
        maxup.errors.LoadError: nowhere holds no model: No such file or directory (config.json)
    """
    folder = Path(folder)
    try:
        config = _config(folder)
        model = _build(config, _weights(folder, config), model_from)
    except Exception as error:  # of whatever type: the files may be hostile
        raise LoadError(f"{folder} holds no model: {error_message(error)}") from error
    model.config = config  # type: ignore[assignment]
    return model.eval()


def _config(folder: Path) -> dict[str, Any]:
    match parse(CONFIG, read(folder / CONFIG, most=LARGEST)):
        case {"format": "maxup-model", "version": version} if version != VERSION:
            raise ValueError(f"its format is of another version than {VERSION}, the one read here")
        case {
            "format": "maxup-model",
            "files": {"model.safetensors": dict()},
            "recipe": {"task": "language", "model": {"name": str(), "args": dict()}},
            "words": [str(), *_],
        } as config:
            return dict(config)
        case {
            "format": "maxup-model",
            "files": {"model.safetensors": dict()},
            "recipe": {"model": {"name": str(), "args": dict()}},
            "classes": [str(), *_],
            "shape": [int(), int(), int()] as shape,
        } as config if min(shape) > 0:
            return dict(config)
    raise ValueError(
        f"{CONFIG} is not that of a model: it must have format, files, recipe, classes and shape, or words"
    )


def _weights(folder: Path, config: dict[str, Any]) -> dict[str, Tensor]:
    from safetensors.torch import load as from_bytes

    return from_bytes(read(folder / WEIGHTS, config["files"][WEIGHTS]))


def _build(
    config: dict[str, Any], weights: dict[str, Tensor], model_from: Callable[..., nn.Module] | None
) -> nn.Module:
    """The model, built without memory first: a config that asks for more than the weights hold is refused for free."""
    named = config["recipe"]["model"]
    match config.get("task"):
        case {"model_from": str(theirs)} if theirs and model_from is None:
            raise ValueError(f"its network is of somebody's own, {theirs:.80}; give that function as model_from=")
    make: Callable[..., nn.Module]
    data: dict[str, Any]
    if "words" in config:
        make, data = partial(build, LANGUAGE_MODELS, "language model", named["name"]), {"words": len(config["words"])}
    else:
        # Nothing is downloaded, whatever the arguments say.
        make = model_from or partial(create_model, named["name"], pretrained=False)
        data = {"shape": tuple(config["shape"]), "num_classes": len(config["classes"])}
        if named.get("normalize") is True:
            make = partial(_normalized, make)
    arguments = {k: v for k, v in named["args"].items() if k != "pretrained"} | data
    if model_from is None:
        with torch.device("meta"):
            _check_fit(make(**arguments), weights)
    with torch.random.fork_rng(devices=[]):  # initial weights, about to be replaced, cost the caller no random numbers
        model = make(**arguments)
    _check_fit(model, weights)
    model.load_state_dict(weights)
    return model


def _check_fit(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, wanted in model.state_dict().items():
        if name not in weights or weights[name].shape != wanted.shape or weights[name].dtype != wanted.dtype:
            raise ValueError(f"{WEIGHTS} does not fit the model that {CONFIG} names: {name} is missing or another")
    if more := set(weights) - set(model.state_dict()):
        raise ValueError(f"{WEIGHTS} does not fit the model that {CONFIG} names: it has no {min(more)!r:.60}")


def _normalized(make: Callable[..., nn.Module], *, shape: tuple[int, ...], **arguments: Any) -> nn.Module:
    """A network that normalizes by itself; by what comes with its weights."""
    return Normalized(make(shape=shape, **arguments), [0.0] * shape[0], [1.0] * shape[0])

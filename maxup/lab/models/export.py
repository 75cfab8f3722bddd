"""Exported models: weights in model.safetensors, everything else in config.json. Loading one runs no code from it.

config.json names a model of the registry and its arguments. Nothing else in it is imported or called.
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
from maxup.lab.storage.atomic_io import dump, encode_nonfinite, parse, read, remove, sha256, sync, write
from maxup.lab.upgrade import upgrade_recipe

FORMAT, VERSION = "maxup-model", 1
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
LARGEST = 1 << 24  # bytes of config.json: room for a million words; parsing it takes at most half a GiB of memory


def save(
    folder: Path,
    model: nn.Module,
    config: dict[str, Any],
    model_from: Callable[..., nn.Module] | None = None,
    *,
    card: str = "",
) -> nn.Module:
    """Write model.safetensors, config.json and README.md, then load the model as a check.

    Args:
        folder: A new or empty folder.
        model: The model whose weights are written.
        config: What `load` returns as `model.config`: the recipe, the classes, the shape (C, H, W), and more.
        model_from: The function that builds your network, for a run trained with --model_from.
        card: The text of README.md, or "" for none.

    Returns:
        The model as it was loaded.

    Raises:
        LoadError: The files cannot be written or loaded. In this case they are removed.
    """
    from safetensors.torch import save as to_bytes

    from maxup.lab.storage.state_io import pack

    is_new = not folder.exists()
    try:
        if not is_new and (not folder.is_dir() or any(folder.iterdir())):
            raise LoadError(f"{folder} already exists and is not an empty folder; choose another folder, or remove it")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: an invalid file name
        raise LoadError(f"cannot write {folder}: {error_message(error)}") from error
    try:
        weights = to_bytes(pack(dict(model.state_dict()))[0])
        files = {WEIGHTS: {"size": len(weights), "sha256": sha256(weights)}}
        write(folder / WEIGHTS, weights)
        write(folder / CONFIG, dump({"format": FORMAT, "version": VERSION, "files": files} | encode_nonfinite(config)))
        if card:
            write(folder / CARD, card.encode())
        sync(folder)
        return load(folder, model_from)
    except BaseException as error:
        if not isinstance(error, FileExistsError):  # another process wrote it; leave it
            for name in (WEIGHTS, CONFIG, CARD):
                remove(folder / name)
            with suppress(OSError):
                if is_new:
                    folder.rmdir()
        if isinstance(error, LoadError):
            reason = error_message(error.__cause__ or error)
            raise LoadError(
                f"cannot load the exported model ({reason}); its files were removed from {folder}"
            ) from error
        if isinstance(error, OSError | ValueError):
            raise LoadError(f"cannot write {folder}: {error_message(error)}") from error
        raise


def load(folder: str | os.PathLike[str], model_from: Callable[..., nn.Module] | None = None) -> nn.Module:
    """Load a model that `maxup export RUN DIR` wrote, in evaluation mode. No code from the folder runs.

    `model.config` records how the model was trained.

    An image model takes images of shape (B, C, H, W). They are normalized: `(x / top - mean) / std` for bytes `x`, with
    `top`, `mean` and `std` from the config. A model of rows takes (B, C), normalized likewise, and a model of token ids
    takes (B, T). If `model.normalize` is true in the recipe, the model normalizes its input
    itself and takes pixels, `x / top`. A language model takes tokens (B, T), which are indices into `config["words"]`;
    `model.decode(model(tokens).output)` returns the logits of the next words.

    Args:
        folder: The folder with model.safetensors and config.json.
        model_from: Your function `(shape, num_classes, **model.args)`, for a run trained with --model_from.

    Raises:
        LoadError: The model is missing, damaged or invalid.

    Example:
        >>> load("nowhere")
        Traceback (most recent call last):
        maxup.errors.LoadError: cannot load a model from nowhere: No such file or directory (config.json)
    """
    folder = Path(folder)
    try:
        config = _config(folder)
        model = _build(config, _weights(folder, config), model_from)
    except Exception as error:  # untrusted files can raise anything
        is_run = isinstance(error, FileNotFoundError) and (folder / "checkpoints").is_dir()
        why = "it is the folder of a run; write its model with maxup export" if is_run else error_message(error)
        raise LoadError(f"cannot load a model from {folder}: {why}") from error
    model.config = config  # type: ignore[assignment]
    return model.eval()


def _config(folder: Path) -> dict[str, Any]:
    """Read config.json, with the recipe in the current format."""
    match parse(CONFIG, read(folder / CONFIG, most=LARGEST)):
        case {"format": "maxup-model", "version": version} if version != VERSION:
            raise ValueError(f"its format version is not {VERSION}")
        case {
            "format": "maxup-model",
            "files": {"model.safetensors": dict()},
            "recipe": {"task": "language", "model": {"name": str(), "args": dict()}} as recipe,
            "words": [str(), *_],
        } as config:
            return config | {"recipe": upgrade_recipe(recipe)}
        case {
            "format": "maxup-model",
            "files": {"model.safetensors": dict()},
            "recipe": {"model": {"name": str(), "args": dict()}} as recipe,
            "classes": [str(), *_],
            "shape": [int(), *_] as shape,
        } as config if len(shape) in (1, 3, 4) and all(type(size) is int and size > 0 for size in shape):
            return config | {"recipe": upgrade_recipe(recipe)}
    raise ValueError(f"{CONFIG} must have format, files, recipe, and either classes and shape, or words")


def _weights(folder: Path, config: dict[str, Any]) -> dict[str, Tensor]:
    from safetensors.torch import load as from_bytes

    return from_bytes(read(folder / WEIGHTS, config["files"][WEIGHTS]))


def _build(
    config: dict[str, Any], weights: dict[str, Tensor], model_from: Callable[..., nn.Module] | None
) -> nn.Module:
    """Build the model and load its weights.

    The model is first built on the meta device. A config that asks for a larger model than the weights hold is
    rejected before any memory is allocated.
    """
    named = config["recipe"]["model"]
    match config.get("task"):
        case {"model_from": str(name)} if name and model_from is None:
            raise ValueError(f"it is a custom network built by {name:.80}; pass that function as model_from=")
    make: Callable[..., nn.Module]
    data: dict[str, Any]
    if "words" in config:
        make, data = partial(build, LANGUAGE_MODELS, "language model", named["name"]), {"words": len(config["words"])}
    else:
        # pretrained=False: a config cannot cause a download.
        make = model_from or partial(create_model, named["name"], pretrained=False)
        data = {"shape": tuple(config["shape"]), "num_classes": len(config["classes"])}
        if named.get("normalize") is True:
            make = partial(_normalized, make)
    arguments = {k: v for k, v in named["args"].items() if k != "pretrained"} | data
    if model_from is None:
        with torch.device("meta"):
            _check_fit(make(**arguments), weights)
    with torch.random.fork_rng(devices=[]):  # the initial weights take nothing from the caller's random stream
        model = make(**arguments)
    _check_fit(model, weights)
    model.load_state_dict(weights)
    return model


def _check_fit(model: nn.Module, weights: dict[str, Tensor]) -> None:
    state = model.state_dict()
    wrong = [
        k for k, v in state.items() if k not in weights or (weights[k].shape, weights[k].dtype) != (v.shape, v.dtype)
    ]
    if wrong:
        raise ValueError(
            f"{WEIGHTS} does not fit the model in {CONFIG}: {wrong[0]} is missing or has another shape or type"
        )
    if extra := set(weights) - set(state):
        raise ValueError(f"{WEIGHTS} does not fit the model in {CONFIG}, which has no {min(extra)!r:.60}")


def _normalized(make: Callable[..., nn.Module], *, shape: tuple[int, ...], **arguments: Any) -> nn.Module:
    """Build a network that normalizes its input. Its mean and std are loaded with the weights."""
    return Normalized(make(shape=shape, **arguments), [0.0] * shape[0], [1.0] * shape[0])

"""Weights from a file, read as data: nothing in it can run code."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maxup.errors import WeightsError, error_message, first_names
from maxup.lab.models.normalize import Normalized

COUNTERS = "num_batches_tracked"  # of BatchNorm, which older files do not have


def load_weights(model: nn.Module, path: str | Path, *, new_head: bool = False) -> None:
    """Fill a model with the weights in a file, all of them.

    Args:
        model: What to fill; of a `Normalized` one the network inside, where the file has no mean and std.
        path: A safetensors file, or a state dict that `torch.load` reads with `weights_only`; the latter may lie in a
            checkpoint under "state_dict" or "model", and its names may begin with "module.".
        new_head: Leave the last layer as it is where the file's has another number of classes.
    """
    found = read_weights(path)
    if isinstance(model, Normalized) and not {"mean", "std"} <= set(found):
        model = model.model
    wanted = model.state_dict()
    missing = [name for name in wanted if name not in found and not name.endswith(COUNTERS)]
    extra = [name for name in found if name not in wanted]
    if missing or extra:
        lacks = f"; it lacks {first_names(missing)}" if missing else ""
        has = f"; the model has no {first_names(extra)}" if extra else ""
        raise WeightsError(f"{path} does not fit the model{lacks}{has}: name another file or another model")
    other = [name for name in found if found[name].shape != wanted[name].shape]
    head = {name for name, _ in _last_layer(model)}
    if strange := [name for name in other if name not in head]:
        shapes = f"{tuple(found[strange[0]].shape)}, not {tuple(wanted[strange[0]].shape)}"
        raise WeightsError(f"{path} does not fit the model: its {strange[0]} is {shapes}; name another file or model")
    if other and not new_head:
        raise WeightsError(
            f"{path} is of {len(found[other[0]])} classes and the data have {len(wanted[other[0]])}; name a file for "
            "these classes, or set model.new_head to begin with a new last layer"
        )
    model.load_state_dict({name: found[name] for name in found if name not in other}, strict=False)


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors in a file by name."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise WeightsError(
            f"there is no file {path}, which model.weights names; the first lines of a recipe say where to get it"
        )
    try:
        found = _read(path)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path} holds more than tensors, or is damaged, and nothing in it was run; save a plain state dict: "
            'torch.save(model.state_dict(), "weights.pt")'
        ) from error
    except Exception as error:  # of whatever type: the file may be hostile
        raise WeightsError(
            f"{path} cannot be read as weights, a safetensors file or a state dict: {error_message(error)}"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise WeightsError(f"{path} holds no state dict: a dict of tensors by name, or one under 'state_dict'")
    wrapped = all(str(name).startswith("module.") for name in found)
    return {str(name).removeprefix("module." if wrapped else ""): value for name, value in found.items()}


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a protocol that is unusual
        return torch.load(path, "cpu", weights_only=True)


def _last_layer(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters of the last layer that has any, by name."""
    owners = [(name, module) for name, module in model.named_modules() if module._parameters]
    prefix, layer = owners[-1] if owners else ("", model)
    return [(f"{prefix}.{name}".removeprefix("."), p) for name, p in layer.named_parameters(recurse=False)]

"""Load weights from a file. Nothing in the file can run code."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maxup.errors import ModelError, error_message, first_names
from maxup.lab.models.normalize import Normalized

EXPORTED = "model.safetensors"  # in the folder of an exported model
COUNTERS = "num_batches_tracked"  # BatchNorm buffers that older files lack


def load_weights(model: nn.Module, path: str | Path, *, new_head: bool = False) -> None:
    """Load all weights in a file into a model.

    Args:
        model: The model. If it is `Normalized` and the file has no mean and std, the network inside it is used.
        path: A safetensors file, or a state dict that `torch.load` reads with `weights_only`. The state dict may be
            under "state_dict" or "model" in a checkpoint, and its names may start with "module.". Or the folder of an
            exported model.
        new_head: Keep the model's last layer if the file has another number of classes.
    """
    weights = read_weights(path)
    if isinstance(model, Normalized) and not {"mean", "std"} <= set(weights):
        model = model.model
    state = model.state_dict()
    missing = [name for name in state if name not in weights and not name.endswith(COUNTERS)]
    extra = [name for name in weights if name not in state]
    if missing or extra:
        lacks = f"; missing: {first_names(missing)}" if missing else ""
        has = f"; unexpected: {first_names(extra)}" if extra else ""
        raise ModelError(f"{path} does not match the model{lacks}{has}; use another file or another model")
    different = [name for name in weights if weights[name].shape != state[name].shape]
    head = _last_layer(model)
    if body := [name for name in different if name not in head]:
        shapes = f"{tuple(weights[body[0]].shape)}, not {tuple(state[body[0]].shape)}"
        raise ModelError(
            f"{path} does not match the model: its {body[0]} has shape {shapes}; use another file or model"
        )
    if different and not new_head:
        raise ModelError(
            f"{path} has {len(weights[different[0]])} classes but the data has {len(state[different[0]])}; use a file "
            "for these classes, or set model.new_head to start with a new last layer"
        )
    model.load_state_dict({name: weights[name] for name in weights if name not in different}, strict=False)


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors in a file by name."""
    path = Path(path).expanduser()
    if path.is_dir() and (path / EXPORTED).is_file():
        path /= EXPORTED
    if (path / "checkpoints").is_dir():
        raise ModelError(f"{path} is the folder of a run; write its model with maxup export, and give that folder")
    if not path.is_file():
        raise ModelError(
            f"there is no file {path}; set model.weights to a file (the header of a recipe says where to get it)"
        )
    try:
        weights = _read(path)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path} holds objects other than tensors, or is damaged; nothing in it was executed; save a plain "
            'state dict: torch.save(model.state_dict(), "weights.pt")'
        ) from error
    except Exception as error:  # an untrusted file can raise anything
        raise ModelError(f"{path} is not a safetensors file or a state dict: {error_message(error)}") from error
    for key in ("state_dict", "model"):
        if isinstance(weights, dict) and isinstance(weights.get(key), dict):
            weights = weights[key]
    if not isinstance(weights, dict) or not weights or not all(isinstance(v, Tensor) for v in weights.values()):
        raise ModelError(f"{path} has no state dict; save a dict of tensors, at the top or under 'state_dict'")
    wrapped = all(str(name).startswith("module.") for name in weights)
    return {str(name).removeprefix("module." if wrapped else ""): value for name, value in weights.items()}


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an unusual pickle protocol
        return torch.load(path, "cpu", weights_only=True)


def _last_layer(model: nn.Module) -> set[str]:
    """Return the names of the parameters of the last layer that has any."""
    layers = [(name, module) for name, module in model.named_modules() if module._parameters]
    prefix, layer = layers[-1] if layers else ("", model)
    return {f"{prefix}.{name}".removeprefix(".") for name, _ in layer.named_parameters(recurse=False)}

"""Write a network as an ONNX file."""

import logging
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from maxup.errors import LoadError, error_message

FILE = "model.onnx"
PACKAGES = ("onnx", "onnxscript")


def check_onnx() -> None:
    """Raise a LoadError if a package that PyTorch's exporter needs is missing."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise LoadError(
            f"--onnx needs packages that are not installed ({', '.join(missing)}): pip install 'maxup[onnx]'"
        )


def save_onnx(path: Path, model: nn.Module, shape: Sequence[int]) -> None:
    """Write the network with an input "images" of shape (batch, *shape) and an output "logits".

    Call `check_onnx` first.

    Args:
        path: The file to write.
        model: The network. It is exported in evaluation mode, on the CPU.
        shape: Shape of an image, (C, H, W).

    Raises:
        LoadError: The network has an operation that cannot be exported.
    """
    model = model.cpu().eval()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's exporter warns about its own code
            torch.onnx.export(
                model, (torch.zeros(2, *shape),), path, input_names=["images"], output_names=["logits"], dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},), external_data=False, verbose=False,
            )  # fmt: skip
    except Exception as error:  # the exporter raises many types
        raise LoadError(f"cannot write {path}: {error_message(error)[:300]}; the other files are complete") from error

"""Import torchvision beside a torch that its wheel was not built for."""

from importlib import import_module
from typing import Any

import torch

_libraries: list[torch.library.Library] = []  # operator definitions live as long as these objects


def import_torchvision() -> Any:
    """Import torchvision even if its wheel was built for another torch.

    Next to a CPU-only torch, the import of a CUDA wheel fails with "operator torchvision::nms does not exist", and so
    do imports of timm and others. This function then declares the missing operators without defining them. Nothing in
    this package calls them.
    """
    try:
        return import_module("torchvision")
    except RuntimeError as error:
        if "nms" not in str(error):
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    _libraries.append(library)
    return import_module("torchvision")

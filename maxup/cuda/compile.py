"""Compile a network by its blocks: what repeats is compiled once for each shape, which is quicker than the whole."""

from collections import Counter
from typing import Any

import torch
from torch import nn

VARIANTS = 64  # shapes and modes of one kind of block: stages, training, scoring


def compile_blocks(model: nn.Module, **options: Any) -> int:
    """Compile in place the blocks that repeat; names in the model's state stay the same.

    Args:
        model: What is about to be trained.
        options: Those of `torch.compile`.

    Returns:
        How many blocks there are.

    Example:
        >>> from maxup.lab.models import create_model
        >>> compile_blocks(create_model("resnet20", shape=(3, 32, 32), num_classes=10), backend="eager")
        9
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, VARIANTS)
    blocks = _repeated(model)
    for block in blocks:
        block.compile(dynamic=False, **options)
    return len(blocks)


def _repeated(model: nn.Module) -> list[nn.Module]:
    """Modules with modules of their own that stand in a row with others of their class, the outermost ones."""
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            kinds = Counter(type(part) for part in child if any(part.children()))
            blocks = [part for part in child if kinds[type(part)] > 1 and not isinstance(part, nn.Sequential)]
            if blocks:
                found += blocks
                continue
        found += _repeated(child)
    return found

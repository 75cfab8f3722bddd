"""Compile a network block by block: repeated blocks compile once per shape, faster than the whole network."""

from collections import Counter
from typing import Any

import torch
from torch import nn

VARIANTS = 64  # recompilations allowed per kind of block, for shapes and modes (training, scoring)


def compile_blocks(model: nn.Module, **options: Any) -> int:
    """Compile the repeated blocks of a model in place. The names in its state_dict do not change.

    `options` are passed to `torch.compile`. Returns the number of compiled blocks.
    """
    allow_variants()
    blocks = _repeated(model)
    for block in blocks:
        block.compile(dynamic=False, **options)
    return len(blocks)


def allow_variants() -> None:
    """Let torch.compile recompile a module for every shape and mode, up to `VARIANTS` times."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, VARIANTS)


def _repeated(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules with submodules that repeat, by class, within an nn.Sequential or nn.ModuleList."""
    repeated: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            kinds = Counter(type(part) for part in child if any(part.children()))
            blocks = [part for part in child if kinds[type(part)] > 1 and not isinstance(part, nn.Sequential)]
            if blocks:
                repeated += blocks
                continue
        repeated += _repeated(child)
    return repeated

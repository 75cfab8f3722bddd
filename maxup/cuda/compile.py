"""Compile a network block by block: repeated blocks compile once per shape, faster than the whole network."""

from collections import Counter
from typing import Any

from torch import nn

from maxup.scoring import allow_variants


def compile_blocks(model: nn.Module, **options: Any) -> int:
    """Compile the repeated blocks of a model in place. The names in its state_dict do not change.

    `options` are passed to `torch.compile`. Returns the number of compiled blocks.
    """
    allow_variants()
    blocks = _repeated(model)
    for block in blocks:
        block.compile(dynamic=False, **options)
    return len(blocks)


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

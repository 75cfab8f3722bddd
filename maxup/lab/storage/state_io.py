"""Split a nested state into tensors for safetensors and a document for JSON, and join them again without loss."""

import math
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from maxup.errors import a_type

DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.bool}
DTYPES |= {torch.int8, torch.int16, torch.int32, torch.int64}
DTYPES |= {torch.uint8, torch.uint16, torch.uint32, torch.uint64}


def pack(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """Split a nested state into tensors and a document.

    Args:
        tree: Dicts with str or int keys, lists, tuples, None, bool, int, float, str and tensors, nested in any way. A
            Parameter becomes a plain tensor. An OrderedDict keeps the `_metadata` of a module's `state_dict`.

    Returns:
        The tensors by their path in the tree, on the CPU and contiguous, and a document for strict JSON. The tensors
        share no memory with each other, but may share it with the tree.

    Raises:
        TypeError: The tree holds an object of another type.

    Example:
        >>> tensors, document = pack({"step": 3, "w": (torch.ones(2), math.inf)})
        >>> tensors
        {'w/0': tensor([1., 1.])}
        >>> document
        {'dict': [['step', 3], ['w', {'tuple': [{'tensor': 'w/0'}, {'float': 'inf'}]}]]}
        >>> unpack(tensors, document)
        {'step': 3, 'w': (tensor([1., 1.]), inf)}
    """
    tensors: dict[str, Tensor] = {}
    memory: set[int] = set()  # addresses of the storages seen so far

    def walk(node: Any, path: tuple[str, ...]) -> Any:
        kind, name = type(node), "/".join(path)
        if node is None or kind in (bool, int, str) or (kind is float and math.isfinite(node)):
            return node
        if kind is float:
            return {"float": str(node)}
        if kind is list or kind is tuple:
            items = [walk(item, (*path, str(i))) for i, item in enumerate(node)]
            return items if kind is list else {"tuple": items}
        if kind in (dict, OrderedDict) and all(type(key) in (str, int) for key in node):
            pairs = [[key, walk(value, (*path, str(key)))] for key, value in node.items()]
            if kind is dict:
                return {"dict": pairs}
            return {"ordered": [pairs, walk(getattr(node, "_metadata", None), (*path, "_metadata"))]}
        dense = kind in (Tensor, nn.Parameter) and node.layout == torch.strided and not node.is_meta
        if not dense or node.dtype not in DTYPES:
            raise TypeError(
                f"{name or 'the state'} cannot be saved, because it is {_describe(node)}; a state holds dicts with str "
                "or int keys, lists, tuples, None, bool, int, float, str and dense tensors: convert it first"
            )
        tensor = node.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if tensor.untyped_storage().data_ptr() in memory:
            tensor = tensor.clone()  # safetensors rejects tied weights
        memory.add(tensor.untyped_storage().data_ptr())
        while name in ("", "__metadata__") or name in tensors:  # "a/b" may be a key, or b in a
            name += "#"
        tensors[name] = tensor
        return {"tensor": name}

    return tensors, walk(tree, ())


def unpack(tensors: dict[str, Tensor], document: Any) -> Any:
    """Return the state that `pack` split.

    Raises:
        ValueError: The document or the tensors do not come from `pack`.
    """
    unused = dict(tensors)

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        match node:
            case {"float": str(word)}:
                return float(word)
            case {"tuple": [*items]}:
                return tuple(walk(item) for item in items)
            case {"dict": [*pairs]}:
                return {key: walk(value) for key, value in pairs}
            case {"ordered": [[*pairs], metadata]}:
                ordered = OrderedDict((key, walk(value)) for key, value in pairs)
                if metadata is not None:
                    ordered._metadata = walk(metadata)  # type: ignore[attr-defined]
                return ordered
            case {"tensor": str(name)} if name in unused:
                return unused.pop(name)
        raise ValueError(f"an entry is invalid, or its tensor is missing or used twice: {node!r:.60}")

    try:
        tree = walk(document)
    except TypeError as error:  # a pair that is not a pair, a key that is a list
        raise ValueError(f"a dict is invalid: {error}") from error
    if unused:
        raise ValueError(f"no entry uses the tensor {min(unused)!r:.60}")
    return tree


def _describe(node: Any) -> str:
    if isinstance(node, Tensor):
        return f"a tensor of {node.dtype}, {node.layout}, on {node.device}"
    return a_type(node) + (" with keys of other types" if isinstance(node, dict) else "")

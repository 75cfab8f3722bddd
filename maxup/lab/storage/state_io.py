"""A nested state as tensors for safetensors and a document for JSON, and back, exactly."""

import math
from collections import OrderedDict
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

DEPTH = 64  # of nesting: far above any optimizer's, far below Python's limit of recursion
BITS = 2048  # of an int: what Python reads from decimal digits under any setting
DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.bool}
DTYPES |= {torch.int8, torch.int16, torch.int32, torch.int64}
DTYPES |= {torch.uint8, torch.uint16, torch.uint32, torch.uint64}


def pack(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """Split a nested state into tensors and a document.

    Args:
        tree: Dicts with str or int keys, lists, tuples, None, bool, int, float, str and tensors, nested at will. A
            Parameter is kept as a plain tensor, an OrderedDict with the `_metadata` of a module's `state_dict`.

    Returns:
        The tensors by their path in the tree, on the CPU, contiguous, none sharing memory with another (perhaps with
        yours); and the document, for strict JSON.

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
    memory: set[int] = set()  # the storages seen so far

    def walk(node: Any, path: tuple[str, ...]) -> Any:
        kind, where = type(node), "/".join(path)
        if len(path) > DEPTH:
            raise TypeError(f"the state is nested deeper than {DEPTH} at {where[:60]}...; does it hold itself?")
        if _is_plain(node):
            return node
        if kind is float:
            return {"float": str(node)}
        if kind is list or kind is tuple:
            items = [walk(item, (*path, str(i))) for i, item in enumerate(node)]
            return items if kind is list else {"tuple": items}
        if kind is dict or kind is OrderedDict:
            for key in node:
                if type(key) not in (str, int) or not _is_plain(key):
                    _refuse(f"a key of {where or 'the state'}", key)
            pairs = [[key, walk(value, (*path, str(key)))] for key, value in node.items()]
            if kind is dict:
                return {"dict": pairs}
            return {"ordered": [pairs, walk(getattr(node, "_metadata", None), (*path, "_metadata"))]}
        dense = kind in (Tensor, nn.Parameter) and node.layout == torch.strided and not node.is_meta
        if not dense or node.dtype not in DTYPES:
            _refuse(where or "the state", node)
        tensor = node.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if tensor.untyped_storage().data_ptr() in memory:
            tensor = tensor.clone()  # safetensors refuses tied weights
        memory.add(tensor.untyped_storage().data_ptr())
        while where in ("", "__metadata__") or where in tensors:  # "a/b" may be a key, or b in a
            where += "#"
        tensors[where] = tensor
        return {"tensor": where}

    return tensors, walk(tree, ())


def unpack(tensors: dict[str, Tensor], document: Any) -> Any:
    """The state that `pack` split.

    Raises:
        ValueError: `pack` wrote no such thing.

    Example:
        >>> unpack({}, {"dict": [[0, {"float": "nan"}]]})
        {0: nan}
    """
    left = dict(tensors)

    def walk(node: Any, depth: int) -> Any:
        if depth > DEPTH:
            raise ValueError(f"it is nested deeper than {DEPTH}")
        if _is_plain(node):
            return node
        if type(node) is list:
            return [walk(item, depth + 1) for item in node]
        match list(node.items()) if type(node) is dict else None:
            case [("float", "nan" | "inf" | "-inf" as word)]:
                return float(word)
            case [("tuple", [*items])]:
                return tuple(walk(item, depth + 1) for item in items)
            case [("dict", [*pairs])]:
                return mapping(pairs, depth)
            case [("ordered", [[*pairs], metadata])]:
                ordered = OrderedDict(mapping(pairs, depth))
                if metadata is not None:
                    ordered._metadata = walk(metadata, depth + 1)  # type: ignore[attr-defined]
                return ordered
            case [("tensor", str(name))] if name in left:
                return left.pop(name)
        raise ValueError(f"it holds what no state does, or a tensor unknown or used twice: {node!r:.60}")

    def mapping(pairs: list[Any], depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for pair in pairs:
            if type(pair) is not list or len(pair) != 2 or type(pair[0]) not in (str, int) or pair[0] in found:
                raise ValueError(f"a dict in it has no key, a bad one or one twice: {pair!r:.60}")
            found[pair[0]] = walk(pair[1], depth + 1)
        return found

    tree = walk(document, 0)
    if left:
        raise ValueError(f"the tensor {min(left)!r:.60} belongs nowhere")
    return tree


def _is_plain(node: Any) -> bool:
    """Whether JSON holds it as it is: halves of a surrogate pair, for one, would come back joined."""
    kind = type(node)
    if kind is str:
        return not any("\ud800" <= character <= "\udfff" for character in node)
    if kind is int:
        return node.bit_length() <= BITS
    return node is None or kind is bool or (kind is float and math.isfinite(node))


def _refuse(what: str, node: Any) -> NoReturn:
    kind = f"tensor of {node.dtype}, {node.layout}, on {node.device}" if isinstance(node, Tensor) else repr(type(node))
    raise TypeError(
        f"{what} cannot be saved, a {kind}; a state holds dicts with str or int keys, lists, tuples, None, bool, int, "
        "float, str and dense tensors: convert it first"
    )

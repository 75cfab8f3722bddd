"""Parse pickles as data: dicts, lists, strings and arrays of bytes. Nothing in the file is imported or called.

Python's unpickler runs the code that a file asks for. This parser knows only the opcodes that the CIFAR files use. It
replaces the NumPy names in them by placeholders and rejects everything else. Memory is bounded by the size of the file
and the number of its opcodes, not by the sizes that the file claims.
"""

import io
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from pickletools import opcodes
from typing import Any

from maxup.errors import DataError, error_message
from maxup.lab.storage.atomic_io import read_bytes

MAX_BYTES = 2**28  # the largest usual file, the training set of CIFAR-100, has 155 MB
MAX_STEPS = 2**20  # it has about 200,000 opcodes

CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
LITERALS = {
    "BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES",
    "SHORT_BINBYTES",
}  # fmt: skip
BUILDERS = {
    "PROTO", "FRAME", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND",
    "APPENDS", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET", "GLOBAL",
    "STACK_GLOBAL", "REDUCE", "BUILD",
}  # fmt: skip
KNOWN = {*CONSTANTS, *LITERALS, *BUILDERS}
INSTRUCTIONS = {opcode.code.encode("latin-1"): opcode for opcode in opcodes}


class AllowedName(Enum):
    """Placeholders for the names in the files."""

    RECONSTRUCT, NDARRAY, DTYPE, BYTE, ENCODE = range(5)


NAMES = {
    "numpy.core.multiarray _reconstruct": AllowedName.RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": AllowedName.RECONSTRUCT,  # since NumPy 2
    "numpy ndarray": AllowedName.NDARRAY,
    "numpy dtype": AllowedName.DTYPE,
    "_codecs encode": AllowedName.ENCODE,  # how Python 3 writes bytes for Python 2
}


@dataclass
class ByteArray2d:
    """Placeholder for a two-dimensional NumPy array of bytes."""

    rows: int = 0
    columns: int = 0
    content: str | bytes = b""

    def copy(self) -> bytearray:
        """Return the bytes in row-major order."""
        return bytearray(self.content, "latin-1") if isinstance(self.content, str) else bytearray(self.content)


def read_pickle(path: Path) -> Any:
    """Read a pickle. Strings of Python 2 become str, one character per byte."""
    try:
        raw = read_bytes(path, most=MAX_BYTES)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error_message(error)}); replace it with a fresh copy") from error
    try:
        return parse(raw)
    except (ValueError, IndexError, KeyError) as error:
        reason = error if type(error) is ValueError else "it is damaged"
        raise DataError(f"{path} is not one of the usual pickles: {reason}; replace it with a fresh copy") from error


def parse(raw: bytes) -> Any:
    """Return the object that a pickle describes.

    Raises:
        ValueError, IndexError, KeyError: The pickle is malformed, or has more than plain data.
    """
    file, machine = io.BytesIO(raw), _Machine()
    for _ in range(MAX_STEPS):
        code = file.read(1)
        instruction = INSTRUCTIONS.get(code)
        if instruction is None:
            raise ValueError(f"it has the invalid opcode {code!r}" if code else "it is truncated")
        if instruction.name not in KNOWN:  # before its argument is read
            raise ValueError(f"it has the opcode {instruction.name}")
        if instruction.name == "STOP":
            break
        arg: Any
        if instruction.name == "GLOBAL":  # two raw lines; the reader of pickletools would unescape them
            arg = " ".join(file.readline().removesuffix(b"\n").decode("ascii") for _ in range(2))
        else:
            arg = instruction.arg.reader(file) if instruction.arg else None
        machine.step(instruction.name, arg)
    else:
        raise ValueError(f"it has more than {MAX_STEPS} opcodes")
    if machine.below or len(machine.stack) != 1 or file.tell() != len(raw):
        raise ValueError("it has data after its end")
    return machine.stack[0]


class _Machine:
    """The pickle machine: the stack, the stacks below each mark, and the memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, arg: Any) -> None:
        """Run one opcode. An empty stack raises IndexError, a missing memo entry KeyError."""
        push, pop = self.stack.append, self.stack.pop
        match name:
            case _ if name in LITERALS:
                push(arg)
            case _ if name in CONSTANTS:
                push(CONSTANTS[name])
            case "BINPUT" | "LONG_BINPUT":
                self.memo[arg] = self.stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                push(self.memo[arg])
            case "MARK":
                self.below.append(self.stack)
                self.stack = []
            case "EMPTY_DICT":
                push({})
            case "EMPTY_LIST":
                push([])
            case "TUPLE":
                items = tuple(self.above_mark())
                self.stack.append(items)
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                push(tuple([pop() for _ in range(int(name[-1]))][::-1]))
            case "APPEND":
                self.extend([pop()])
            case "APPENDS":
                self.extend(self.above_mark())
            case "SETITEM":
                self.update([pop(), pop()][::-1])
            case "SETITEMS":
                self.update(self.above_mark())
            case "GLOBAL":
                push(_name(arg))
            case "STACK_GLOBAL":
                what, module = pop(), pop()
                push(_name(f"{module} {what}" if isinstance(module, str) and isinstance(what, str) else "no name"))
            case "REDUCE":
                args, what = pop(), pop()
                push(_call(what, args))
            case "BUILD":
                state = pop()
                _fill(self.stack[-1], state)

    def above_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("it appends to something that is not a list")
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        keys, values = items[::2], items[1::2]
        if not isinstance(self.stack[-1], dict) or len(keys) != len(values):
            raise ValueError("it sets items of something that is not a dict, or keys without values")
        if not all(isinstance(key, str | bytes) for key in keys):  # hashing nested tuples can take forever
            raise ValueError("it has a dict with keys that are not strings")
        self.stack[-1].update(zip(keys, values, strict=True))


def _name(dotted: str) -> AllowedName:
    if dotted not in NAMES:
        raise ValueError(f"it imports {dotted[:80]!r}, which is not allowed")
    return NAMES[dotted]


def _call(what: Any, args: Any) -> Any:
    """Return the result of a call, if it is one of the calls in the CIFAR files."""
    match what, args:
        case AllowedName.RECONSTRUCT, (AllowedName.NDARRAY, (0,), "b" | b"b"):
            return ByteArray2d()
        case AllowedName.DTYPE, ("u1", 0, 1):
            return AllowedName.BYTE
        case AllowedName.ENCODE, (str() as text, "latin1"):
            return text  # one character per byte, like a string of Python 2; repeated copies could fill the memory
    raise ValueError("it contains a call that is not allowed")


def _fill(target: Any, state: Any) -> None:
    match target, state:
        case AllowedName.BYTE, (3, "|", None, None, None, -1, -1, 0):
            return
        case ByteArray2d(), (1, (int() as rows, int() as columns), AllowedName.BYTE, False, str() | bytes() as content):
            if min(rows, columns) < 0 or rows * columns != len(content):
                raise ValueError(f"it has {len(content)} bytes for an array of {rows} x {columns}")
            target.rows, target.columns, target.content = rows, columns, content
            return
    raise ValueError("it has an array that is not rows of bytes")

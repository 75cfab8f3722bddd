"""Ways to damage and to forge bytes, JSON documents and files."""

import json
import os
import pickle
from pathlib import Path
from random import Random
from typing import Any

from tests.lab.storage.test_checkpoint_hostile import mutate as mutate_bytes
from tests.torture.outcomes import PAYLOAD

ODD = [
    None, True, False, 0, -1, 1, 2, 7, 10**9, 10**30, -(10**30), 2**63, 0.5, -0.5, 1e-320, 1e300, float("nan"),
    float("inf"), -float("inf"), "", " ", "x", "x" * 10_000, "nan", "1e999", "0x10", "../..", "/dev/null",
    "\x1b[31mred", "a\nb", "\u202e", "\ud83d\ude00", "$\\frac{$", "%s%n", "{}", [], {}, [[]], [None], ["x"],
    [1, 2, 3], {"x": 1}, {"": {}}, [[[[[[[[[]]]]]]]]], [0] * 1000,
]  # fmt: skip


class Payload:
    """What makes a folder where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (PAYLOAD,)


def mutate_json(document: Any, chance: Random) -> Any:
    """A document with one value replaced, removed or added, somewhere."""
    document = json.loads(json.dumps(document))
    holder, key = _pick(document, chance)
    if holder is None:
        return chance.choice(ODD)
    kind = chance.randrange(4)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[str(chance.choice(ODD))[:50]] = holder[key]
    elif kind == 2 and type(holder[key]) in (int, float):
        holder[key] = chance.choice([-1, 1]) * (holder[key] + chance.choice([-1, 0, 0.25, 1, 2, 1000, 10**12]))
    else:
        holder[key] = chance.choice(ODD)
    return document


def _pick(document: Any, chance: Random) -> tuple[Any, Any]:
    """A container in a document, and one of its keys; the deeper, the rarer."""
    holder, key = None, None
    while isinstance(document, dict | list) and document:
        holder = document
        key = chance.choice(list(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
        document = holder[key]
        if chance.random() < 0.2:
            break
    return holder, key


def to_json(document: Any) -> bytes:
    """JSON as Python writes it: NaN and infinity included, which is one more mutation."""
    return json.dumps(document).encode("ascii")


def mutate_file(path: Path, chance: Random, elsewhere: Path) -> str:
    """Damage a file, or put something else in its place; says what."""
    kind = chance.choice(
        ["bytes"] * 6 + ["json"] * 6 + ["removed", "empty", "folder", "pipe", "link", "pickle", "hole"]
    )
    if kind == "json":
        try:
            lines = path.read_text().splitlines()
            at = chance.randrange(len(lines))
            lines[at] = to_json(mutate_json(json.loads(lines[at]), chance)).decode()
            path.write_text("\n".join(lines) + "\n")
        except (ValueError, UnicodeDecodeError):
            kind = "bytes"
    if kind == "bytes":
        path.write_bytes(mutate_bytes(path.read_bytes(), chance))
        return kind
    if kind == "json":
        return kind
    path.unlink()
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Payload()))
    elif kind == "hole":
        path.touch()
        os.truncate(path, 1 << 36)
    return kind

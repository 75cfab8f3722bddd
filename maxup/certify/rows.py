r"""Certificates as a TSV with the columns every reader of this field knows: idx label predict radius correct time.

Its first line, a comment, is JSON: what was certified and how, so that rows of another model, noise or precision never
come to stand below each other. With pandas installed, `pandas.read_csv(path, sep="\t", comment="#")` reads it. With
adaptive sampling one more column, samples, says how many noisy copies were used.
"""

import glob
import json
import math
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from maxup.certify.smooth import Certificate
from maxup.engine import durable
from maxup.output import say
from maxup.sentences import reason

COLUMNS = ["idx", "label", "predict", "radius", "correct", "time"]
FORMAT = "maxup-certificates"
# What all rows of a file have in common.
SAME = ("model", "images", "sigma", "dtype", "forward", "n0", "n", "alpha", "sampling", "radii", "seed")


class RowsError(RuntimeError):
    """A file that holds no certificates, or those of something else, in one sentence."""


@dataclass(frozen=True)
class Row:
    """The certificate of one image.

    Example:
        >>> row = Row.of(7, 3, Certificate(predict=3, radius=0.51239999, samples=1000, seconds=1.5))
        >>> row.text(samples=False).split()
        ['7', '3', '3', '0.512399', '1', '0:00:01.500000']
    """

    idx: int
    label: int
    predict: int
    """-1 for an abstention."""
    radius: float
    correct: bool
    time: str
    samples: int | None = None

    @classmethod
    def of(cls, idx: int, label: int, found: Certificate) -> "Row":
        """Of a certificate, the radius rounded down."""
        radius = math.floor(found.radius * 1e6) / 1e6
        took = str(timedelta(seconds=found.seconds))
        return cls(idx, label, found.predict, radius, found.predict == label, took, found.samples)

    @classmethod
    def parse(cls, line: str) -> "Row":
        """From its line."""
        idx, label, predict, radius, correct, took, *more = line.rstrip("\n").split("\t")
        row = cls(
            int(idx), int(label), int(predict), float(radius), correct == "1", took, int(more[0]) if more else None
        )
        sound = row.idx >= 0 and row.predict >= -1 and 0 <= row.radius < math.inf and len(more) <= 1
        if not sound or correct != str(int(row.predict == row.label)):
            raise ValueError(line)
        return row

    def certified(self, radius: float) -> bool:
        """Whether the answer is right and cannot be changed within a radius."""
        return self.correct and self.radius >= radius

    def text(self, *, samples: bool) -> str:
        """As its line."""
        cells = [self.idx, self.label, self.predict, f"{self.radius:.6f}", int(self.correct), self.time]
        return "\t".join(map(str, [*cells, self.samples] if samples else cells)) + "\n"


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """What a file is about, and a row for each image; a last line that was cut off is left out, and named on stderr."""
    about, rows, end = _read(path)
    if end < path.stat().st_size:
        say(f"{path}: its last line was cut off, and is left out", file=sys.stderr)
    return about, list({row.idx: row for row in rows}.values())


def begin(path: Path, about: dict[str, Any]) -> list[Row]:
    """Make a file ready for more rows, new or of the very same kind, its last line mended; returns its rows."""
    theirs, rows, end = _read(path) if path.exists() else (about, [], 0)
    if not rows:  # nothing to lose: it may be about anything
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.replace(path, _text(about, []).encode())
        return []
    for key in SAME:
        if theirs.get(key) != about.get(key):
            raise RowsError(
                f"{path} belongs to another {key}: it has {_short(theirs.get(key))}, but this is "
                f"{_short(about.get(key))}; write elsewhere with --out, or remove it"
            )
    if not _agree(theirs.get("answers"), about.get("answers")):
        raise RowsError(
            f"{path} belongs to another forward pass of the same weights, or was written before answers were compared; "
            "write elsewhere with --out, or remove it"
        )
    if end < path.stat().st_size:
        os.truncate(path, end)
    return rows


def append(path: Path, rows: Iterable[Row], *, samples: bool) -> None:
    """Add rows; when this returns they are on the disk."""
    with path.open("a") as file:
        for row in rows:
            file.write(row.text(samples=samples))
        file.flush()
        os.fsync(file.fileno())


def gather(path: Path, about: dict[str, Any]) -> list[Row]:
    """Bring the parts that several processes wrote into the file itself, sorted by image; returns all rows."""
    parts = sorted(path.parent.glob(f"{glob.escape(path.name)}.rank-*"))
    if not parts and not path.exists():
        return []
    found = {row.idx: row for part in [*parts, path] if part.exists() for row in begin(part, about)}
    rows = [found[idx] for idx in sorted(found)]
    if parts or not path.exists() or rows != _read(path)[1]:
        kept = read(path)[0] if path.exists() else about
        durable.replace(path, _text(kept, rows).encode())
    for part in parts:
        durable.remove(part)
    return rows


def _text(about: dict[str, Any], rows: Iterable[Row]) -> str:
    samples = about["sampling"] != "fixed"
    columns = [*COLUMNS, "samples"] if samples else COLUMNS
    head = f"# {json.dumps({'format': FORMAT, 'version': 1} | about)}\n" + "\t".join(columns) + "\n"
    return head + "".join(row.text(samples=samples) for row in rows)


def _read(path: Path) -> tuple[dict[str, Any], list[Row], int]:
    """What it is about, its whole rows, and the byte at which they end."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise RowsError(f"there is no file {path}; name a TSV that maxup certify wrote") from None
    except OSError as error:
        raise RowsError(f"{path} is no table of certificates: {reason(error)}") from None
    wanted = "give a TSV that maxup certify wrote, which begins with a line of JSON"
    try:
        first, columns, *lines = data.decode("ascii").splitlines(keepends=True)
        about = json.loads(first.removeprefix("# "))
    except (ValueError, RecursionError):
        raise RowsError(f"{path} is no table of certificates; {wanted}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("version") != 1:
        raise RowsError(f"{path} is no table of certificates: its first line does not say so; {wanted}")
    if absent := [key for key in SAME if key not in about]:
        raise RowsError(f"{path} is no table of certificates: its first line lacks {', '.join(absent)}; {wanted}")
    for key, value in about.items():
        if isinstance(value, int | float) and not abs(value) < 2**63:
            raise RowsError(f"{path} is no table of certificates: its {key} is {str(value)[:20]}; {wanted}")
    if columns.split() not in (COLUMNS, [*COLUMNS, "samples"]):
        came = " ".join(columns.split())[:60]
        raise RowsError(f"{path} is no table of certificates: its columns are {came}; {wanted}")
    if lines and not lines[-1].endswith("\n"):
        lines.pop()  # a kill cut it off
    rows = []
    for number, line in enumerate(lines, 3):
        try:
            rows.append(Row.parse(line))
        except ValueError:
            raise RowsError(
                f"{path} has a line {number} that is no certificate, {line.strip()[:60]!r}; remove the line, or write "
                "elsewhere with --out"
            ) from None
    return about, rows, sum(map(len, [first, columns, *lines]))


def _agree(one: list[float] | None, other: list[float] | None) -> bool:
    """Whether logits are the same but for rounding."""
    if not one or not other:
        return one == other
    most = 0.01 * max(map(abs, one))
    return len(one) == len(other) and all(abs(a - b) <= most for a, b in zip(one, other, strict=True))


def _short(value: Any) -> str:
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == 64 else json.dumps(value)

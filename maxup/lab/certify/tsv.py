r"""Certificates as a TSV with the columns every reader of this field knows: idx label predict radius correct time.

The first line, a comment, is JSON: what was certified and how, so that rows of another model, noise or precision never
follow each other. With adaptive sampling a column, samples, says how many noisy copies were used. The last column,
hash, makes changes evident. Each row's hash is the first 16 hex digits of SHA-256(previous hash + tab + the row's other
cells joined by tabs). The first row uses the hash of line 1 + tab + line 2 as the previous hash. Anybody can compute
these hashes: they show damage and edits, not forgery. They do not cover rows that are missing at the end, so "asked" in
the first line is the number of images that the file has when it is finished. With pandas installed,
`pandas.read_csv(path, sep="\t", comment="#")` reads the file.
"""

import glob
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from maxup.errors import CertificateError, error_message
from maxup.lab.certify.validate import SAME, Limits, check_settings
from maxup.lab.output import say
from maxup.lab.storage import atomic_io
from maxup.smoothing.smooth import Certificate

COLUMNS = ["idx", "label", "predict", "radius", "correct", "time"]
FORMAT, VERSION = "maxup-certificates", 2
DIGITS = 16  # of a hash
LARGEST = 1 << 28  # bytes: two million images and more
WANTED = "give a TSV that maxup certify wrote, which begins with a line of JSON"
AGAIN = "restore the file, or remove this line and all below, and the same maxup certify command writes them again"


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
    def parse(cls, text: str) -> "Row":
        """From its text; a ValueError if no row has this text."""
        idx, label, predict, radius, correct, took, *more = text.split("\t")
        samples = int(more[0]) if more else None
        row = cls(int(idx), int(label), int(predict), float(radius), correct == "1", took, samples)
        if row.text(samples=bool(more)) != text:
            raise ValueError("it is not as maxup certify writes it")
        return row

    def certified(self, radius: float) -> bool:
        """Whether the answer is right and cannot be changed within a radius."""
        return self.correct and self.radius >= radius

    def text(self, *, samples: bool) -> str:
        """Its cells but for the hash, joined by tabs."""
        cells = [self.idx, self.label, self.predict, f"{self.radius:.6f}", int(self.correct), self.time]
        return "\t".join(map(str, [*cells, self.samples] if samples else cells))


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """What a file is about, and its rows; a last line that was cut off is left out, and named on stderr."""
    about, rows, end = _read(path)
    if end < path.stat().st_size:
        say(f"{path}: its last line was cut off, and is left out", file=sys.stderr)
    return about, rows


def begin(path: Path, about: dict[str, Any], labels: Sequence[int] | None = None) -> list[Row]:
    """Make a file ready for more rows, new or of the very same kind, without a half-written line; returns its rows.

    Args:
        path: The file.
        about: What its rows must be about.
        labels: The labels of all images, to compare the rows with.
    """
    theirs, rows, end = _read(path) if path.exists() else (about, [], 0)
    if not rows:  # nothing to lose: it may be about anything
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_io.replace(path, _text(about, []).encode())
        return []
    for key in SAME:
        if theirs.get(key) != about.get(key):
            raise CertificateError(
                f"{path} belongs to another {key}: it has {_short(theirs.get(key))}, but this is "
                f"{_short(about.get(key))}; write elsewhere with --out, or remove it"
            )
    if not _agree(theirs.get("answers"), about.get("answers")):
        raise CertificateError(
            f"{path} belongs to another forward pass of the same weights, or was written before answers were compared; "
            "write elsewhere with --out, or remove it"
        )
    for number, row in enumerate(rows, 3):
        if labels is not None and (row.idx >= len(labels) or row.label != labels[row.idx]):
            raise CertificateError(
                f"{path} has a line {number} with an image or a label that the data does not have; {AGAIN}"
            )
    if end < path.stat().st_size:
        os.truncate(path, end)
    return rows


def append(path: Path, rows: Iterable[Row], *, samples: bool) -> None:
    """Add rows to a file that `begin` made ready; when this returns they are on the disk."""
    first, columns, *lines, _ = _lines(path)
    above = lines[-1].rpartition("\t")[2] if lines else _hash(first, columns)
    try:
        with path.open("a") as file:
            file.writelines(_chain(above, rows, samples=samples))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = os.fspath(path)  # which a write that failed does not name
        raise


def gather(path: Path, about: dict[str, Any], labels: Sequence[int] | None = None) -> list[Row]:
    """Bring the parts that several processes wrote into the file itself, sorted by image; returns all rows."""
    parts = sorted(path.parent.glob(f"{glob.escape(path.name)}.rank-*"))
    if not parts and not path.exists():
        return []
    found: dict[int, Row] = {}
    for part in [*parts, path]:
        for row in begin(part, about, labels) if part.exists() else []:
            if found.setdefault(row.idx, row) != row:
                raise CertificateError(
                    f"{part} has another certificate of image {row.idx} than a file beside it; remove one"
                )
    rows = [found[idx] for idx in sorted(found)]
    if parts or not path.exists() or rows != _read(path)[1]:
        kept = read(path)[0] if path.exists() else about
        atomic_io.replace(path, _text(kept, rows).encode())
    for part in parts:
        atomic_io.remove(part)
    return rows


def expect(path: Path, images: int) -> None:
    """Write into a file how many images it has when it is finished, so that it shows if the last ones are missing."""
    if path.exists():
        about, rows = read(path)
        if about.get("asked") != images:
            atomic_io.replace(path, _text(about | {"asked": images}, rows).encode())


def missing(about: dict[str, Any], rows: Sequence[Row]) -> str | None:
    """Such as "64 of 65" for a file that is not finished; None if it is, or if an older version wrote it.

    Example:
        >>> missing({"asked": 65}, []), missing({}, [])
        ('0 of 65', None)
    """
    asked = about.get("asked", 0)
    return f"{len(rows)} of {asked}" if len(rows) < asked else None


def _text(about: dict[str, Any], rows: Iterable[Row]) -> str:
    first = f"# {json.dumps({'format': FORMAT, 'version': VERSION} | about, allow_nan=False)}"
    columns, samples = "\t".join(_columns(about)), about["sampling"] != "fixed"
    return f"{first}\n{columns}\n" + "".join(_chain(_hash(first, columns), rows, samples=samples))


def _columns(about: dict[str, Any]) -> list[str]:
    return [*COLUMNS, *(["samples"] if about["sampling"] != "fixed" else []), "hash"]


def _chain(above: str, rows: Iterable[Row], *, samples: bool) -> Iterator[str]:
    """The lines of rows, each with the hash of itself and the hash above."""
    for row in rows:
        text = row.text(samples=samples)
        above = _hash(above, text)
        yield f"{text}\t{above}\n"


def _hash(above: str, text: str) -> str:
    return atomic_io.sha256(f"{above}\t{text}".encode())[:DIGITS]


def _read(path: Path) -> tuple[dict[str, Any], list[Row], int]:
    """What it is about, its whole rows, and the byte at which they end."""
    first, columns, *lines, torn = _lines(path)
    about = _about(path, first, columns)
    width = len(_columns(about))
    *cells, last = torn.split("\t")
    if len(cells) >= width or (len(cells) == width - 1 and not re.fullmatch(f"[0-9a-f]{{0,{DIGITS}}}", last)):
        raise CertificateError(f"{path} was changed in line {len(lines) + 3}, which is not the start of a row; {AGAIN}")
    rows: dict[int, Row] = {}
    limits, above = Limits.of(about), _hash(first, columns)
    for number, line in enumerate(lines, 3):
        text, _, said = line.rpartition("\t")
        above = _hash(above, text)
        if said != above:
            where = f"line {number}" + (" or above" if number == 3 else "")
            raise CertificateError(f"{path} was changed in {where}: its hash is another; {AGAIN}")
        try:
            row = Row.parse(text)
            why = limits.complaint(row) or ("its image has a line above" if row.idx in rows else None)
        except ValueError as error:
            why = error_message(error)
        if why:
            raise CertificateError(f"{path} has a line {number} that is no certificate: {why}; {AGAIN}")
        rows[row.idx] = row
    return about, list(rows.values()), sum(len(line) + 1 for line in [first, columns, *lines])


def _lines(path: Path) -> list[str]:
    """The lines of a file, at least three; the last one is empty, or was cut off."""
    try:
        data = atomic_io.read_bytes(path, most=LARGEST)
    except FileNotFoundError:
        raise CertificateError(f"there is no file {path}; name a TSV that maxup certify wrote") from None
    except (OSError, ValueError) as error:
        raise CertificateError(f"{path} is no table of certificates: {error_message(error)}; {WANTED}") from None
    lines = data.decode("latin-1").split("\n")  # a character for every byte, whatever it is
    if len(lines) < 3:
        raise CertificateError(f"{path} is no table of certificates; {WANTED}")
    return lines


def _about(path: Path, first: str, columns: str) -> dict[str, Any]:
    """The first line, checked."""
    try:
        about = atomic_io.parse(path.name, first.removeprefix("# ").encode())
    except (ValueError, RecursionError):
        raise CertificateError(f"{path} is no table of certificates; {WANTED}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise CertificateError(f"{path} is no table of certificates: its first line does not say so; {WANTED}")
    if about.get("version") != VERSION:
        raise CertificateError(
            f"{path} has certificates of another version than {VERSION}, the one with hashes; remove it, and certify "
            "again"
        )
    try:
        check_settings(about)
    except ValueError as error:
        raise CertificateError(f"{path} is no table of certificates: {error_message(error)}; {WANTED}") from None
    if columns.split("\t") != _columns(about):
        came = " ".join(columns.split())[:60]
        raise CertificateError(f"{path} is no table of certificates: its columns are {came}; {WANTED}")
    return about


def _agree(one: list[float] | None, other: list[float] | None) -> bool:
    """Whether logits are the same but for rounding."""
    if not one or not other:
        return one == other
    most = 0.01 * max(map(abs, one))
    return len(one) == len(other) and all(abs(a - b) <= most for a, b in zip(one, other, strict=True))


def _short(value: Any) -> str:
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == 64 else json.dumps(value)[:60]

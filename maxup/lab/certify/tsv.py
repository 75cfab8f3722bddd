r"""Certificates as a TSV with the columns of Cohen et al. (2019): idx, label, predict, radius, correct, time.

Line 1 is a comment with a JSON header. It records what was certified and how, so that one file never mixes models,
noise levels or precisions. With adaptive sampling, the column `samples` is the number of noisy copies.

The last column, `hash`, detects changes. The hash of a row is the first 16 hex digits of SHA-256(previous hash + tab +
the other cells of the row, joined by tabs). The first row uses the hash of line 1 + tab + line 2 as the previous hash.
Anyone can compute these hashes: they detect damage and edits, not forgery. They do not detect missing rows at the end,
so "asked" in the header is the number of images in the finished file.

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
DIGITS = 16  # hex digits of a hash
LARGEST = 1 << 28  # bytes: more than two million images
EXPECTED = "give a TSV that maxup certify wrote"
AGAIN = "restore the file, or delete this line and all lines below it and run the same maxup certify command again"


@dataclass(frozen=True)
class Row:
    """The certificate of one image."""

    idx: int
    label: int
    predict: int
    """-1 for an abstention."""
    radius: float
    correct: bool
    time: str
    samples: int | None = None

    @classmethod
    def from_certificate(cls, idx: int, label: int, certificate: Certificate) -> "Row":
        """Make the row of a certificate. The radius is rounded down."""
        radius = math.floor(certificate.radius * 1e6) / 1e6
        time = str(timedelta(seconds=certificate.seconds))
        predict = certificate.predict
        return cls(idx, label, predict, radius, predict == label, time, certificate.samples)

    @classmethod
    def parse(cls, text: str) -> "Row":
        """Parse the text of a row. Raises ValueError if the text is invalid."""
        idx, label, predict, radius, correct, time, *rest = text.split("\t")
        samples = int(rest[0]) if rest else None
        row = cls(int(idx), int(label), int(predict), float(radius), correct == "1", time, samples)
        if row.text(samples=bool(rest)) != text:
            raise ValueError("the text is not in the format that maxup certify writes")
        return row

    def certified(self, radius: float) -> bool:
        """Whether the prediction is correct and certified at a radius."""
        return self.correct and self.radius >= radius

    def text(self, *, samples: bool) -> str:
        """Return the cells without the hash, joined by tabs."""
        cells = [self.idx, self.label, self.predict, f"{self.radius:.6f}", int(self.correct), self.time]
        return "\t".join(map(str, [*cells, self.samples] if samples else cells))


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Read the header and the rows of a file. An incomplete last line is ignored, with a note on stderr."""
    header, rows, end = _read(path)
    if end < path.stat().st_size:
        say(f"{path}: ignoring the incomplete last line", file=sys.stderr)
    return header, rows


def begin(path: Path, header: dict[str, Any], labels: Sequence[int] | None = None) -> list[Row]:
    """Prepare a file for more rows: create it, or check that its header matches and remove an incomplete last line.

    Args:
        path: The TSV.
        header: The header that the file must have.
        labels: The labels of all images, to check the rows.

    Returns:
        The rows that the file already has.
    """
    old, rows, end = _read(path) if path.exists() else (header, [], 0)
    if not rows:  # nothing is lost if the header changes
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_io.replace(path, _text(header, []).encode())
        return []
    for key in SAME:
        if old.get(key) != header.get(key):
            raise CertificateError(
                f"{path} was certified with {key}={_short(old.get(key))}, but this command uses "
                f"{key}={_short(header.get(key))}; choose another file with --out, or remove this one"
            )
    if not _close(old.get("answers"), header.get("answers")):
        raise CertificateError(
            f"{path} was certified with the same weights but a different forward pass, or by an old version that did "
            "not record the forward pass; choose another file with --out, or remove this one"
        )
    for number, row in enumerate(rows, 3):
        if labels is not None and (row.idx >= len(labels) or row.label != labels[row.idx]):
            raise CertificateError(f"{path}, line {number}: the image or the label is not in the data; {AGAIN}")
    if end < path.stat().st_size:
        os.truncate(path, end)
    return rows


def append(path: Path, rows: Iterable[Row], *, samples: bool) -> None:
    """Append rows to a file that `begin` prepared, and flush them to disk."""
    first, columns, *lines, _ = _lines(path)
    previous = lines[-1].rpartition("\t")[2] if lines else _hash(first, columns)
    try:
        with path.open("a") as file:
            file.writelines(_chain(previous, rows, samples=samples))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = os.fspath(path)  # a failed write does not set it
        raise


def gather(path: Path, header: dict[str, Any], labels: Sequence[int] | None = None) -> list[Row]:
    """Merge the parts that several processes wrote into the file, sorted by image. Returns all rows."""
    parts = sorted(path.parent.glob(f"{glob.escape(path.name)}.rank-*"))
    if not parts and not path.exists():
        return []
    merged: dict[int, Row] = {}
    for part in [*parts, path]:
        for row in begin(part, header, labels) if part.exists() else []:
            if merged.setdefault(row.idx, row) != row:
                raise CertificateError(
                    f"{part} and another file in its folder have different certificates for image {row.idx}; remove one"
                )
    rows = [merged[idx] for idx in sorted(merged)]
    old, written = read(path) if path.exists() else (header, [])
    if parts or rows != written:
        atomic_io.replace(path, _text(old, rows).encode())
    for part in parts:
        atomic_io.remove(part)
    return rows


def set_num_images(path: Path, images: int) -> None:
    """Record in the header how many images the finished file has, so that missing rows at the end are detected."""
    if path.exists():
        header, rows = read(path)
        if header.get("asked") != images:
            atomic_io.replace(path, _text(header | {"asked": images}, rows).encode())


def unfinished(header: dict[str, Any], rows: Sequence[Row]) -> str | None:
    """Return text such as "64 of 65" for an unfinished file. None if it is finished, or has no "asked"."""
    asked = header.get("asked", 0)
    return f"{len(rows)} of {asked}" if len(rows) < asked else None


def _text(header: dict[str, Any], rows: Iterable[Row]) -> str:
    first = f"# {json.dumps({'format': FORMAT, 'version': VERSION} | header, allow_nan=False)}"
    columns, samples = "\t".join(_columns(header)), header["sampling"] != "fixed"
    return f"{first}\n{columns}\n" + "".join(_chain(_hash(first, columns), rows, samples=samples))


def _columns(header: dict[str, Any]) -> list[str]:
    return [*COLUMNS, *(["samples"] if header["sampling"] != "fixed" else []), "hash"]


def _chain(previous: str, rows: Iterable[Row], *, samples: bool) -> Iterator[str]:
    for row in rows:
        text = row.text(samples=samples)
        previous = _hash(previous, text)
        yield f"{text}\t{previous}\n"


def _hash(previous: str, text: str) -> str:
    return atomic_io.sha256(f"{previous}\t{text}".encode())[:DIGITS]


def _read(path: Path) -> tuple[dict[str, Any], list[Row], int]:
    """Return the header, the complete rows, and the byte offset at which they end."""
    first, columns, *lines, rest = _lines(path)
    header = _header(path, first, columns)
    width = len(_columns(header))
    *cells, last = rest.split("\t")
    if len(cells) >= width or (len(cells) == width - 1 and not re.fullmatch(f"[0-9a-f]{{0,{DIGITS}}}", last)):
        raise CertificateError(f"{path} was changed: line {len(lines) + 3} is not an incomplete row; {AGAIN}")
    rows: dict[int, Row] = {}
    limits, previous = Limits.from_header(header), _hash(first, columns)
    for number, line in enumerate(lines, 3):
        text, _, recorded = line.rpartition("\t")
        previous = _hash(previous, text)
        if recorded != previous:
            where = f"line {number}" + (" or above" if number == 3 else "")
            raise CertificateError(f"{path} was changed in {where}: the hash does not match; {AGAIN}")
        try:
            row = Row.parse(text)
            problem = limits.problem(row) or (f"the file already has image {row.idx}" if row.idx in rows else None)
        except ValueError as error:
            problem = error_message(error)
        if problem:
            raise CertificateError(f"{path}, line {number}: invalid certificate: {problem}; {AGAIN}")
        rows[row.idx] = row
    return header, list(rows.values()), sum(len(line) + 1 for line in [first, columns, *lines])


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, at least three. The last one is empty or incomplete."""
    try:
        data = atomic_io.read_bytes(path, most=LARGEST)
    except FileNotFoundError:
        raise CertificateError(f"{path} does not exist; {EXPECTED}") from None
    except (OSError, ValueError) as error:
        raise CertificateError(f"{path} is not a certificates file: {error_message(error)}; {EXPECTED}") from None
    lines = data.decode("latin-1").split("\n")  # one character per byte, for any content
    if len(lines) < 3:
        raise CertificateError(f"{path} is not a certificates file; {EXPECTED}")
    return lines


def _header(path: Path, first: str, columns: str) -> dict[str, Any]:
    try:
        header = atomic_io.parse(path.name, first.removeprefix("# ").encode())
    except (ValueError, RecursionError):
        raise CertificateError(f"{path} is not a certificates file; {EXPECTED}") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise CertificateError(f"{path} is not a certificates file: line 1 has no valid header; {EXPECTED}")
    if header.get("version") != VERSION:
        raise CertificateError(
            f"{path} has an unsupported format version (supported: {VERSION}); remove it and certify again"
        )
    try:
        check_settings(header)
    except ValueError as error:
        raise CertificateError(f"{path} is not a certificates file: {error_message(error)}; {EXPECTED}") from None
    if columns.split("\t") != _columns(header):
        names = " ".join(columns.split())[:60]
        raise CertificateError(f"{path} is not a certificates file: the columns are {names}; {EXPECTED}")
    return header


def _close(one: list[float] | None, other: list[float] | None) -> bool:
    """Whether logits are equal up to rounding."""
    if not one or not other:
        return one == other
    tolerance = 0.01 * max(map(abs, one))
    return len(one) == len(other) and all(abs(a - b) <= tolerance for a, b in zip(one, other, strict=True))


def _short(value: Any) -> str:
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == 64 else json.dumps(value)[:60]

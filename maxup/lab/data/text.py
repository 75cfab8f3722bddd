"""Text as token indices, read from one file, or from a folder with a training, a validation and a test file."""

import codecs
import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxup.errors import DataError, error_message
from maxup.lab.storage.atomic_io import read_bytes

END, UNKNOWN = "<eos>", "<unk>"
SPLITS = ("train", "valid", "test")
PATTERNS = ("{}.txt", "ptb.{}.txt", "wiki.{}.tokens")  # the usual file names
MAX_BYTES = 2**30  # per file
TRAIN, VALIDATION = 0.8, 0.1  # fractions of a text without splits; the rest is the test split


@dataclass(frozen=True, eq=False)
class Text:
    """A text in three splits, tokenized into words.

    Args:
        words: The vocabulary. A token is an index into it.
        train: Training tokens, int64, (N,).
        validation: Validation tokens, likewise.
        test: Test tokens, likewise.
        plain: Whether it is plain text, so that tokens are lowercase words and punctuation marks.

    Example:
        >>> text = from_lines(["a b", "b c"], ["c a"], ["b d"])
        >>> text.words, text.train.tolist(), text.test.tolist()
        (('<unk>', 'a', 'b', '<eos>', 'c'), [1, 2, 3, 2, 4, 3], [2, 0, 3])
    """

    words: tuple[str, ...]
    train: Tensor
    validation: Tensor
    test: Tensor
    plain: bool = field(default=False, kw_only=True)

    @property
    def digest(self) -> str:
        """SHA-256 of the vocabulary and the tokens."""
        return self._digest(self.train, self.validation, self.test)

    @property
    def train_digest(self) -> str:
        """SHA-256 of the vocabulary and the training tokens, which old runs record."""
        return self._digest(self.train)

    def _digest(self, *parts: Tensor) -> str:
        digest = hashlib.sha256("\n".join(self.words).encode())
        for i, part in enumerate(parts):
            digest.update((f"{len(part)} ".encode() if i else b"") + part.numpy().tobytes())
        return digest.hexdigest()

    def read(self, tokens: Iterable[int]) -> str:
        """Return tokens as text, one sentence per line."""
        return " ".join(self.words[token] for token in tokens).replace(END, "\n").replace("\n ", "\n")

    def split(self, prompt: str) -> list[str]:
        """Split a prompt into words as the text was split. A line break ends a sentence.

        Example:
            >>> from_text("Yes, yes! " * 5).split("YES! <unk>")
            ['yes', '!', '<unk>']
        """
        words = prompt.replace("\n", f" {END} ").split()
        if not self.plain:
            return words
        return [part for word in words for part in ([word] if word in (END, UNKNOWN) else tokenize(word))]


def from_folder(folder: Path) -> Text:
    """Read three files with usual names. Words are separated by spaces, and every line is a sentence."""
    if not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}; set --data.root to one with train.txt, valid.txt and test.txt, or to "
            "a text file"
        )
    pattern = next((p for p in PATTERNS if any((folder / p.format(s)).is_file() for s in SPLITS)), PATTERNS[0])
    return from_lines(*(_lines(folder / pattern.format(split)) for split in SPLITS))


def from_file(path: Path) -> Text:
    """Read one file of plain text and split it, see `from_text`."""
    return from_text("\n".join(_lines(path)))


def from_text(text: str) -> Text:
    """Tokenize and split plain text: the first 80 % of the tokens train, the next 10 % validate, the last 10 % test.

    Tokens are lowercase words and punctuation marks. Blank lines separate paragraphs, and each paragraph ends with
    `<eos>`; without blank lines, each line does. Words that appear once in the training split become `<unk>`.

    Example:
        >>> text = from_text("Yes, yes! " * 5)
        >>> text.words, len(text.train), len(text.validation), len(text.test)
        (('<unk>', 'yes', ',', '!'), 16, 2, 3)
    """
    tokens = [word for paragraph in paragraphs(text) for word in (*paragraph, END)]
    return from_tokens(*split_tokens(tokens), min_count=2, plain=True)


def split_tokens(tokens: Any) -> tuple[Any, Any, Any]:
    """Split a list or tensor of tokens: 80 %, 10 % and the rest, in order."""
    first, second = (int(fraction * len(tokens)) for fraction in (TRAIN, TRAIN + VALIDATION))
    return tokens[:first], tokens[first:second], tokens[second:]


def paragraphs(text: str) -> list[list[str]]:
    """Return the lowercase words and punctuation marks of each paragraph, or of each line without blank lines."""
    blank = re.compile(r"\n\s*\n")
    parts = blank.split(text) if blank.search(text.strip()) else text.split("\n")
    return [words for part in parts if (words := tokenize(part))]


def tokenize(text: str) -> list[str]:
    """Return the lowercase words and punctuation marks of plain text."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


def from_lines(*splits: Iterable[str], min_count: int = 1, plain: bool = False) -> Text:
    """Tokenize the lines of three splits, words separated by spaces, see `from_tokens`."""
    parts = ([word for line in lines for word in (*line.split(), END)] for lines in splits)
    return from_tokens(*parts, min_count=min_count, plain=plain)


def from_tokens(*parts: list[str], min_count: int = 1, plain: bool = False) -> Text:
    """Make a `Text` from words.

    The vocabulary has the training words in order of appearance. All other words become `<unk>`.

    Args:
        *parts: The words of the training, validation and test splits.
        min_count: Number of times a word must appear in the training split to be in the vocabulary.
        plain: Whether the words are those of `tokenize`.
    """
    counts = Counter(parts[0])
    words = [word for word in counts if counts[word] >= min_count]
    if UNKNOWN not in words and any(counts[word] < min_count for part in parts for word in part):
        words = [UNKNOWN, *words]
    index = {word: i for i, word in enumerate(words)}
    unknown = index.get(UNKNOWN, -1)
    tokens = [torch.tensor([index.get(word, unknown) for word in part]) for part in parts]
    return Text(tuple(words), *tokens, plain=plain)


def _lines(path: Path) -> list[str]:
    try:
        data = read_bytes(path, most=MAX_BYTES).removeprefix(codecs.BOM_UTF8)
    except FileNotFoundError:
        raise DataError(f"{path.parent} lacks {path.name}; it must have one file each for train, valid, test") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error_message(error)}); replace it with a text file") from error
    if not data.strip():
        raise DataError(f"{path} is empty; put one sentence on every line")
    if 0 in data:
        raise DataError(f"{path} has a NUL byte, so it is not UTF-8 text; convert or replace it")
    try:
        return data.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 (byte {error.start}); convert it, for example with iconv -f LATIN1 -t UTF-8"
        ) from None

"""Text as token indices, read from a folder with a training, a validation and a test file."""

import codecs
import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from maxup.errors import DataError, error_message
from maxup.lab.storage.atomic_io import read_bytes

END, UNKNOWN = "<eos>", "<unk>"
SPLITS = ("train", "valid", "test")
PATTERNS = ("{}.txt", "ptb.{}.txt", "wiki.{}.tokens")  # the usual file names
MAX_BYTES = 2**30  # per file


@dataclass(frozen=True, eq=False)
class Text:
    """A text in three splits, tokenized into words.

    Args:
        words: The vocabulary. A token is an index into it.
        train: Training tokens, int64, (N,).
        validation: Validation tokens, likewise.
        test: Test tokens, likewise.

    Example:
        >>> text = from_lines(["a b", "b c"], ["c a"], ["b d"])
        >>> text.words, text.train.tolist(), text.test.tolist()
        (('<unk>', 'a', 'b', '<eos>', 'c'), [1, 2, 3, 2, 4, 3], [2, 0, 3])
    """

    words: tuple[str, ...]
    train: Tensor
    validation: Tensor
    test: Tensor

    @property
    def digest(self) -> str:
        """SHA-256 of the vocabulary and the training tokens."""
        digest = hashlib.sha256("\n".join(self.words).encode())
        digest.update(self.train.numpy().tobytes())
        return digest.hexdigest()

    def read(self, tokens: Iterable[int]) -> str:
        """Return tokens as text, one sentence per line."""
        return " ".join(self.words[token] for token in tokens).replace(END, "\n").replace("\n ", "\n")


def from_folder(folder: Path) -> Text:
    """Read three files with usual names. Words are separated by spaces, and every line is a sentence."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; set --data.root to one with train.txt, valid.txt and test.txt")
    pattern = next((p for p in PATTERNS if any((folder / p.format(s)).is_file() for s in SPLITS)), PATTERNS[0])
    return from_lines(*(_lines(folder / pattern.format(split)) for split in SPLITS))


def from_lines(train: Iterable[str], validation: Iterable[str], test: Iterable[str], *, min_count: int = 1) -> Text:
    """Tokenize lines of words separated by spaces.

    The vocabulary has the training words in order of appearance. All other words become `<unk>`.

    Args:
        train: Lines.
        validation: Lines.
        test: Lines.
        min_count: Number of times a word must appear in the training lines to be in the vocabulary.
    """
    parts = [[word for line in lines for word in (*line.split(), END)] for lines in (train, validation, test)]
    counts = Counter(parts[0])
    words = [word for word in counts if counts[word] >= min_count]
    if UNKNOWN not in words and any(counts[word] < min_count for part in parts for word in part):
        words = [UNKNOWN, *words]
    index = {word: i for i, word in enumerate(words)}
    unknown = index.get(UNKNOWN, -1)
    tokens = [torch.tensor([index.get(word, unknown) for word in part]) for part in parts]
    return Text(tuple(words), *tokens)


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
        raise DataError(f"{path} has a NUL byte, so it is not a text file; replace it with one")
    try:
        return data.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 (byte {error.start}); convert it, for example with iconv -t UTF-8"
        ) from None

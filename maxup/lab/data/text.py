"""Text as numbers: Penn Treebank, WikiText-2, any folder with three parts, and the English of Python's own help."""

import codecs
import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from maxup.errors import DataError, error_message
from maxup.lab.data import Root
from maxup.lab.data.find import find
from maxup.lab.storage.atomic_io import read_bytes

END, UNKNOWN = "<eos>", "<unk>"
SPLITS = ("train", "valid", "test")
PATTERNS = ("{}.txt", "ptb.{}.txt", "wiki.{}.tokens")  # the usual names of a part's file
MOST_BYTES = 2**30  # of one file
COUNTS = {  # tokens of training, validation and test with one end of sentence a line, and words
    "ptb": (929_589, 73_760, 82_430, 10_000),
    "wikitext2": (2_088_628, 217_646, 245_569, 33_278),
}


@dataclass(frozen=True, eq=False)
class Text:
    """Three parts of a text, word by word.

    Args:
        words: The vocabulary; a token is a place in it.
        train: Tokens, int64, (N,).
        validation: Likewise.
        test: Likewise.

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
        """SHA-256 of the vocabulary and the training part."""
        found = hashlib.sha256("\n".join(self.words).encode())
        found.update(self.train.numpy().tobytes())
        return found.hexdigest()

    def read(self, tokens: Iterable[int]) -> str:
        """Tokens as text, a line a sentence."""
        return " ".join(self.words[token] for token in tokens).replace(END, "\n").replace("\n ", "\n")


def load_ptb(root: Root = None) -> Text:
    """Penn Treebank as Mikolov prepared it: ptb.train.txt and so on."""
    return _checked("ptb", find("ptb", root))


def load_wikitext2(root: Root = None) -> Text:
    """WikiText-2: wiki.train.tokens and so on."""
    return _checked("wikitext2", find("wikitext2", root))


def load_text(root: Root = None) -> Text:
    """A folder with train.txt, valid.txt and test.txt; without one, the English of Python's own help topics.

    Example:
        >>> text = load_text()
        >>> len(text.words) > 1000, len(text.train) > 50_000
        (True, True)
    """
    return from_folder(Path(root).expanduser()) if root else from_lines(*_topics(), least=2)


def from_folder(folder: Path) -> Text:
    """The text of three files named in a usual way: words between spaces, a sentence a line."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; set --data.root to one with train.txt, valid.txt and test.txt")
    pattern = next((p for p in PATTERNS if any((folder / p.format(s)).is_file() for s in SPLITS)), PATTERNS[0])
    return from_lines(*(_lines(folder / pattern.format(split)) for split in SPLITS))


def from_lines(train: Iterable[str], validation: Iterable[str], test: Iterable[str], *, least: int = 1) -> Text:
    """Text from lines of words between spaces.

    The vocabulary is that of the training part, in the order of appearance; `<unk>` stands for all other words.

    Args:
        train: Lines.
        validation: Lines.
        test: Lines.
        least: How often a training word must appear to be known.
    """
    parts = [[word for line in lines for word in (*line.split(), END)] for lines in (train, validation, test)]
    often = Counter(parts[0])
    known = [word for word in often if often[word] >= least]
    if UNKNOWN not in known and any(often[word] < least for part in parts for word in part):
        known = [UNKNOWN, *known]
    places = {word: place for place, word in enumerate(known)}
    unknown = places.get(UNKNOWN, -1)
    tokens = [torch.tensor([places.get(word, unknown) for word in part]) for part in parts]
    return Text(tuple(known), *tokens)


def _lines(path: Path) -> list[str]:
    try:
        data = read_bytes(path, most=MOST_BYTES).removeprefix(codecs.BOM_UTF8)
    except FileNotFoundError:
        raise DataError(
            f"{path.parent} lacks {path.name}; it must hold one file for each of train, valid, test"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error_message(error)}); put a text file there") from error
    if not data.strip():
        raise DataError(f"{path} is empty; put a sentence on every line")
    if 0 in data:
        raise DataError(f"{path} holds a NUL byte, which no text has; is it a text file?")
    try:
        return data.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start}); convert it, as with iconv -t UTF-8") from None


def _checked(name: str, folder: Path) -> Text:
    """The counts must be the ones every paper has."""
    text = from_folder(folder)
    found = (len(text.train), len(text.validation), len(text.test), len(text.words))
    if found != COUNTS[name]:
        raise DataError(
            f"the files in {folder} are not the {name} in general use: they hold {_said(found)}, and should hold "
            f"{_said(COUNTS[name])}; for a text of your own set data.name to text and data.root to its folder"
        )
    return text


def _said(counts: tuple[int, ...]) -> str:
    train, validation, test, words = (f"{count:,}" for count in counts)
    return f"{train}/{validation}/{test} tokens and {words} words"


def _topics() -> tuple[list[str], list[str], list[str]]:
    """Paragraphs of `pydoc_data.topics`, each once, in lower case: of every 50, 40 train, 5 validate and 5 test.

    Topics repeat each other; kept once, no paragraph is both learnt and tested.
    """
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    text = re.sub(r"([^\w\s])\1{3,}", "", text)  # rulers under headings
    paragraphs = dict.fromkeys(" ".join(re.findall(r"\w+|[^\w\s]", p.lower())) for p in re.split(r"\n\s*\n", text))
    lines = [paragraph for paragraph in paragraphs if paragraph]
    of = {"train": range(40), "valid": range(40, 45), "test": range(45, 50)}
    train, valid, test = ([line for i, line in enumerate(lines) if i % 50 in of[split]] for split in SPLITS)
    return train, valid, test

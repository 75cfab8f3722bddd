"""Penn Treebank, WikiText-2, and any text file or folder of text. Without one: the English of Python's help topics."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from maxup.errors import DataError
from maxup.lab.data.catalog import Root, register_data
from maxup.lab.data.find import find

if TYPE_CHECKING:
    from maxup.lab.data.text import Text

COUNTS = {  # training, validation and test tokens, with one <eos> per line; words in the vocabulary
    "ptb": (929_589, 73_760, 82_430, 10_000),
    "wikitext2": (2_088_628, 217_646, 245_569, 33_278),
}


@register_data(
    "ptb",
    folders=("ptb", "penn", "simple-examples/data", "."),
    files=("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"),
    instructions="Put ptb.train.txt, ptb.valid.txt and ptb.test.txt, as Mikolov prepared them, into data/ptb.",
)
def load_ptb(root: Root = None) -> "Text":
    """Load Penn Treebank as Mikolov prepared it."""
    return _load("ptb", root)


@register_data(
    "wikitext2",
    folders=("wikitext-2", "wikitext2", "."),
    files=("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
    instructions="Unpack the archive wikitext-2-v1.zip in data: it creates the folder wikitext-2 with "
    "wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens.",
)
def load_wikitext2(root: Root = None) -> "Text":
    """Load WikiText-2."""
    return _load("wikitext2", root)


@register_data(
    "text", package="pydoc_data", files=("topics.py",), instructions="It comes with Python itself, as pydoc_data."
)
def load_text(root: Root = None) -> "Text":
    """Load a text file, or a folder with train.txt, valid.txt and test.txt. Default: Python's help topics."""
    from maxup.lab.data.text import from_file, from_folder, from_lines

    if root is None:
        return from_lines(*_help_topics(), min_count=2, plain=True)
    path = Path(root).expanduser()
    return from_file(path) if path.is_file() else from_folder(path)


def _load(name: str, root: Root) -> "Text":
    """Load a corpus. Its counts must be those of the literature."""
    from maxup.lab.data.text import from_folder

    folder = find(name, root)
    text = from_folder(folder)
    counts = (len(text.train), len(text.validation), len(text.test), len(text.words))
    if counts != COUNTS[name]:
        raise DataError(
            f"the files in {folder} are not the usual {name}: they have {_describe(counts)}, but should have "
            f"{_describe(COUNTS[name])}; for custom text, set data.name to text and data.root to your file or folder"
        )
    return text


def _describe(counts: tuple[int, ...]) -> str:
    train, validation, test, words = (f"{count:,}" for count in counts)
    return f"{train}/{validation}/{test} tokens and {words} words"


def _help_topics() -> tuple[list[str], list[str], list[str]]:
    """Return the paragraphs of `pydoc_data.topics` in lower case: of every 50, 40 to train, 5 to validate, 5 to test.

    Topics repeat each other. Every paragraph is kept once, so that none is in two splits.
    """
    from pydoc_data.topics import topics

    from maxup.lab.data.text import paragraphs

    text = "\n\n".join(topics[name] for name in sorted(topics))
    text = re.sub(r"([^\w\s])\1{3,}", "", text)  # lines under headings
    lines = list(dict.fromkeys(" ".join(words) for words in paragraphs(text)))
    parts = range(40), range(40, 45), range(45, 50)
    train, valid, test = ([line for i, line in enumerate(lines) if i % 50 in part] for part in parts)
    return train, valid, test

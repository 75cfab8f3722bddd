"""The argument parser of the verbs, and options that several verbs share."""

import argparse
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from maxup.lab.limits import MAX_VALUES
from maxup.lab.output import sentence

WIDTH = 80


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, and whose help can end with a long appendix.

    Attributes:
        appendix: Returns the appendix. Called only for `--help`.
    """

    appendix: Callable[[], str] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        for word in args or ():
            if word.startswith("--") and word.endswith("=--"):  # argparse of Python 3.11 would make it an empty list
                self.error(f"argument {word.removesuffix('=--')}: -- is not a value")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {sentence(message)} (see {self.prog} --help)\n")

    def format_help(self) -> str:
        text = super().format_help()
        return text if self.appendix is None else f"{text}\n{self.appendix()}"


def parser_of(verb: str, description: str, examples: str) -> Parser:
    """Return a parser for the arguments of a verb.

    Args:
        verb: Its name.
        description: What it does.
        examples: Printed at the end of `--help`. Line breaks are kept.

    Example:
        >>> parser_of("ls", "List recipes.", "example: maxup ls").prog
        'maxup ls'
    """
    return Parser(
        f"maxup {verb}",
        description=textwrap.fill(description, WIDTH),
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # otherwise argparse takes a setting of the recipe for an option
    )


def check_count(parser: argparse.ArgumentParser, option: str, values: Sequence[float] | None) -> None:
    """Exit with an error if an option has too many values.

    Example:
        >>> check_count(parser_of("compare", "Compare.", ""), "--m", [1, 4])
    """
    if values is not None and len(values) > MAX_VALUES:
        parser.error(f"{option} has {len(values)} values; the limit is {MAX_VALUES}")


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the option for verbs that load a checkpoint of a run.

    Example:
        >>> parser = parser_of("eval", "Evaluate.", "")
        >>> add_checkpoint(parser)
        >>> parser.parse_args([]).checkpoint
        'last'
    """
    parser.add_argument(
        "--checkpoint", choices=["best", "last"], default="last", help="checkpoint of the run (default: last)"
    )


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the option for verbs that open the data of a run. It is named like the setting.

    Example:
        >>> parser = parser_of("eval", "Evaluate.", "")
        >>> add_root(parser)
        >>> parser.parse_args(["--data.root", "."]).root
        '.'
    """
    parser.add_argument(
        "--data.root", dest="root", type=_folder, metavar="DIR", help="folder of the data (default: as in training)"
    )


def add_accept(parser: argparse.ArgumentParser) -> None:
    """Add the option for verbs that use the images of a run again.

    Example:
        >>> parser = parser_of("eval", "Evaluate.", "")
        >>> add_accept(parser)
        >>> parser.parse_args([]).accept_changed_data
        False
    """
    parser.add_argument(
        "--accept_changed_data",
        action="store_true",
        help="accept images that have changed since training started",
    )


def _folder(text: str) -> str:
    if not Path(text).expanduser().is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return text


def new_folder(text: str) -> Path:
    """Return the path of a folder to write to, which need not exist. Use it as the `type` of an option.

    Example:
        >>> new_folder("runs/mine").parts
        ('runs', 'mine')
    """
    path = Path(text)
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise argparse.ArgumentTypeError(f"{place} is a file; give a folder, which need not exist")
    return path


def wrap(words: Sequence[str]) -> str:
    """Return a list of words as indented lines, for the end of `--help`.

    Example:
        >>> wrap(["table-cifar10", "table-ptb"])
        '  table-cifar10 table-ptb'
    """
    return textwrap.fill(
        " ".join(words),
        WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
        break_long_words=False,
    )

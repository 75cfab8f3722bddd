"""The parser all verbs share: a description, examples at the end of --help, options in full only."""

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from maxup.lab.limits import MOST_VALUES
from maxup.lab.output import sentence


class _Parser(argparse.ArgumentParser):
    """Its errors are printable, and no longer than needed."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        for word in args or ():
            if word.startswith("--") and word.endswith("=--"):  # argparse of Python 3.11 would make it an empty list
                self.error(f"argument {word.removesuffix('=--')}: -- is not a value")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        super().error(sentence(message))


def parser_of(verb: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A parser for a verb's arguments.

    Example:
        >>> parser_of("ls", "List recipes.", "example: maxup ls").prog
        'maxup ls'
    """
    return _Parser(
        f"maxup {verb}",
        description=textwrap.fill(description, 100),
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # or a setting of the recipe might be taken for an option
    )


def check_count(parser: argparse.ArgumentParser, option: str, values: Sequence[float] | None) -> None:
    """Refuse an option that has too many values.

    Example:
        >>> check_count(parser_of("compare", "Compare.", ""), "--m", [1, 4])
    """
    if values is not None and len(values) > MOST_VALUES:
        parser.error(f"{option} has {len(values)} values; give {MOST_VALUES} at most")


def add_root(parser: argparse.ArgumentParser) -> None:
    """The option of verbs that open a run, named as the setting is.

    Example:
        >>> parser = parser_of("eval", "Evaluate.", "")
        >>> add_root(parser)
        >>> parser.parse_args(["--data.root", "."]).root
        '.'
    """
    parser.add_argument(
        "--data.root", dest="root", type=_folder, metavar="DIR", help="where the data are now (default: as in training)"
    )


def add_accept(parser: argparse.ArgumentParser) -> None:
    """The option of verbs that use a run's images again.

    Example:
        >>> parser = parser_of("eval", "Evaluate.", "")
        >>> add_accept(parser)
        >>> parser.parse_args([]).accept_changed_data
        False
    """
    parser.add_argument(
        "--accept_changed_data", action="store_true", help="use images that changed since training began; never a text"
    )


def _folder(text: str) -> str:
    if not Path(text).expanduser().is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return text


def new_folder(text: str) -> Path:
    """The type of options that name a folder to write to, which need not be there.

    Example:
        >>> new_folder("runs/mine").parts
        ('runs', 'mine')
    """
    path = Path(text)
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise argparse.ArgumentTypeError(f"{place} is a file; name a folder, which need not be there yet")
    return path

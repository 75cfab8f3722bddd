"""The argument parser of the verbs, and options that several verbs share."""

import argparse
import errno
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, NoReturn

from maxup.cli.user_code import add_user_code, user_functions
from maxup.errors import RunError, error_message, unknown_name
from maxup.lab.limits import MAX_VALUES
from maxup.lab.output import sentence

if TYPE_CHECKING:
    from maxup.lab.train.runs import Run

WIDTH = 80
FORMATS = (".png", ".svg", ".pdf")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        for word in args or ():
            if word.startswith("--") and word.endswith("=--"):  # argparse of Python 3.11 would make it an empty list
                self.error(f"argument {word.removesuffix('=--')}: -- is not a value")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"unrecognized arguments: (--[^\s=]+)", message):
            message = unknown_name(unknown[1], self._option_string_actions, "option")
        self.exit(2, f"{self.prog}: {sentence(message)} (see {self.prog} --help)\n")


def parser_of(verb: str, description: str, examples: str) -> Parser:
    """Return a parser for the arguments of a verb. `examples` are printed at the end of `--help`."""
    return Parser(
        f"maxup {verb}",
        description=textwrap.fill(description, WIDTH),
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # otherwise argparse takes a setting of the recipe for an option
    )


def check_count(parser: argparse.ArgumentParser, option: str, values: Sequence[float] | None) -> None:
    """Exit with an error if an option has too many values."""
    if values is not None and len(values) > MAX_VALUES:
        parser.error(f"{option} has {len(values)} values; the limit is {MAX_VALUES}")


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the option for verbs that load a checkpoint of a run."""
    parser.add_argument(
        "--checkpoint", choices=["best", "last"], default="last", help="checkpoint of the run (default: last)"
    )


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the option for verbs that open the data of a run. It is named like the setting."""
    parser.add_argument(
        "--data.root",
        dest="root",
        type=_data_root,
        metavar="DIR",
        help="folder of the data, or text file (default: as in training)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option for verbs that can print a JSON document. Run them within `free_stdout(args.json)`."""
    parser.add_argument("--json", action="store_true", help="print one JSON document, and everything else to stderr")


@contextmanager
def free_stdout(enabled: bool) -> Iterator[None]:
    """Send output to stderr, also that of your code and of child processes, so that a JSON document is alone on stdout.

    Child processes write to the file descriptors 1 and 2, which they inherit.
    """
    if not enabled:
        yield
        return
    stream, stdout = sys.stdout, None
    with suppress(OSError):  # one of them is closed
        stdout = os.dup(1)
        stream.flush()
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if stdout is not None:
            stream.flush()  # what your code wrote to a handler of the old sys.stdout
            os.dup2(stdout, 1)
            os.close(stdout)


def add_accept(parser: argparse.ArgumentParser) -> None:
    """Add the option for verbs that use the images of a run again."""
    parser.add_argument(
        "--accept_changed_data",
        action="store_true",
        help="accept images that have changed since training started",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the options of verbs that open a run. `open_from` reads them."""
    add_checkpoint(parser)
    add_root(parser)
    add_accept(parser)
    add_user_code(parser, recorded=True)


def open_from(args: argparse.Namespace, **options: Any) -> "Run":
    """Open the run that the arguments name. `options` are passed to `open_run`."""
    from maxup.lab.train.runs import open_run

    changed = args.accept_changed_data
    return open_run(
        args.run, args.checkpoint, root=args.root, accept_changed_data=changed, **user_functions(args), **options
    )


# Types of arguments.


def folder(text: str) -> Path:
    """Return the path of a folder that must exist."""
    path = Path(text).expanduser()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return path


def _data_root(text: str) -> str:
    path = Path(text).expanduser()
    return str(path if path.is_file() else folder(text))


def output_file(text: str) -> Path:
    """Return the path of a file to write."""
    if not text or Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is {'a folder' if text else 'not a name'}; give a file")
    return Path(text)


def figure_file(text: str) -> Path:
    """Return the path of a PNG, SVG or PDF file to write."""
    path = output_file(text)
    if path.suffix.lower() not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} must end in {', '.join(FORMATS)}")
    return path


def new_folder(text: str) -> Path:
    """Return the path of a folder to write to, which need not exist."""
    if not text:
        raise argparse.ArgumentTypeError("'' is not a name; give a folder, which need not exist")
    path = Path(text)
    for place in (path, *path.parents):
        if os.path.lexists(place) and not place.is_dir():
            kind = "file" if place.exists() else "broken link"
            raise argparse.ArgumentTypeError(f"{place} is a {kind}; give a folder, which need not exist")
    return path


def check_writable(path: Path) -> None:
    """Raise a RunError if a file cannot be written, before the work whose result it will hold."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        TemporaryFile(dir=next(place for place in path.absolute().parents if place.exists())).close()
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error_message(error)}; choose another one") from None


def wrap(words: Sequence[str]) -> str:
    """Return a list of words as indented lines, for the end of `--help`."""
    return textwrap.fill(
        " ".join(words),
        WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
        break_long_words=False,
    )

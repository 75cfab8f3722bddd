"""The options --model_from and --data_from, which name functions in the user's code, and --trust.

A run records the names of its functions. They are imported if this user trained the run in the current folder, which a
signature shows, or if the command line says --trust.
"""

import functools
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from maxup.errors import UserCodeError, format_error
from maxup.lab.user_code import find_function, importable_name, where_raised


def add_user_code(parser: ArgumentParser, *, recorded: bool = False) -> None:
    """Add --model_from and --data_from, and for verbs that open a run (`recorded`), --trust."""
    parser.add_argument(
        "--model_from", metavar="MODULE:FUNCTION", help="your network: (shape, num_classes, **model.args)"
    )
    parser.add_argument(
        "--data_from", metavar="MODULE:FUNCTION", help="your data: () -> (x, y), a Dataset, or (train, test)"
    )
    if recorded:
        parser.add_argument(
            "--trust",
            action="store_true",
            help="import the --model_from and --data_from of the run, even if you did not train it in this folder",
        )


def user_functions(args: Namespace) -> dict[str, Any]:
    """Return the functions that --model_from and --data_from name, or None.

    For a verb that opens a run, also return how to import those of the run: `find_code` and `trust`.
    """
    functions: dict[str, Any] = {
        option: load_function(getattr(args, option), f"--{option}") for option in ("model_from", "data_from")
    }
    return functions | ({"find_code": load_function, "trust": args.trust} if "trust" in args else {})


def load_function(name: str | None, option: str) -> Callable[..., Any] | None:
    """Return the function MODULE:FUNCTION that an option names. Its errors are raised as UserCodeError."""
    if name is None:
        return None
    try:
        function = find_function(name)
    except UserCodeError as error:
        raise UserCodeError(f"{option} {name}: {error}") from error

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise UserCodeError(
                f"{option} {name}: your code raised {format_error(error)}{where_raised(error)}"
            ) from error

    call.__module__, call.__qualname__ = importable_name(name, function)
    return call

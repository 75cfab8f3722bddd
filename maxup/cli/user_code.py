"""Options that name code of the user's own, --model_from and --data_from."""

import functools
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from maxup.errors import UserCodeError, format_error
from maxup.lab.user_code import find_function


def own(name: str | None, option: str) -> Callable[..., Any] | None:
    """The function a MODULE:FUNCTION names, whose errors name the option; None where none is named."""
    if name is None:
        return None
    try:
        found = find_function(name)
    except UserCodeError as error:
        raise UserCodeError(f"{option} {name}: {error}") from error

    @functools.wraps(found)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return found(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise UserCodeError(f"{option} {name}: your code raised {format_error(error)}") from error

    return call


def add_own(parser: ArgumentParser) -> None:
    """The options by which a verb takes code of the user's own."""
    parser.add_argument(
        "--model_from", metavar="MODULE:FUNCTION", help="your network: (shape, num_classes, **model.args)"
    )
    parser.add_argument(
        "--data_from", metavar="MODULE:FUNCTION", help="your data: () -> (x, y) or (x, y, x_test, y_test)"
    )


def own_of(args: Namespace) -> dict[str, Any]:
    """What these options name."""
    return {option: own(getattr(args, option), f"--{option}") for option in ("model_from", "data_from")}

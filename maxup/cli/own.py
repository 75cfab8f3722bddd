"""Code of the user's own, named on the command line as MODULE:FUNCTION (never in a recipe, which is data)."""

import functools
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib import import_module
from typing import Any


class OwnCodeError(RuntimeError):
    """The user's own module or function could not be used, in one sentence."""


def own(name: str | None, option: str) -> Callable[..., Any] | None:
    """The function a MODULE:FUNCTION names, looked up from the current folder too; None where none is named."""
    if name is None:
        return None
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise OwnCodeError(f"{option} {name}: write it as MODULE:FUNCTION, such as mine:net for net in mine.py")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), function)
    except ImportError as error:
        raise OwnCodeError(f"{option} {name}: cannot import {module}: {error}") from None
    except AttributeError:
        raise OwnCodeError(f"{option} {name}: {module} has no {function}") from None
    if not callable(found):
        raise OwnCodeError(f"{option} {name}: {function} is a {type(found).__name__}, not a function")

    @functools.wraps(found)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return found(*args, **kwargs)
        except Exception as error:
            raise OwnCodeError(f"{option} {name}: your own code raised {type(error).__name__}: {error}") from error

    return call


def add_own(parser: ArgumentParser) -> None:
    """The options by which a verb takes code of the user's own."""
    parser.add_argument("--model_from", metavar="MODULE:FUNCTION", help="your network: (shape, classes, **model.args)")
    parser.add_argument(
        "--data_from", metavar="MODULE:FUNCTION", help="your data: () -> (x, y) or (x, y, x_test, y_test)"
    )


def own_of(args: Namespace) -> dict[str, Any]:
    """What these options name."""
    return {option: own(getattr(args, option), f"--{option}") for option in ("model_from", "data_from")}

"""The package's exceptions, and one-line descriptions of errors, values and unknown names."""

import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


class MaxUpError(Exception):
    """Base class of the errors that this package raises on purpose. The message is one sentence for the user."""


class MaxUpWarning(UserWarning):
    """Training may not do what you want.

    Examples: a forward pass changes state that cannot be restored, all copies have the same loss, the losses of the
    winners change when they are batched together, or a `Transform` does not transform the targets.
    """


class InputsError(MaxUpError, ValueError):
    """Inputs of the diagnostics are invalid."""


class CannotShareError(MaxUpError, ValueError):
    """The copies in one pass cannot share the random numbers that the model draws."""


class RecipeError(MaxUpError, ValueError):
    """A recipe, or a table of recipes, is invalid."""


class UserCodeError(MaxUpError, ValueError):
    """A module or function that the user named cannot be used."""


class DataError(MaxUpError, RuntimeError):
    """A data set is missing or invalid."""


class ModelError(MaxUpError, RuntimeError):
    """A network from another package cannot be built, or a weights file does not match its network."""


class LoadError(MaxUpError, RuntimeError):
    """An exported model cannot be written, uploaded or loaded."""


class CheckpointError(MaxUpError, RuntimeError):
    """A checkpoint cannot be written, read or locked."""


class CertificateError(MaxUpError, RuntimeError):
    """A certificates file is invalid."""


class RunError(MaxUpError, RuntimeError):
    """A run cannot continue."""


class NonFiniteError(RunError):
    """A loss, a weight or a metric is not finite."""


class InterruptedRunError(RunError):
    """A run was interrupted. Its state is saved."""


class InterruptedQueueError(MaxUpError, RuntimeError):
    """A queue of runs was interrupted."""


def error_message(error: BaseException) -> str:
    """Return the message of an error on one line.

    Example:
        >>> error_message(ValueError("too   long")), error_message(KeyError())
        ('too long', 'KeyError')
        >>> error_message(FileNotFoundError(2, "No such file or directory", "/home/me/a.yaml"))
        'No such file or directory (a.yaml)'
    """
    if isinstance(error, OSError) and error.strerror:
        name = f" ({Path(error.filename).name:.60})" if isinstance(error.filename, str | os.PathLike) else ""
        return error.strerror + name
    return " ".join(str(error).split())[:300] or type(error).__name__


def format_error(error: BaseException) -> str:
    """Return the type and message of an error on one line.

    Example:
        >>> format_error(ValueError("too  long"))
        'ValueError: too long'
    """
    return f"{type(error).__name__}: {error_message(error)}"


def format_value(value: Any) -> str:
    """Return a value for an error message, truncated if it is long.

    Example:
        >>> format_value("ten"), format_value(10**5000)
        ("'ten'", 'an integer of 16610 bits')
    """
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    return f"{value!r:.60}"


def a_type(thing: object) -> str:
    """Return the type of a value with an article.

    Example:
        >>> a_type(1), a_type("word")
        ('an int', 'a str')
    """
    name = type(thing).__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def unknown_name(name: str, known: Iterable[str], what: str) -> str:
    """Return a message about an unknown name, with the closest known name or a list of known names.

    Example:
        >>> print(unknown_name("CIFAR-10", ["cifar10", "digits"], "data set"))
        data set 'CIFAR-10' is unknown; did you mean 'cifar10'?
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    close = close or difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
    names = ", ".join(known) if len(known) <= 20 else first_names(known)
    return f"{what} {name!r:.80} is unknown; " + (f"did you mean {close[0]!r}?" if close else f"known: {names}")


def first_names(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more there are.

    Example:
        >>> first_names(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    shown = ", ".join(f"{name:.60}" for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown

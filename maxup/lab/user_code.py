"""Import the user's functions, given on the command line as MODULE:FUNCTION. Recipes cannot name code."""

import inspect
import os
import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

from maxup.errors import UserCodeError, a_type, format_error, unknown_name

_INSTALLED = (*map(sysconfig.get_path, ("stdlib", "platlib", "purelib")), str(Path(__file__).parents[1]))
NOT_USER_CODE = tuple(folder + os.sep for folder in _INSTALLED)


def find_function(spec: str) -> Callable[..., Any]:
    """Import the function MODULE:FUNCTION. The current folder is searched first.

    Afterwards the current folder is at the end of sys.path, so that files in it cannot hide installed modules.
    """
    name, function = _split(spec)
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        module = import_module(name)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and f"{name}.".startswith(f"{missing}."):
            raise UserCodeError(
                f"there is no module {name} in this folder or in the installed packages; run the command in the folder "
                f"that has {name.replace('.', '/')}.py"
            ) from None
        raise UserCodeError(f"importing {name} failed: {format_error(error)}") from error
    finally:
        with suppress(ValueError):  # the module may have changed sys.path
            sys.path.remove(folder)
        sys.path.extend({folder} - set(sys.path))
    if not callable(getattr(module, function, print)):
        raise UserCodeError(f"{function} is {a_type(getattr(module, function))}; name a function")
    if not hasattr(module, function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserCodeError(f"{name}: " + unknown_name(function, known, "function"))
    _remember(module)
    result: Callable[..., Any] = getattr(module, function)
    return result


def _split(spec: str) -> tuple[str, str]:
    """Return the module and the function of MODULE:FUNCTION. The module may be the path of a file."""
    name, colon, function = spec.partition(":")
    if not (name and colon and function):
        raise UserCodeError(f"{spec!r} is not of the form MODULE:FUNCTION, such as mine:net for net() in mine.py")
    if name.endswith(".py") or "/" in name:  # a path
        name = os.path.relpath(name).removesuffix(".py").replace(os.sep, ".")
    if name.startswith("."):
        raise UserCodeError(f"{spec!r} is not below the current folder; change to its folder and name it from there")
    return name, function


def function_name(function: Callable[..., Any] | None) -> str:
    """Return MODULE:FUNCTION, or "" without a function. For a function of a script, MODULE is the name of its file."""
    if function is None:
        return ""
    module, main = getattr(function, "__module__", ""), sys.modules.get("__main__")
    if module == "__main__":
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec else Path(file).stem if file else module
    name = getattr(function, "__qualname__", None)
    if name is None or inspect.ismethod(function):  # a partial function, an object, or a method of one
        name = f"<{name or type(function).__name__}>"
    return f"{module}:{name}"


def importable_name(spec: str, function: Callable[..., Any]) -> tuple[str, str]:
    """Return the module and the name under which a function can be found: where it is defined, or MODULE:FUNCTION.

    A lambda, a partial function, a nested function and an object with `__call__` have no name that can be imported.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module and name and getattr(sys.modules.get(module), name, None) is function:
        return module, name
    return _split(spec)


def is_importable(name: str) -> bool:
    """Whether a recorded MODULE:FUNCTION can be imported. Nested functions and those of a notebook cannot.

    Example:
        >>> is_importable("mine:data"), is_importable("mine:<lambda>"), is_importable("__main__:data")
        (True, False, False)
    """
    return "<" not in name and not name.startswith("__main__:")


def where_raised(error: BaseException) -> str:
    """Return the innermost line of the user's files that an error passed, as " (mine.py, line 23)", or "".

    Example:
        >>> where_raised(ValueError("not raised"))
        ''
    """
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if os.path.exists(file) and not file.startswith(NOT_USER_CODE):
            return f" ({os.path.basename(file)}, line {line})"
    return ""


def raised_in_user_code(error: BaseException) -> str | None:
    """Return a message if the user's code raised the error, for example in a network's forward; otherwise None.

    The innermost frame of this package or of user code decides, so bugs in this package keep their traceback.

    Example:
        >>> raised_in_user_code(ValueError("ours"))
    """
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        name, code = str(frame.f_globals.get("__name__")), frame.f_code
        package = name.partition(".")[0]
        if package == "maxup":
            return None
        if package in _packages or os.path.dirname(code.co_filename) in _folders:
            where = f"{os.path.basename(code.co_filename)}, line {line}, in {code.co_name}"
            return f"your code raised {format_error(error)} ({where})"
    return None


_packages: set[str] = set()  # top-level packages of the user's modules
_folders: set[str] = set()


def _remember(module: ModuleType) -> None:
    package, file = module.__name__.partition(".")[0], getattr(module, "__file__", None)
    if package not in {"torch", "maxup", *sys.stdlib_module_names} and file:
        _packages.add(package)
        _folders.add(os.path.dirname(file))

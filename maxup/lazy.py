"""Public names that are imported on first use (PEP 562), so that `import maxup` does not import torch."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package that imports its public names on first use.

    Call it in the `else` branch of `if TYPE_CHECKING:`, which imports the same names for type checkers.

    Args:
        package: Name of the package, its `__name__`.
        modules: Public names per module, separated by spaces. A module that lists its own name is itself public.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = module_of[name]
        try:
            module = import_module(f"{package}.{home}")
        except ModuleNotFoundError as error:
            if not home.startswith("lab.") or (error.name or "").startswith("maxup"):
                raise
            return _missing(f"{package}.{name} needs the lab: pip install 'maxup[lab]'")
        value = module if name == home else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(module_of), load, lambda: sorted({*vars(sys.modules[package]), *module_of})


def _missing(message: str) -> Callable[..., Any]:
    """A function that cannot be called without the lab. Looking it up works, so `from maxup import *` does too."""

    def unavailable(*args: Any, **kwargs: Any) -> Any:
        raise ImportError(message)

    return unavailable

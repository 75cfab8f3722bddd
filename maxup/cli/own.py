"""Options that name code of the user's own, --model_from and --data_from."""

from collections.abc import Callable
from typing import Any

from maxup.own_code import OwnCodeError, find_function, told


def own(name: str | None, option: str) -> Callable[..., Any] | None:
    """The function a MODULE:FUNCTION names, whose errors name the option; None where none is named."""
    if name is None:
        return None
    try:
        found = find_function(name)
    except OwnCodeError as error:
        raise OwnCodeError(f"{option} {name}: {error}") from error

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return found(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise OwnCodeError(f"{option} {name}: your own code raised {told(error)}") from error

    return call

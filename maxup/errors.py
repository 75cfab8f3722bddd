"""Words about what went wrong, for the sentences that errors say. Every part of the package may use them."""

import os
from pathlib import Path


def reason(error: BaseException) -> str:
    """What an error says, for the middle of a sentence.

    Example:
        >>> reason(ValueError("too   long")), reason(KeyError())
        ('too long', 'KeyError')
        >>> reason(FileNotFoundError(2, "No such file or directory", "/home/me/a.yaml"))
        'No such file or directory (a.yaml)'
    """
    if isinstance(error, OSError) and error.strerror:
        name = f" ({Path(error.filename).name:.60})" if isinstance(error.filename, str | os.PathLike) else ""
        return error.strerror + name
    return " ".join(str(error).split())[:300] or type(error).__name__

"""Print text safely. Names and file contents cannot send control characters to the terminal."""

import json
from typing import TYPE_CHECKING, Any, TextIO
from unicodedata import category

from maxup.lab.storage.atomic_io import encode_nonfinite

if TYPE_CHECKING:
    from rich.console import Console

LONGEST = 2000  # characters of an error message


def printable(text: str, *, keep: str = "\n\t") -> str:
    r"""Escape control, format and bidirectional characters. Spaces and the characters in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep or category(c) == "Zs" else c.encode("unicode_escape").decode() for c in text
    )


def one_line(text: str) -> str:
    r"""Escape like `printable` and join lines, for an error message or a table cell."""
    return printable(text.replace("\r\n", " ").replace("\n", " "), keep="")


def sentence(text: str) -> str:
    """Put an error message on one line and shorten it if it is very long.

    Example:
        >>> len(sentence("a" * 10_000))
        2005
    """
    text = one_line(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def say(*parts: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    r"""Print like `print`, with control characters escaped.

    Example:
        >>> say("a\x1b", 3)
        a\x1b 3
    """
    print(printable(sep.join(map(str, parts))), end=end, file=file, flush=flush)


def say_json(document: Any) -> None:
    r"""Print a document as strict JSON in ASCII. NaN and infinity become strings.

    Example:
        >>> say_json({"name": "a\x1b", "loss": float("inf")})
        {
          "name": "a\u001b",
          "loss": "inf"
        }
    """
    say(json.dumps(encode_nonfinite(document), indent=2, allow_nan=False))


def make_console(**options: Any) -> "Console":
    r"""Return a `rich` console that ignores markup and escapes control characters like `say`."""
    from rich.console import Console

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Any:
            return super().render_str(printable(text), **options)

    return Plain(highlight=False, markup=False, emoji=False, **options)

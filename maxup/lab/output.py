"""What the package shows: every text passes here, so that no name or file can send control characters to a terminal."""

from typing import TYPE_CHECKING, Any, TextIO
from unicodedata import category

if TYPE_CHECKING:
    from rich.console import Console

LONGEST = 2000  # characters of an error


def printable(text: str, *, keep: str = "\n\t") -> str:
    r"""A text with its control, format and bidirectional characters escaped; spaces and what `keep` names stay.

    Example:
        >>> print(printable("\x1b[31mred\r\u202e 10 µm"))
        \x1b[31mred\r\u202e 10 µm
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep or category(c) == "Zs" else c.encode("unicode_escape").decode() for c in text
    )


def one_line(text: str) -> str:
    r"""The same on one line, for a sentence or a cell of a table.

    Example:
        >>> one_line("two\nlines")
        'two lines'
    """
    return printable(text.replace("\r\n", " ").replace("\n", " "), keep="")


def sentence(text: str) -> str:
    """An error on one line, without its middle where it quotes something very long.

    Example:
        >>> len(sentence("a" * 10_000))
        2005
    """
    text = one_line(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def say(*parts: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    r"""Print, as `print` does, what is printable.

    Example:
        >>> say("a\x1b", 3)
        a\x1b 3
    """
    print(printable(sep.join(map(str, parts))), end=end, file=file, flush=flush)


def make_console(**options: Any) -> "Console":
    r"""A console of rich that takes no markup, and escapes what `say` escapes.

    Example:
        >>> make_console(width=20).print("[bold]\x1b :smile:")
        [bold]\x1b :smile:
    """
    from rich.console import Console

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Any:
            return super().render_str(printable(text), **options)

    return Plain(highlight=False, markup=False, emoji=False, **options)

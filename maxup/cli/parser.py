"""The parser all verbs share: a description, examples at the end of --help, options in full only."""

import argparse
import textwrap


def parser_of(verb: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A parser for a verb's arguments.

    Example:
        >>> parser_of("ls", "List recipes.", "example: maxup ls").prog
        'maxup ls'
    """
    return argparse.ArgumentParser(
        f"maxup {verb}",
        description=textwrap.fill(description, 100),
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # or a setting of the recipe might be taken for an option
    )

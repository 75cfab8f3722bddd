"""The long description: README.md with absolute links, which work on a package index too."""

import re
from pathlib import Path

from setuptools import setup

REPOSITORY = "https://github.com/maxup-pytorch/maxup"


def long_description() -> str:
    """Return README.md. Links to files of the repository, and to its pictures, become absolute."""

    def absolute(match: re.Match[str]) -> str:
        bang, text, target = match.groups()
        return f"{bang}[{text}]({REPOSITORY}/{'raw' if bang else 'blob'}/main/{target})"

    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)", absolute, readme)


if __name__ == "__main__":
    setup(long_description=long_description(), long_description_content_type="text/markdown")

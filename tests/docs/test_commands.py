"""Commands in the README and the docs name verbs, options, recipes and tables that exist.

Other tests run the commands of the README's demo, of docs/your-data.md, docs/extending.md and docs/scaling.md.
"""

import re
import shlex
from functools import cache

import pytest

from benchmarks.tables import ROOT
from maxup.cli.completion import describe
from maxup.cli.main import find_verbs
from maxup.lab.recipes.load import list_recipes
from maxup.lab.recipes.settings import objectives, sections
from maxup.lab.report.custom_tables import find_table

PAGES = [ROOT / "README.md", *(page for page in ROOT.glob("docs/*.md") if page.name != "extending.md")]
EDITED = {"mine.yaml", "table.yaml", "reviews.yaml", "RECIPE"}  # files and names that the reader chooses
SETTINGS = {f"--{setting.name}" for group in (*sections(), *objectives()) for setting in group.settings}


def commands():
    for page in PAGES:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if "maxup" in words and words[0] != "pip":
                    yield pytest.param(words[words.index("maxup") + 1 :], id=f"{page.stem}: {' '.join(words)}"[:90])


@cache
def options(verb):
    return set(describe(verb).options) | (SETTINGS if verb in ("train", "compare") else set())


@pytest.mark.parametrize("words", list(commands()))
def test_command(words):
    verb, *rest = words
    assert verb in find_verbs()
    given = [word.partition("=")[0] for word in rest if word.startswith("--")]
    unknown = [word for word in given if word not in options(verb) and not word.startswith("--model.args.")]
    assert not unknown
    if rest and rest[0] not in EDITED:
        if verb in ("train", "compare") and not rest[0].startswith("-") and rest[0] != "...":
            assert rest[0] in list_recipes()
        if verb == "reproduce":
            find_table(rest[0])

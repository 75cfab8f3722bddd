"""Follow docs/extending.md: apply its code to a copy of the package, run its tests and its commands."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from benchmarks.tables import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text()
SECTIONS = {text.partition("\n")[0]: text for text in PAGE.split("\n## ")[1:]}
BLOCK = re.compile(r"^`((?:maxup|tests)/[\w/]+\.py)`:\n\n```(python|diff)\n(.*?)```", re.MULTILINE | re.DOTALL)


def patch(text, diff):
    """Apply one hunk whose context and removed lines occur exactly once."""
    lines = [(line[:1] or " ", line[1:]) for line in diff.splitlines()]
    old, new = ("\n".join(line for sign, line in lines if sign in kept) for kept in (" -", " +"))
    assert text.count(old) == 1, f"docs/extending.md changes lines that are not in the package:\n{old}"
    return text.replace(old, new)


def run(*command, cwd):
    env = {**os.environ, "PYTHONPATH": str(cwd), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *map(str, command)], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SLOW = ("A perturbation", "An objective", "A data set")  # each starts several processes


@pytest.mark.parametrize(
    "title", [pytest.param(title, marks=pytest.mark.slow if title in SLOW else ()) for title in SECTIONS]
)
def test_section(title, tmp_path):
    section = SECTIONS[title]
    shutil.copytree(ROOT / "maxup", tmp_path / "maxup", ignore=shutil.ignore_patterns("__pycache__"))
    files = BLOCK.findall(section)
    for name, kind, code in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(patch(path.read_text(), code) if kind == "diff" else code)
    tests = [name for name, _, _ in files if name.startswith("tests/")]
    commands = [line for block in re.findall(r"```bash\n(.*?)```", section, re.DOTALL) for line in block.splitlines()]
    assert len(tests) == 1
    assert len(commands) == 1
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=tmp_path)
    run("-m", *shlex.split(commands[0]), cwd=tmp_path)


def test_every_block_is_used():
    assert list(SECTIONS) == ["An objective", "A perturbation", "A data set", "A verb"]
    assert len(BLOCK.findall(PAGE)) == len(re.findall(r"```(?:python|diff)\n", PAGE)) == 10


def test_new_verb_is_listed(tmp_path):
    shutil.copytree(ROOT / "maxup", tmp_path / "maxup", ignore=shutil.ignore_patterns("__pycache__"))
    (code,) = [code for name, _, code in BLOCK.findall(PAGE) if name.startswith("maxup/cli/")]
    (tmp_path / "maxup" / "cli" / "count.py").write_text(code)
    assert re.search(r"^\s+count\s.*recipes", run("-m", "maxup", "--help", cwd=tmp_path), re.MULTILINE)


def test_files_of_the_overview_exist():
    table = PAGE.partition("\n## ")[0]
    for name in re.findall(r"`(maxup/[\w/]+\.py)`", table):
        assert (ROOT / name).is_file(), name

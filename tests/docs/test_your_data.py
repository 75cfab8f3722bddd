"""Follow docs/your-data.md as a new user: write its files and run its commands."""

import json
import re
import shlex
import sys

import pytest

from benchmarks.tables import ROOT
from maxup.cli.main import main
from tests.lab.data.fake import write_folders

PAGE = (ROOT / "docs" / "your-data.md").read_text()
FILES = re.findall(r"`([\w-]+\.(?:py|yaml))`:\n\n```(?:python|yaml)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("maxup ")
]
SMALL = {  # smaller settings for a test
    "images/resnet18-cutmix-maxup": "--model.name resnet20 --data.size 16 --batch_size 8 --epochs 1 --data.workers 0",
    "text/awd_lstm-embedding_dropout-maxup": "--epochs 1 --model.args '{embedding: 8, hidden: 8, layers: 1}'",
}


@pytest.fixture
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, content in FILES:
        (tmp_path / name).write_text(content)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    write_folders(tmp_path / "all", train=8)
    (tmp_path / "all" / "train").rename(tmp_path / "photos")
    (tmp_path / "book.txt").write_text("It was the best of times,\nit was the worst of times.\n\nThe end.\n\n" * 60)


@pytest.mark.usefixtures("_files")
def test_every_command_runs(tmp_path):
    """In the order of the page, in one folder."""
    assert len(FILES) == 5
    assert len(COMMANDS) == 12
    for verb, *words in COMMANDS:
        small = [*shlex.split(SMALL.get(words[0], "")), "--trackers", "none"] if verb == "train" else []
        assert main([verb, *words, *small]) == 0, (verb, words)
    accuracy = {
        name: json.loads((tmp_path / "runs" / name / "run.json").read_text())["last"]["test_accuracy"]
        for name in ("digits/mlp-gaussian-maxup/seed-0", "table")
    }
    assert min(accuracy.values()) > 0.8
    assert (tmp_path / "copies.png").exists()
    assert (tmp_path / "shared").is_dir()


def test_commands_of_the_overview_are_those_below():
    table = re.findall(r"^\| .* \| `maxup (.*)` \|$", PAGE, re.MULTILINE)
    assert len(table) == 4
    for command in table[:2]:
        assert shlex.split(command) in COMMANDS

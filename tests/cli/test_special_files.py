"""A link or a pipe in place of each file of a run: no link is followed, and no pipe blocks."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from maxup.cli.main import main
from maxup.lab.experiments.queue import LOCK, LOG, Task, run_queue

TRAIN = ["train", "digits/mlp-gaussian", "--out", "run", "--data.train_size", "200", "--model.args", "{hidden: [4]}"]
TRAIN += ["--epochs", "2", "--model.normalize", "true"]
CERTIFY = ["certify", "run", "--n", "100", "--n0", "10", "--sigma", "0.3", "--max"]
REPORT = ["report", "table-certified", "--results", "run", "--runs", "."]
COMMANDS = {
    "train": TRAIN, "eval": ["eval", "run"], "export": ["export", "run", "model"], "certify": [*CERTIFY, "3"],
    "report": REPORT,
}  # fmt: skip
FILES = ("metrics.jsonl", "run.json", ".lock", "certified-0.3.tsv", "checkpoints/best.json")
FOLDERS = ("checkpoints", "maxup")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(TRAIN) == 0
        assert main([*CERTIFY, "2"]) == 0
    return folder


@pytest.fixture
def place(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def one_message_at_most(command, capsys):
    capsys.readouterr()
    code, said = main(command), capsys.readouterr().err
    assert code in (0, 1)
    assert len(said.splitlines()) == code, said
    return said


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("verb", COMMANDS)
def test_a_link_is_not_followed(place, capsys, verb, file):
    """Neither to a file that has the right content nor to one that is not there."""
    precious = place / "precious"
    (place / "run" / file).rename(precious)
    before = precious.read_bytes()
    (place / "run" / file).symlink_to(precious)
    one_message_at_most(COMMANDS[verb], capsys)
    assert precious.read_bytes() == before
    shutil.rmtree(place / "model", ignore_errors=True)
    (place / "run" / file).unlink()
    (place / "run" / file).symlink_to(place / "nowhere")
    one_message_at_most(COMMANDS[verb], capsys)
    assert not (place / "nowhere").exists()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("verb", COMMANDS)
def test_a_pipe_is_not_waited_for(place, capsys, verb, file):
    (place / "run" / file).unlink()
    os.mkfifo(place / "run" / file)
    one_message_at_most(COMMANDS[verb], capsys)


@pytest.mark.parametrize("file", ["metrics.jsonl", ".lock", "checkpoints"])
def test_the_message_names_the_file(place, capsys, file):
    (place / "run" / file).rename(place / "elsewhere")
    (place / "run" / file).symlink_to(place / "elsewhere")
    said = one_message_at_most(TRAIN, capsys)
    assert f"run/{file} is " in said


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("verb", COMMANDS)
def test_a_folder_behind_a_link_is_left_alone(place, capsys, verb, folder):
    (place / "run" / folder).rename(place / "elsewhere")
    (place / "elsewhere" / ".tmp-99999999-new").mkdir()
    (place / "run" / folder).symlink_to(place / "elsewhere")

    def content():
        return {path: path.is_file() and path.read_bytes() for path in sorted((place / "elsewhere").rglob("*"))}

    before = content()
    said = one_message_at_most(COMMANDS[verb], capsys)
    assert content() == before
    assert bool(said) == (folder == "checkpoints" and verb != "report")
    if said:
        assert "run/checkpoints is a link; move the folder itself there, or link the run's folder instead" in said


def test_the_run_s_folder_itself_may_be_behind_a_link(place):
    (place / "run").rename(place / "scratch")
    (place / "run").symlink_to(place / "scratch")
    for command in COMMANDS.values():
        assert main(command) == 0


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path.parent.parent / "precious")])
@pytest.mark.parametrize("name", [LOCK, LOG])
def test_the_files_of_a_queue(tmp_path, name, make):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "job").mkdir()
    make(tmp_path / "job" / name)
    task = Task("job", [sys.executable, "-c", "print(3)"], tmp_path / "job", lambda: False)
    (failure,) = run_queue([task], [None], say=lambda line: None)
    assert f"{tmp_path / 'job' / name} is not a regular file" in failure.why
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_truncated_file_is_reported_with_the_missing_steps(place, capsys):
    """By the resumed run, and by the report."""
    steps = json.loads(Path("run/run.json").read_text())["steps"]
    metrics = Path("run/metrics.jsonl")
    assert main(TRAIN) == 0
    assert "truncated" not in capsys.readouterr().out
    lines = metrics.read_text().splitlines(keepends=True)
    first = json.loads(lines[0])["step"]
    metrics.write_text(lines[0])
    said = f"run/metrics.jsonl was truncated: records of steps {first + 1} to {steps} are missing"
    (place / "results").mkdir()
    for command in (["report", "--results", "results", "--runs", "."], TRAIN):
        assert main(command) == 0
        assert capsys.readouterr().out.count(said) == 1
    metrics.unlink()
    assert main(TRAIN) == 0
    assert f"run/metrics.jsonl was truncated: records of steps 1 to {steps} are missing" in capsys.readouterr().out


def test_what_a_killed_process_left_is_removed(place):
    left = [Path("run", ".tmp-99999999-run.json"), Path("run", "checkpoints", ".tmp-99999999-new", "deep")]
    left[0].write_text("half")
    left[1].mkdir(parents=True)
    assert main(TRAIN) == 0
    assert not list(Path("run").rglob(".tmp-*"))
    Path("out").mkdir()
    Path("out", ".tmp-99999999-report.html").write_text("half")
    Path("out", ".tmp-99999999-thesis").write_text("of another program")
    assert main([*REPORT, "--out", "out"]) == 0
    assert [path.name for path in Path("out").glob(".tmp-*")] == [".tmp-99999999-thesis"]


def test_a_full_disk_leaves_the_report_before_it(place, monkeypatch, capsys):
    (place / "results").mkdir()
    command = ["report", "--results", "results", "--runs", ".", "--out", "out"]
    assert main(command) == 0
    before = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    assert any(name.endswith(".png") for name in before)

    def full(*_):
        raise OSError(28, "No space left on device")

    for broken in ("os.fsync", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(broken, full)
            assert main(command) == 1
        said = capsys.readouterr().err
        assert re.fullmatch(r"maxup report: No space left on device \(([\w.-]+)\)\n", said)
        assert said.partition("(")[2].removesuffix(")\n") in before
        assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before

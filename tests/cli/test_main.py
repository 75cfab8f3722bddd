"""The command as a user meets it: help, exit codes, sentences; and nothing heavy before it is needed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from maxup.cli.main import VERBS, main

ROOT = Path(__file__).parent.parent.parent


def test_help_lists_every_verb(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in VERBS)
    assert main([]) == 2


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"maxup {verb}" in re.split("examples?:", capsys.readouterr().out)[1]


@pytest.mark.parametrize("verb", ["compare", "reproduce", "export", "eval"])
def test_verbs_of_one_process_say_so(verb, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([verb, "anything"]) == 2
    said = "it runs in one process, but WORLD_SIZE is 2; call it without torchrun, or unset WORLD_SIZE"
    assert capsys.readouterr().err == f"maxup {verb}: {said}\n"
    assert main(["ls", "digits"]) == 0
    monkeypatch.setenv("WORLD_SIZE", "")
    with pytest.raises(SystemExit):
        main([verb, "--help"])


def test_mistakes(capsys, tmp_path):
    assert main(["trian"]) == 2
    assert "did you mean 'train'?" in capsys.readouterr().err
    assert main(["train", "digits/nothing"]) == 1
    assert main(["train", "digits/mlp-gaussian", "--objective.n", "3"]) == 1
    assert main(["train", "digits/mlp-gaussian", "--perturb", "[{name: cutot}]", "--out", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "objective 'standard' takes no arguments; remove 'n'" in err
    assert "Traceback" not in err


SENTENCES = {
    "a file for a folder": (
        ["train", "digits/mlp-gaussian", "--out", "file/run"],
        "argument --out: file is a file; name a folder, which need not be there yet",
    ),
    "no time": (
        ["train", "digits/mlp-gaussian", "--save_every", "nan"],
        "must be a number, 0 or more, but is 'nan'",
    ),
    "no time at all": (["train", "digits/mlp-gaussian", "--save_every", "soon"], "0 or more, but is 'soon'"),
    "a folder for a factor": (
        ["certify", "--attack", "runs/a"],
        "argument --attack: 'runs/a' is no number; the folder comes before the options: maxup certify runs/a ...",
    ),
    "commas between radii": (
        ["certify", "a", "--radii", "0.25,0.5"],
        "'0.25,0.5' is no number; separate numbers by spaces",
    ),
    "a factor of 0": (["certify", "a", "--attack", "0"], "--attack: must be a number above 0 and at most 1e+06"),
    "a factor that is none": (
        ["certify", "a", "--attack", "nan"],
        "--attack: must be a number above 0 and at most 1e+06",
    ),
    "a picture of no kind": (["certify", "a", "--picture", "p.xyz"], "--picture: 'p.xyz' must end in .png, .svg, .pdf"),
    "a plot of no kind": (["certify", "a.tsv", "--plot", "p"], "argument --plot: 'p' must end in .png, .svg, .pdf"),
    "a folder for a picture": (["certify", "a", "--picture", "/"], "--picture: '/' is a folder; name a file"),
    "no name": (["certify", "a", "--out", ""], "argument --out: '' is no name; name a file"),
    "a file for a run": (["certify", "a", "file"], "give one folder, or --module; or TSV files to be shown"),
    "tables and a picture": (
        ["certify", "a.tsv", "--picture", "a.png"],
        "--picture does nothing where TSV files are shown; leave it out",
    ),
    "tables and a place": (["certify", "a.tsv", "--data.root", "."], "--data.root does nothing where TSV files are"),
    "tables and sigma": (["certify", "a.tsv", "--sigma", "1"], "--sigma does nothing where TSV files are shown"),
    "a picture and an attack": (
        ["certify", "a", "--picture", "a.png", "--attack"],
        "--attack does nothing with --picture, which certifies one image; leave it out",
    ),
    "an image without a picture": (["certify", "a", "--image", "3"], "--image does nothing without --picture"),
    "all and some": (["certify", "a", "--all", "--skip", "3"], "argument --skip: not allowed with argument --all"),
    "data twice": (
        ["certify", "--module", "a:b", "--data", "digits", "--data_from", "a:c"],
        "--data_from does nothing with --data; leave it out",
    ),
    "two networks": (
        ["certify", "--module", "a:b", "--data", "digits", "--model_from", "a:c"],
        "--model_from does nothing with --module; leave it out",
    ),
    "a folder for a radius": (["certify", "--radii", "0.5", "runs/a"], "argument --radii: 'runs/a' is no number"),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_wrong_options_get_a_sentence(tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    arguments, sentence = SENTENCES[case]
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ls"], ["train", "--help"], ["data"], ["oops"]])
def test_torch_is_not_imported_before_it_is_needed(arguments):
    code = (
        "import sys\nfrom maxup.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules, 'torch'"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_closed_pipe_is_no_success():
    command = [sys.executable, "-m", "maxup", "train", "digits/mlp-gaussian", "--print_config"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_file_in_the_current_folder_hides_no_installed_module(tmp_path):
    """Though python -m puts that folder first."""
    for name in ("yaml", "jsonargparse", "textwrap", "argparse", "unicodedata", "signal"):
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w').close()\n")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "maxup", "ls", "digits"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("ran-*"))


def test_a_name_that_no_file_can_have(capsys, monkeypatch):
    monkeypatch.setattr("maxup.cli.ls.main", lambda rest: os.mkdir("\ud83d\ude00"))
    assert main(["ls"]) == 1
    assert "has characters that no file name can have" in capsys.readouterr().err

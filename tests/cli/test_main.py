"""The command as a user meets it: help, exit codes, messages. Nothing heavy is imported before it is needed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import maxup.lab
from maxup import MaxUp
from maxup.cli import main as command
from maxup.cli.main import GROUPS, find_verbs, main, user_message
from maxup.errors import RecipeError
from maxup.lab.recipes.settings import sections

ROOT = Path(__file__).parent.parent.parent
VERBS = find_verbs()


def run(code):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


def test_every_file_with_main_is_a_verb():
    files = {path.stem for path in (ROOT / "maxup/cli").glob("*.py") if "\ndef main(" in path.read_text()} - {"main"}
    assert set(VERBS) == files
    assert {"ls", "cp", "train", "compare", "eval", "certify", "report"} <= files
    for verb in VERBS.values():
        assert verb.summary.endswith(".")
        assert verb.group in GROUPS


def test_a_new_file_is_a_new_verb(tmp_path, monkeypatch, capsys):
    (tmp_path / "count.py").write_text('"""Count things.\n\nMore."""\nONE_PROCESS = True\n\ndef main(argv): ...\n')
    (tmp_path / "shared.py").write_text('"""Not a verb."""\n')
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    assert find_verbs() == {"count": command.Verb("Count things.", "Other", one_process=True)}
    assert main(["--help"]) == 0
    assert "\nOther:\n  count      Count things.\n" in capsys.readouterr().out


def test_help_lists_every_verb(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^  {name} +{re.escape(verb.summary)}$", out, re.MULTILINE) for name, verb in VERBS.items())
    assert max(map(len, out.splitlines())) <= 80
    assert main([]) == 2


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert f"maxup {verb}" in re.split("examples?:", out)[1]
    assert max(map(len, out.splitlines())) <= 80


def test_the_help_of_train_lists_its_options_and_then_every_setting(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    options, _, settings = capsys.readouterr().out.partition("\nsettings:\n")
    assert "--print_config" in options
    assert "--optim.lr " not in options
    assert all(f"  --{one.name} " in settings for section in sections() for one in section.settings)
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert "maxup train --help" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["compare", "reproduce", "export", "eval"])
def test_verbs_of_one_process_refuse_torchrun(verb, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([verb, "anything"]) == 2
    message = "it runs in one process, but WORLD_SIZE is 2; call it without torchrun, or unset WORLD_SIZE"
    assert capsys.readouterr().err == f"maxup {verb}: {message}\n"
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


MESSAGES = {
    "a file for a folder": (
        ["train", "digits/mlp-gaussian", "--out", "file/run"],
        "argument --out: file is a file; give a folder, which need not exist",
    ),
    "no time": (
        ["train", "digits/mlp-gaussian", "--save_every", "nan"],
        "must be a number, 0 or more, but is 'nan'",
    ),
    "no time at all": (["train", "digits/mlp-gaussian", "--save_every", "soon"], "0 or more, but is 'soon'"),
    "a folder for a factor": (
        ["certify", "--attack", "runs/a"],
        "argument --attack: 'runs/a' is not a number; put the folder before the options: maxup certify runs/a ...",
    ),
    "commas between radii": (
        ["certify", "a", "--radii", "0.25,0.5"],
        "'0.25,0.5' is not a number; separate numbers by spaces",
    ),
    "a factor of 0": (["certify", "a", "--attack", "0"], "--attack: must be a number above 0 and at most 1e+06"),
    "a factor that is none": (
        ["certify", "a", "--attack", "nan"],
        "--attack: must be a number above 0 and at most 1e+06",
    ),
    "a picture of no kind": (["certify", "a", "--picture", "p.xyz"], "--picture: 'p.xyz' must end in .png, .svg, .pdf"),
    "a plot of no kind": (["certify", "a.tsv", "--plot", "p"], "argument --plot: 'p' must end in .png, .svg, .pdf"),
    "a folder for a picture": (["certify", "a", "--picture", "/"], "--picture: '/' is a folder; give a file"),
    "no name": (["certify", "a", "--out", ""], "argument --out: '' is not a name; give a file"),
    "a file for a run": (["certify", "a", "file"], "give one folder, or --module; or TSV files to show"),
    "tables and a picture": (
        ["certify", "a.tsv", "--picture", "a.png"],
        "--picture has no effect when TSV files are shown; remove it",
    ),
    "tables and a place": (["certify", "a.tsv", "--data.root", "."], "--data.root has no effect when TSV files are"),
    "tables and sigma": (["certify", "a.tsv", "--sigma", "1"], "--sigma has no effect when TSV files are shown"),
    "a picture and an attack": (
        ["certify", "a", "--picture", "a.png", "--attack"],
        "--attack has no effect with --picture, which certifies one image; remove it",
    ),
    "an image without a picture": (["certify", "a", "--image", "3"], "--image has no effect without --picture"),
    "all and some": (["certify", "a", "--all", "--skip", "3"], "argument --skip: not allowed with argument --all"),
    "data twice": (
        ["certify", "--module", "a:b", "--data", "digits", "--data_from", "a:c"],
        "--data_from has no effect with --data; remove it",
    ),
    "two networks": (
        ["certify", "--module", "a:b", "--data", "digits", "--model_from", "a:c"],
        "--model_from has no effect with --module; remove it",
    ),
    "a folder for a radius": (["certify", "--radii", "0.5", "runs/a"], "argument --radii: 'runs/a' is not a number"),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_wrong_options_get_one_line(tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    arguments, message = MESSAGES[case]
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert line.startswith(f"maxup {arguments[0]}: ")
    assert line.endswith(f" (see maxup {arguments[0]} --help)")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ls"], ["train", "--help"], ["data"], ["oops"]])
def test_torch_is_not_imported_before_it_is_needed(arguments):
    code = (
        "import sys\nfrom maxup.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules, 'torch'"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


BLOCK = f"""
import sys
for name in {maxup.lab.REQUIRES!r}:
    sys.modules[name] = None  # as if it were not installed
from maxup.cli.main import find_verbs, main
"""


def test_without_the_lab_every_verb_says_what_to_install():
    done = run(BLOCK + "print([main([verb, *rest]) for verb in find_verbs() for rest in ([], ['--help'], ['a', 'b'])])")
    assert done.stdout == f"{[1] * 3 * len(VERBS)}\n"
    assert set(done.stderr.splitlines()) == {"maxup: the command needs the lab: pip install 'maxup[lab]'"}


@pytest.mark.parametrize("name", maxup.lab.REQUIRES)
def test_one_missing_package_is_enough(name):
    done = run(f"import sys; sys.modules[{name!r}] = None; from maxup.cli.main import main; sys.exit(main(['ls']))")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "maxup: the command needs the lab: pip install 'maxup[lab]'\n"


def test_help_and_version_work_without_the_lab():
    done = run(BLOCK + "print(main(['--help']), main(['--version']), main(['trian']))")
    assert done.stdout.startswith("usage: maxup VERB")
    assert done.stdout.endswith(f"maxup {maxup.__version__}\n0 0 2\n")
    assert done.stderr == "maxup: verb 'trian' is unknown; did you mean 'train'?\n"


def caught(function, *args, **kwargs):
    with pytest.raises(Exception) as error:  # noqa: PT011
        function(*args, **kwargs)
    return error.value


def bug(statement):
    """Return the error of a statement in a module of the package."""
    return caught(exec, compile(statement, "bug.py", "exec"), {"__name__": "maxup.objectives.bug"})


def test_our_errors_and_argument_checks_are_messages():
    assert user_message(RecipeError("too long")) == "too long"
    assert user_message(OSError(28, "No space left on device", "/a/b")) == "No space left on device (b)"
    assert "m must be a whole number" in user_message(caught(MaxUp, maxup.Gaussian(0.1), m=0))
    assert user_message(bug("raise TypeError('x is not a tensor')")) == "x is not a tensor"


@pytest.mark.parametrize(
    "statement",
    [
        "None + 1",
        "int('x')",
        "a, b = 1, 2, 3",
        "len()",
        "raise KeyError('x')",
        "import torch\ntorch.ones(2) @ torch.ones(3)",
        "import json\njson.loads('{')",
        "assert False",
    ],
)
def test_a_bug_of_ours_keeps_its_traceback(statement):
    assert user_message(bug(statement)) is None


def test_a_bug_in_a_verb_is_raised(monkeypatch):
    monkeypatch.setattr("maxup.cli.ls.main", lambda rest: None + 1)
    with pytest.raises(TypeError, match="unsupported operand"):
        main(["ls"])


def test_a_closed_pipe_is_not_a_success():
    command = [sys.executable, "-m", "maxup", "train", "digits/mlp-gaussian", "--print_config"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_file_in_the_current_folder_hides_no_installed_module(tmp_path):
    """Although python -m puts that folder first."""
    for name in ("yaml", "jsonargparse", "textwrap", "argparse", "unicodedata", "signal"):
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w').close()\n")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "maxup", "ls", "digits"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    nothing = "no run with 'digits' in its name in runs; --runs names another folder\n"
    assert (done.returncode, done.stderr) == (0, nothing)
    assert not list(tmp_path.glob("ran-*"))


def test_a_name_that_a_file_cannot_have(capsys, monkeypatch):
    monkeypatch.setattr("maxup.cli.ls.main", lambda rest: os.mkdir("\ud83d\ude00"))
    assert main(["ls"]) == 1
    assert "has characters that a file name cannot have" in capsys.readouterr().err

"""`maxup show` draws the copies of a run, or prints one message."""

import re

import pytest

from maxup.cli.main import main
from tests.cli.runs import make


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    make(folder)
    return folder


def test_it_writes_a_picture_and_marks_the_worst(run, tmp_path, capsys):
    out = tmp_path / "new" / "copies.png"
    assert main(["show", str(run), "--images", "5", "--m", "3", "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert len({line.split()[0] for line in lines[:5]}) == 5  # digits of five kinds
    for line in lines[:5]:
        losses = [(float(number), bool(mark)) for number, mark in re.findall(r"(\d+\.\d{4})(\*?)", line)]
        assert len(losses) == 3
        assert [loss for loss, worst in losses if worst] == [max(losses)[0]]


def test_only_a_file_that_you_name_is_replaced(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("copies.png", "copies-3.png"):
        (tmp_path / name).write_bytes(b"mine")
    for name in ("copies-2.png", "copies-4.png"):
        assert main(["show", str(run), "--images", "1", "--m", "2"]) == 0
        assert f"Written: {name}." in capsys.readouterr().out
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert [(tmp_path / name).read_bytes() for name in ("copies.png", "copies-3.png")] == [b"mine"] * 2
    assert main(["show", str(run), "--images", "1", "--m", "2", "--out", "copies.png"]) == 0
    assert (tmp_path / "copies.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_call_shows_the_same_and_another_batch_another(run, tmp_path, capsys):
    printed = []
    for batch in ("0", "0", "1"):
        assert main(["show", str(run), "--batch", batch, "--out", str(tmp_path / "a.svg")]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]


def test_a_perturbation_of_pixels_knows_how_they_are_normalized(tmp_path, capsys, monkeypatch):
    """Without mean and std, ColorJitter takes normalized images for pixels in [0, 1]."""
    from maxup.lab.recipes.load import parse_recipe
    from maxup.lab.tasks.vision import load_splits
    from maxup.perturb.trivial_augment import TrivialAugment

    make(tmp_path / "run", "--perturb", "[{name: trivial_augment}]")
    made = []
    monkeypatch.setattr(
        TrivialAugment, "draw", lambda *args, draw=TrivialAugment.draw: made.append(args[0]) or draw(*args)
    )
    assert main(["show", str(tmp_path / "run"), "--out", str(tmp_path / "a.png")]) == 0
    mean = load_splits(parse_recipe("digits/mlp-gaussian-maxup", []))[0].mean
    assert {tuple(one.mean) for one in made} == {mean}


def test_all_images_of_a_small_batch_are_shown(tmp_path, capsys):
    make(tmp_path / "run", "--batch_size", "4")
    assert main(["show", str(tmp_path / "run"), "--out", str(tmp_path / "a.png")]) == 0
    assert "The batch has only 4 images." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["digits/mlp-gaussian-maxup"], 1, "train it first"),
        (["mine.yaml"], 1, "train it first"),
        (["nowhere"], 1, "not a run folder"),
        (["RUN", "--batch", "99"], 1, "no batch 99: an epoch has batches 0 to 7"),
        (["RUN", "--m", "1"], 2, "argument --m: must be a whole number from 2 to 64, but is '1'"),
        (["RUN", "--images", "0"], 2, "argument --images: must be"),
        (["RUN", "--out", "copies.jpeg2"], 2, "must end in .png"),
        (["RUN", "--out", "/proc/copies.png"], 1, "maxup show: No such file or directory (copies.png)"),
    ],
)
def test_a_mistake_gives_one_message(run, tmp_path, monkeypatch, capsys, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    arguments = [str(run) if word == "RUN" else word for word in arguments]
    try:
        found = main(["show", *arguments])
    except SystemExit as stop:
        found = stop.code
    assert found == code
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["show", "eval", "sample", "export", "certify"])
@pytest.mark.parametrize("recipe", ["digits/mlp-gaussian-maxup", "mine.yaml", "mine.yml"])
def test_a_recipe_in_place_of_a_run_is_named(tmp_path, monkeypatch, capsys, verb, recipe):
    monkeypatch.chdir(tmp_path)
    more = ["model"] if verb == "export" else []
    assert main([verb, recipe, *more]) == 1
    assert capsys.readouterr().err == (
        f"maxup {verb}: {recipe} is a recipe, but this command needs a trained network; train it first (maxup "
        f"train {recipe}), then give the run folder\n"
    )
    (tmp_path / recipe / "checkpoints").mkdir(parents=True)  # a folder of this name is a run
    assert main([verb, recipe, *more]) == 1
    assert "is a recipe" not in capsys.readouterr().err

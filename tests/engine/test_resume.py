"""What a run does with the checkpoints it finds; that it ends as if never interrupted is in tests/test_resume.py."""

import shutil

import pytest

from maxup.engine import loop
from maxup.engine.stop import RunError
from maxup.recipes.load import recipe_from
from tests.engine.test_loop import RECIPE, train


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, train(folder)


def test_a_damaged_checkpoint_is_named_and_the_previous_one_taken(tmp_path, whole, capsys):
    shutil.copytree(whole[0], tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    (newest / "tensors.safetensors").write_bytes(b"short")
    result = loop.train(recipe_from(RECIPE), tmp_path / "run")
    out = capsys.readouterr().out
    assert newest.name in out
    assert result["last"] == whole[1]["last"]


def test_when_none_can_be_read_it_says_so(tmp_path, whole):
    shutil.copytree(whole[0], tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("step-*/manifest.json"):
        path.write_text("{}")
    with pytest.raises(RunError, match=r"none of the checkpoints in .* can be used"):
        train(tmp_path / "run")


def test_another_recipe_in_the_same_folder_is_refused(tmp_path, whole):
    shutil.copytree(whole[0], tmp_path / "run")
    with pytest.raises(RunError, match=r"another recipe \(different: maxup\)"):
        train(tmp_path / "run", {"maxup": {"m": 3, "warmup": 0}})
    with pytest.raises(RunError, match=r"another recipe \(different: epochs\)"):
        train(tmp_path / "run", {"epochs": 5})

"""`maxup cp` makes a file that trains as the recipe does."""

import pytest

from maxup.cli.main import main
from maxup.lab.recipes.load import list_recipes, parse_recipe


@pytest.mark.parametrize("name", list_recipes())
def test_a_copy_says_the_same(tmp_path, name):
    assert main(["cp", name, str(tmp_path / "mine.yaml")]) == 0
    assert parse_recipe(str(tmp_path / "mine.yaml"), []) == parse_recipe(name, [])


def test_a_copy_can_be_copied_and_changed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["cp", "digits/mlp-gaussian-maxup", "mine.yaml"]) == 0
    assert "maxup train mine.yaml" in capsys.readouterr().out
    (tmp_path / "mine.yaml").write_text("base: digits/mlp-gaussian-maxup\nobjective: {m: 9}\n")
    assert main(["cp", "mine.yaml", "other.yaml"]) == 0
    assert parse_recipe("other.yaml", []).objective["m"] == 9


@pytest.mark.parametrize("base", ["mine2", "mine2.yaml", "'mine2'  # beside it"])
def test_a_copy_in_another_folder_keeps_its_base(tmp_path, monkeypatch, base):
    monkeypatch.chdir(tmp_path)
    for folder in ("sub", "else"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mine2.yaml").write_text("epochs: 7\n")
    (tmp_path / "child.yaml").write_text(f"# My own.\nbase: {base}\nseed: 3\n")
    assert main(["cp", "child.yaml", "sub/child.yaml"]) == 0
    assert (tmp_path / "sub/child.yaml").read_text() == '# My own.\nbase: "../mine2.yaml"\nseed: 3\n'
    monkeypatch.chdir(tmp_path / "else")
    assert main(["cp", "../sub/child.yaml", "grandchild.yaml"]) == 0
    for name in ("../sub/child.yaml", "grandchild.yaml"):
        assert parse_recipe(name, []) == parse_recipe("../child.yaml", [])
        assert parse_recipe(name, []).epochs == 7


def test_a_base_that_cannot_be_rewritten_is_rejected(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "mine2.yaml").write_text("epochs: 7\n")
    (tmp_path / "child.yaml").write_text("{base: mine2, seed: 3}\n")
    assert main(["cp", "child.yaml", "sub/child.yaml"]) == 1
    assert "does not have its base on a separate line" in capsys.readouterr().err
    assert not list((tmp_path / "sub").iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits/mlp-gaussian", "there.yaml"], "there.yaml exists; remove it first"),
        (["digits/mlp-gaussian", "mine.txt"], "mine.txt must end in .yaml"),
        (["digits/mlp-gausian", "mine.yaml"], "did you mean 'digits/mlp-gaussian'"),
        (["nowhere.yaml", "mine.yaml"], "there is no file nowhere.yaml"),
        (["digits/mlp-gaussian", "no/folder.yaml"], "there is no folder no; create it first"),
    ],
)
def test_mistakes_gets_one_message_and_change_nothing(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.yaml").write_text("epochs: 3\n")
    assert main(["cp", *words]) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["there.yaml"]
    assert (tmp_path / "there.yaml").read_text() == "epochs: 3\n"

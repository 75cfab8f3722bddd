"""YAML from untrusted files: aliases, duplicate keys and huge documents are refused early."""

import json

import pytest
import yaml

from maxup.errors import RecipeError
from maxup.lab.recipes.document import check_document
from maxup.lab.recipes.load import parse_recipe, recipe_from

NAME = "digits/mlp-gaussian-maxup"


class Plain(yaml.SafeDumper):
    """Without aliases."""

    def ignore_aliases(self, data):
        return True


def test_aliases_are_refused_before_they_expand(tmp_path):
    """Eight nested levels of ten aliases are a hundred million values in nine lines."""
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    text = "\n".join(["model:", "  args:", "    a0: &a0 [1]", *[f"    {level}" for level in levels]])
    for content, line in ((text, 4), ("perturb: &a [*a]", 1), ("optim: &o {lr: 1}\nmaxup: {<<: *o}", 2)):
        (tmp_path / "recipe.yaml").write_text(content)
        with pytest.raises(RecipeError, match=rf"recipe\.yaml: line {line} uses the alias \*\w+; write out what"):
            parse_recipe(str(tmp_path / "recipe.yaml"), [])


def test_aliases_in_strings_are_refused_too(tmp_path):
    """jsonargparse parses options and strings as YAML again, also those of a forged checkpoint."""
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    text = "{a0: &a0 [1], " + ", ".join(levels) + "}"
    (tmp_path / "recipe.yaml").write_text(f"model: {{args: '{text}'}}")
    message = "line 1 uses the alias \\*a0; write out what it stands for$"
    for words in (["--model.args", text], [f"--model.args={text}"], ["--perturb", f"[{text}]"]):
        with pytest.raises(RecipeError, match=f"^{message}"):
            parse_recipe("digits/mlp-gaussian", words)
    with pytest.raises(RecipeError, match=message):
        parse_recipe(str(tmp_path / "recipe.yaml"), [])
    for args in (text, {"a": text}, [json.dumps({"b": text})]):
        with pytest.raises(RecipeError, match=message):
            recipe_from({"model": {"args": args}})


@pytest.fixture
def no_parser(monkeypatch):
    """The time of jsonargparse is quadratic in the length of a list: long lists must not reach it."""
    for name in ("parse_object", "parse_args"):
        monkeypatch.setattr(f"jsonargparse.ArgumentParser.{name}", lambda *_: pytest.fail("the parser was called"))


LONG = {  # the content of a recipe, and the message
    "numbers": ({"optim": {"milestones": [0.5] * 5000}}, "optim.milestones has 5000 values; the limit is 100"),
    "perturbations": ({"perturb": [{"name": "cutout"}] * 101}, "perturb has 101 values; the limit is 100"),
    "text": ({"optim": {"milestones": str([0.5] * 101)}}, "optim.milestones has 101 values; the limit is 100"),
    "text in text": ({"perturb": str([{"a": str([1] * 101)}])}, "perturb.a has 101 values; the limit is 100"),
    "keys": ({"model": {"args": {f"a{i}": 1 for i in range(10_000)}}}, "it has more than 10,000 values; give fewer"),
    "lists": ({"model": {"args": {f"a{i}": [1] * 100 for i in range(100)}}}, "it has more than 10,000 values"),
    "lines of text": ({"model": {"args": "\n".join(f"a{i}: 1" for i in range(30_000))}}, "it has more than 10,000"),
}  # fmt: skip


@pytest.mark.parametrize("case", LONG)
def test_a_long_document_is_refused_before_the_parser(tmp_path, no_parser, case):
    content, message = LONG[case]
    path = tmp_path / "a.yaml"
    path.write_text(yaml.dump(content, Dumper=Plain))
    with pytest.raises(RecipeError) as error:
        parse_recipe(str(path), [])
    assert str(error.value).startswith(f"{path}: {message}")
    with pytest.raises(RecipeError, match=f"^{message}"):  # as in a checkpoint or an export
        recipe_from(content)


@pytest.mark.parametrize(
    "words",
    [["--optim.milestones", str([0.5] * 101)], [f"--optim.milestones={[0.5] * 101}"],
     ["--optim.milestones=0.5"] * 101, ["--optim.milestones", "0.5"] * 101],
)  # fmt: skip
def test_long_overrides_are_refused_before_the_parser(monkeypatch, words):
    monkeypatch.setattr("jsonargparse.ArgumentParser.parse_args", lambda *_: pytest.fail("the parser was called"))
    with pytest.raises(RecipeError, match=r"^--optim\.milestones has 101 values; the limit is 100$"):
        parse_recipe(NAME, words)


def test_a_document_within_the_limits_is_accepted():
    content = {"optim": {"milestones": [0.5] * 100}, "model": {"args": {f"a{i}": [1] * 90 for i in range(100)}}}
    check_document(content)
    assert recipe_from({"optim": {"milestones": [0.5] * 100, "schedule": "steps"}}).optim.milestones == [0.5] * 100

import random

import pytest
import yaml

from maxup.recipes.load import RecipeError, list_recipes, parse_recipe, read_recipe, recipe_from

NAME = "digits/mlp-gaussian-maxup"


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_parses_and_opens_with_what_it_is(name):
    from maxup.recipes.load import find_recipe

    parse_recipe(name, [])
    first, second, *_ = find_recipe(name).read_text().splitlines()
    assert first.startswith("# ")
    assert f"maxup train {name}" in second


def test_a_base_is_inherited_section_by_section():
    twin, recipe = parse_recipe("digits/mlp-gaussian", []), parse_recipe(NAME, [])
    assert recipe.objective == "maxup"
    assert (recipe.data, recipe.model, recipe.optim, recipe.perturb) == (
        twin.data,
        twin.model,
        twin.optim,
        twin.perturb,
    )


def test_overrides_reach_every_depth():
    recipe = parse_recipe(NAME, ["--maxup.m", "8", "--optim.lr=0.5", "--model.args.hidden", "[3, 4]", "--seed", "7"])
    assert (recipe.maxup.m, recipe.optim.lr, recipe.model.args, recipe.seed) == (8, 0.5, {"hidden": [3, 4]}, 7)


def test_what_was_said_can_be_said_again():
    from dataclasses import asdict

    recipe = parse_recipe(NAME, ["--maxup.m", "8"])
    assert recipe_from(asdict(recipe)) == recipe


BAD = {
    "unknown option": (["--maxup.n", "3"], "option 'maxup.n' is unknown; did you mean 'maxup.m'?"),
    "not a number": (["--epochs", "many"], '"epochs": Expected a int. Got value: many'),
    "out of range": (["--maxup.m", "0"], r"maxup\.m=0 is out of range"),
    "no size": (["--data.size", "0"], r"data\.size=0 is out of range"),
    "no fraction": (["--data.crop_fraction", "1.5"], r"data\.crop_fraction=1\.5 is out of range"),
    "momentum": (["--optim.momentum", "-1"], r"optim\.momentum=-1\.0 is out of range; it must be between 0 and 1"),
    "weight decay": (["--optim.weight_decay", "-1"], r"optim\.weight_decay=-1\.0 is out of range"),
    "gamma": (["--optim.gamma", "-1"], r"optim\.gamma=-1\.0 is out of range"),
    "nesterov": (["--optim.nesterov", "true", "--optim.momentum", "0"], r"set optim\.momentum above 0"),
    "seed": (["--seed", "5000000000"], r"seed=5000000000 is out of range"),
    "clip": (["--optim.clip", "-1"], r"optim\.clip=-1\.0 is out of range"),
    "clip 0": (["--optim.clip", "0"], r"optim\.clip=0\.0 is out of range; it must be above 0, or null for none"),
    "average": (["--optim.ema", "2"], r"optim\.ema=2\.0 is out of range"),
    "average 0": (["--optim.ema", "0"], r"optim\.ema=0\.0 is out of range; it must be above 0, or null for none"),
    "not a choice": (["--precision", "fp8"], "fp8"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_overrides_get_a_sentence(name):
    overrides, sentence = BAD[name]
    with pytest.raises(RecipeError, match=sentence) as error:
        parse_recipe(NAME, overrides)
    assert "\n" not in str(error.value)


FILES = {
    "epocs: 3": "key 'epocs' is unknown; did you mean 'epochs'?",
    "optim: {lrr: 3}": "optim: key 'lrr' is unknown; did you mean 'lr'?",
    "optim: 3": "optim must be a mapping of keys to values, but is a int",
    "- a": "must hold keys and values, but holds a list",
    "epochs: {": "cannot be read as YAML",
    "base: digits/nothing": "recipe 'digits/nothing' is unknown",
    "base: [a]": "base must be the name of a recipe",
    "base: recipe": "is its own base",
    "model: !!python/object/apply:os.system ['touch hacked']": "cannot be read as YAML",
}


@pytest.mark.parametrize("text", FILES)
def test_bad_files_get_a_sentence(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError, match=FILES[text]) as error:
        parse_recipe(str(tmp_path / "recipe.yaml"), [])
    assert "\n" not in str(error.value)


def test_aliases_are_refused_before_they_unfold(tmp_path):
    """Eight levels of ten are a hundred million values in nine lines."""
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    text = "\n".join(["model:", "  args:", "    a0: &a0 [1]", *[f"    {level}" for level in levels]])
    for content, line in ((text, 4), ("perturb: &a [*a]", 1), ("optim: &o {lr: 1}\nmaxup: {<<: *o}", 2)):
        (tmp_path / "recipe.yaml").write_text(content)
        with pytest.raises(RecipeError, match=rf"recipe\.yaml: line {line} uses the alias \*\w+; write out what"):
            parse_recipe(str(tmp_path / "recipe.yaml"), [])


def test_unknown_names_and_files():
    with pytest.raises(RecipeError, match="did you mean 'digits/mlp-gaussian'"):
        parse_recipe("digits/mlp-gausian", [])
    with pytest.raises(RecipeError, match=r"there is no file nowhere\.yaml"):
        parse_recipe("nowhere.yaml", [])


def test_two_hundred_mutations_parse_or_get_a_sentence(tmp_path):
    """Bytes changed, dropped, doubled; values swapped for strange ones."""
    rng = random.Random(0)
    plain = yaml.safe_dump(read_recipe(NAME))
    strange = ["null", "[]", "{}", "-1", "1e999", "nan", "''", "[[[[]]]]", "&a [*a]", "2020-01-01", "0x7f", "9" * 400]
    sentences = []
    for number in range(200):
        text = list(plain)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(text))
            kind = rng.randrange(4)
            if kind == 0:
                text[place] = chr(rng.randrange(1, 0x300))
            elif kind == 1:
                del text[place]
            elif kind == 2:
                text.insert(place, rng.choice(":{}[],-#&*!|>'\"%@`\n "))
            else:
                lines = "".join(text).splitlines()
                line = rng.randrange(len(lines))
                lines[line] = lines[line].split(":")[0] + ": " + rng.choice(strange)
                text = list("\n".join(lines) + "\n")
        path = tmp_path / f"{number}.yaml"
        path.write_text("".join(text))
        try:
            parse_recipe(str(path), [])
        except RecipeError as error:
            sentences.append(str(error))
    assert 50 < len(sentences) < 200
    assert not [sentence for sentence in sentences if "\n" in sentence]

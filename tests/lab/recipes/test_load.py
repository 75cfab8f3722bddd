import math
import random
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import yaml

from maxup.cli.main import main
from maxup.errors import RecipeError
from maxup.lab.recipes.load import find_recipe, list_recipes, parse_recipe, read_recipe, recipe_from
from maxup.lab.recipes.objectives import OBJECTIVES, arguments_of
from maxup.lab.registry import MODELS, PERTURBATIONS, get_parameters
from tests.lab.recipes.test_document import Plain

NAME = "digits/mlp-gaussian-maxup"


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_parses_and_starts_with_a_description(name):
    parse_recipe(name, [])
    first, second, *_ = find_recipe(name).read_text().splitlines()
    assert first.startswith("# ")
    assert f"maxup train {name}" in second


def test_a_base_is_inherited_section_by_section():
    baseline, recipe = parse_recipe("digits/mlp-gaussian", []), parse_recipe(NAME, [])
    assert recipe.objective["name"] == "maxup"
    assert (recipe.data, recipe.model, recipe.optim, recipe.perturb) == (
        baseline.data,
        baseline.model,
        baseline.optim,
        baseline.perturb,
    )


def test_overrides_reach_every_depth():
    recipe = parse_recipe(
        NAME, ["--objective.m", "8", "--optim.lr=0.5", "--model.args.hidden", "[3, 4]", "--seed", "7"]
    )
    assert (recipe.objective["m"], recipe.optim.lr, recipe.model.args, recipe.seed) == (8, 0.5, {"hidden": [3, 4]}, 7)


def test_a_recipe_survives_a_round_trip():
    recipe = parse_recipe(NAME, ["--objective.m", "8"])
    assert recipe_from(asdict(recipe)) == recipe


BAD = {
    "unknown option": (
        ["--objective.n", "3"],
        "argument of objective 'maxup' 'n' is unknown; known: ",
    ),
    "not a number": (["--epochs", "many"], "epochs must be a whole number, but is many"),
    "not a number or null": (["--optim.clip", "x"], "optim.clip must be a number or null, but is x"),
    "not a list or null": (["--data.mean", "x"], r"data\.mean must be a list or null, but is x"),
    "not a list": (
        ["--perturb", "gaussian"],
        r"perturb must be a list of names with their arguments, such as '\[{name: crop_flip}, .*\]', but is gaussian$",
    ),
    "a list of words": (
        ["--perturb", "[gaussian]"],
        r"must be a list of names with their arguments, such as .*, but is gaussian",
    ),
    "the end of a name": (["--m", "5"], r"option 'm' is unknown; did you mean --objective\.m\?"),
    "a section": (["--optim", "5"], r"optim is a section; set one of its settings, such as --optim\.name sgd"),
    "the name of old": (["--maxup.m", "5"], r"option 'maxup\.m' is unknown; did you mean --objective\.m\?"),
    "no value": (["--objective.m"], r"--objective\.m needs a value"),
    "no word": (["--objective.m", "ten"], r"objective\.m must be a whole number, but is 'ten'"),
    "no choice": (["--objective.norm", "layer"], r"objective\.norm 'layer' is unknown; known: batch, running"),
    "no such objective": (["--objective", "maxpu"], r"objective 'maxpu' is unknown; did you mean 'maxup'\?"),
    "not an option": (["extra"], "'extra' is not an option; options start with --"),
    "nothing reads it": (
        ["--objective", "standard", "--objective.m", "8"],
        r"--objective\.m has no effect, because objective.name is standard; .* add --objective\.name maxup",
    ),
    "nobody reads it": (
        ["--objective.steps=3"],
        "--objective.steps has no effect.* add --objective.name adversarial",
    ),
    "no hard examples": (
        ["--objective.keep", "0.1"],
        "--objective.keep has no effect, because objective.name is maxup",
    ),
    "too hard": (
        ["--objective", "hard_examples", "--objective.keep", "2"],
        r"objective\.keep=2\.0 is out of range",
    ),
    "nothing is hard": (
        ["--objective", "hard_examples", "--objective.keep", "0"],
        "must be a number above 0 and at most 1",
    ),
    "no steps": (["--optim.milestones", "[0.1]"], r"has no effect.*; remove it, or add --optim\.schedule steps"),
    "no more steps": (["--optim.milestones+", "0.1"], r"--optim\.milestones has no effect"),
    "no momentum": (["--optim.name", "adamw", "--optim.momentum", "0.3"], r"--optim\.momentum has no effect"),
    "no average": (["--optim.patience", "3"], r"because optim\.name is sgd; remove it, or add --optim\.name asgd"),
    "no such norm": (
        ["--objective", "adversarial", "--objective.p", "3"],
        r"objective\.p=3\.0 .* be 2 or inf",
    ),
    "kept for SAM": (["--optim.sam", "0.1", "--objective.strategy", "retain"], "it needs objective.strategy recompute"),
    "negative ball": (["--objective", "smoothadv", "--objective.radius", "-1"], r"objective\.radius=-1\.0 is out of"),
    "out of range": (["--objective.m", "0"], r"objective\.m=0 is out of range"),
    "no size": (["--data.size", "0"], r"data\.size=0 is out of range"),
    "no fraction": (["--data.crop_fraction", "1.5"], r"data\.crop_fraction=1\.5 is out of range"),
    "momentum": (["--optim.momentum", "-1"], r"optim\.momentum=-1\.0 is out of range; it must be a number from 0 to 1"),
    "weight decay": (["--optim.weight_decay", "-1"], r"optim\.weight_decay=-1\.0 is out of range"),
    "gamma": (["--optim.gamma", "-1"], r"optim\.gamma=-1\.0 is out of range"),
    "nesterov": (["--optim.nesterov", "true", "--optim.momentum", "0"], r"set optim\.momentum above 0"),
    "seed": (["--seed", "5000000000"], r"seed=5000000000 is out of range"),
    "clip": (["--optim.clip", "-1"], r"optim\.clip=-1\.0 is out of range"),
    "clip 0": (["--optim.clip", "0"], r"optim\.clip=0\.0 is out of range; it must be a number above 0 "),
    "average": (["--optim.ema", "2"], r"optim\.ema=2\.0 is out of range"),
    "average 0": (["--optim.ema", "0"], r"optim\.ema=0\.0 is out of range; it must be a number above 0 "),
    "milestones as epochs": (
        ["--optim.schedule", "steps", "--optim.milestones", "[30, 45]", "--epochs", "60"],
        r"optim\.milestones has 30, but milestones are fractions of the epochs, .*; epoch 30 of 60 is 0\.5$",
    ),
    "milestones below 0": (["--optim.milestones", "[0.5, -3]"], r"optim\.milestones=-3\.0 is out of range; .* 0 to 1$"),
    "milestones of nothing": (["--optim.milestones", "[.nan]"], r"optim\.milestones=nan is out of range"),
    "not a choice": (["--precision", "fp8"], "precision 'fp8' is unknown; known: bf16, fp16, no"),
}


def test_another_objective_keeps_the_arguments_that_both_take():
    found = parse_recipe("cifar10/resnet110-cutout-maxup", ["--objective.name", "average", "--objective.warmup=2"])
    assert found.objective == {"name": "average", "m": 4, "warmup": 2, "start": 0.0}
    assert parse_recipe(NAME, ["--objective", "{name: standard}"]).objective == {"name": "standard"}


@pytest.mark.parametrize("name", BAD)
def test_bad_overrides_get_one_message(name):
    overrides, message = BAD[name]
    with pytest.raises(RecipeError, match=message) as error:
        parse_recipe(NAME, overrides)
    assert "\n" not in str(error.value)


FILES = {
    "epochs: ten": r"\.yaml: epochs must be a whole number, but is ten",
    "precision: no": "YAML reads no as false: write 'no'",
    "objective: maxap": "objective 'maxap' is unknown; did you mean 'maxup'",
    "seed: 1\nseed: 2": "line 2 repeats the key 'seed'",
    "": r"recipe\.yaml is empty; start it with a base, such as  base: ",
    "foo: 3": "key 'foo' is unknown; known: .*base",
    "base: digits": r"recipe\.yaml, base: digits is a folder of recipes; name one of them: digits/mlp-gaussian",
    "epocs: 3": "key 'epocs' is unknown; did you mean 'epochs'?",
    "optim: {lrr: 3}": "optim: key 'lrr' is unknown; did you mean 'lr'?",
    "optim: 3": "optim must be a mapping of keys to values, but is an int",
    "model: {name: null}": r"model\.name is null; give it a value, or remove it",
    "perturb: null": "perturb is null",
    "- a": "must contain keys and values, but contains a list",
    "epochs: {": "cannot be read as YAML",
    "base: digits/nothing": r"recipe\.yaml, base: recipe 'digits/nothing' is unknown",
    "base: [a]": "base must be the name of a recipe",
    "base: recipe": "is its own base",
    "model: !!python/object/apply:os.system ['touch hacked']": "cannot be read as YAML",
}


@pytest.mark.parametrize("text", FILES)
def test_bad_files_get_one_message(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError, match=FILES[text]) as error:
        parse_recipe(str(tmp_path / "recipe.yaml"), [])
    assert "\n" not in str(error.value)


def test_a_chain_of_bases_has_an_end(tmp_path):
    for i in range(60):
        (tmp_path / f"c{i}.yaml").write_text(f"base: c{i + 1}.yaml\nseed: {i}\n")
    (tmp_path / "c60.yaml").write_text("epochs: 3\n")
    recipe = parse_recipe(str(tmp_path / "c40.yaml"), [])
    assert (recipe.epochs, recipe.seed) == (3, 40)
    for first in (39, 0):
        with pytest.raises(RecipeError, match=rf"^c{first}\.yaml has more than 20 bases in a row; merge some of these"):
            parse_recipe(str(tmp_path / f"c{first}.yaml"), [])


@pytest.mark.parametrize("base", ["q.yaml", "q", "../over.yaml", "digits/mlp-gaussian"])
def test_a_base_is_first_searched_beside_its_file(tmp_path, monkeypatch, base):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "q.yaml").write_text("epochs: 3\n")  # in the current folder: not this one
    (tmp_path / "over.yaml").write_text("epochs: 2\n")
    (tmp_path / "sub/q.yaml").write_text("epochs: 2\n")
    (tmp_path / "sub/c3.yaml").write_text(f"base: {base}\nseed: 5\n")
    recipe = parse_recipe("sub/c3.yaml", [])
    assert (recipe.epochs, recipe.seed) == (2 if "/ml" not in base else parse_recipe(base, []).epochs, 5)


def test_a_base_is_then_searched_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "q.yaml").write_text("epochs: 3\n")
    (tmp_path / "sub/c3.yaml").write_text("base: q.yaml\n")
    assert parse_recipe("sub/c3.yaml", []).epochs == 3


def test_unknown_names_and_files():
    with pytest.raises(RecipeError, match="did you mean 'digits/mlp-gaussian'"):
        parse_recipe("digits/mlp-gausian", [])
    with pytest.raises(RecipeError, match=r"there is no file nowhere\.yaml"):
        parse_recipe("nowhere.yaml", [])


def mutations(folder, count, seed=0):
    """Write files with characters changed, dropped or inserted, or values replaced by strange ones."""
    rng = random.Random(seed)
    plain = yaml.safe_dump(read_recipe(NAME))
    strange = ["null", "[]", "{}", "-1", "1e999", "nan", "''", "[[[[]]]]", "&a [*a]", "2020-01-01", "0x7f", "9" * 400]
    for number in range(count):
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
        path = folder / f"{number}.yaml"
        path.write_text("".join(text))
        yield str(path)


def test_mutations_parse_or_get_one_message(tmp_path):
    messages = []
    for path in mutations(tmp_path, 200):
        try:
            parse_recipe(path, [])
        except RecipeError as error:
            messages.append(str(error))
    assert 50 < len(messages) < 200
    assert not [message for message in messages if "\n" in message]


VALUES = [  # as YAML
    "~", "true", "-1", ".nan", "-.inf", "1e999", "1" + "0" * 30, "9" * 5000, "0x" + "f" * 5000, "0b" + "1" * 9000,
    "0777", "!!int +", "{<<: [1]}",
    "1:30:20", "''", "a" * 10_000, "\u65e5", '"\\e[31m\\0"', '"\\ud800"', "2020-01-01", "2020-99-99", "!!set {a, b}",
    "!!binary aGVsbG8=", "[.nan]", "[null]", "[" * 200 + "]" * 200, "{}", "{1: 2}", "{[1, 2]: 3}", "{? {a: 1} : 3}",
    "[{name: [1]}]", "[{name: gaussian, 1: 2}]", "!!bool 3", "!!timestamp 3", "!!int ''", "!!float ''",
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_any_value_anywhere_parses_or_gets_one_message(tmp_path, value):
    """Try every value with some settings of every section, in a file and as an override."""
    rng, messages = random.Random(value), ["none"]
    names = [f"{s}.{k}" for s, said in asdict(parse_recipe(NAME, [])).items() if isinstance(said, dict) for k in said]
    for name in (*rng.sample(names, 3), "epochs", "perturb", "optim", "base", rng.choice(VALUES[17:])):
        section, _, key = name.rpartition(".") if name[0].isalpha() else ("", "", f"? {name}\n")
        said = f"{section}: {{{key}: {value}}}" if section else f"{key}: {value}"
        (tmp_path / "a.yaml").write_text(f"{said}\n")
        option = [f"--{name}={value}"] if name == "epochs" else []
        for path, overrides in ((str(tmp_path / "a.yaml"), []), (NAME, option)):
            try:
                parse_recipe(path, overrides)
            except RecipeError as error:
                messages.append(str(error))
    assert max(map(len, messages)) < 1000
    assert "\n" not in "".join(messages)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {name: conv, args: {dropout: .nan}}", "dropout=nan is out of range; it must be a number that is"),
        ("model: {name: resnet20, args: {depth: 1000000}}", "depth=1000000 is out of range; it must be a whole number"),
        ("[1, 2]: 3", "line 1 has a sequence as a key; a key must be a string"),
        ("model: {args: {{a: b}: 3}}", "line 1 has a mapping as a key; a key must be a string"),
    ],
)  # fmt: skip
def test_strange_values_get_one_message(tmp_path, capsys, text, message):
    (tmp_path / "a.yaml").write_text(f"{text}\nperturb: [{{name: gaussian, sigma: 0.1}}]\ndata: {{train_size: 100}}\n")
    assert main(["train", str(tmp_path / "a.yaml"), "--out", str(tmp_path / "run"), "--trackers", "none"]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


NUMBERS = [-1, 0, 1, 2, 3, 0.5, -0.5, 1.5, 1e9, math.inf, math.nan, 10**19]
STRANGE = [*NUMBERS, None, True, "", "a", "1", [], [0], [2], [0.5, 1], {}, {"a": 1}, [[1]], "0", ["mlp"]]


def fitting(rng, hint):
    """Return a value that mostly has the type of a field."""
    kinds = get_args(hint) or (hint,)
    if get_origin(hint) is Literal:
        return rng.choice(kinds)
    fitting = {int: [n for n in NUMBERS if type(n) is int], float: [float(n) for n in NUMBERS], bool: [True, False]}
    fitting |= {str: [*MODELS, "digits", "timm/none", "nowhere.pt"], list[float]: [[], [0.5], [-1.0, math.nan]]}
    return rng.choice([*[value for kind in kinds for value in fitting.get(kind, [])] * 3, *STRANGE])


def spec(rng, registry, what, name):
    """Return some arguments of a registered name, with values."""
    names = list(get_parameters(registry, what, name))
    return {name: rng.choice(STRANGE) for name in rng.sample(names, k=min(len(names), rng.randint(0, 2)))}


def alterations(folder, count, seed):
    """Write valid YAML files with a few settings changed, or another perturbation or network."""
    rng = random.Random(seed)
    for number in range(count):
        recipe = parse_recipe(NAME, [])
        for _ in range(rng.randint(0, 2)):
            section = rng.choice([recipe, recipe.data, recipe.optim])
            field = rng.choice([f.name for f in fields(section) if not is_dataclass(f.default_factory)])
            setattr(section, field, fitting(rng, get_type_hints(type(section))[field]))
        if rng.random() < 0.2:
            name = rng.choice(list(OBJECTIVES))
            arguments = list(arguments_of(name))
            some = rng.sample(arguments, k=min(len(arguments), rng.randint(0, 2)))
            recipe.objective = {"name": name} | {key: rng.choice([*STRANGE, 2, 0.5]) for key in some}
        if rng.random() < 0.5:
            name = rng.choice(list(PERTURBATIONS))
            setattr(recipe, rng.choice(["perturb", "augment"]), [{"name": name} | spec(rng, PERTURBATIONS, "", name)])
        if rng.random() < 0.3:
            recipe.model.name = rng.choice(["mlp", "conv", "resnet20", "preact_resnet20"])
            recipe.model.args = spec(rng, MODELS, "", recipe.model.name)
        path = folder / f"altered-{number}.yaml"
        path.write_text(yaml.dump(asdict(recipe), Dumper=Plain))
        yield str(path)


@pytest.mark.filterwarnings("ignore::maxup.errors.MaxUpWarning")  # a perturbation of strength 0 trains, with a warning
@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_mutations_train_or_get_one_message(tmp_path, capsys, count):
    """Through the command: a recipe that parses may still not fit the data, the network or the method."""
    codes, seed = [], count + 1
    for path in (*mutations(tmp_path, count // 4, seed), *alterations(tmp_path, count - count // 4, seed)):
        folder = path.removesuffix(".yaml")
        short = ["--epochs", "1", "--data.train_size", "60", "--trackers", "none", "--out", folder]
        capsys.readouterr()
        codes.append(main(["train", path, *short]))
        said = capsys.readouterr().err
        assert codes[-1] in (0, 1)
        assert said.startswith("maxup train: ") == (codes[-1] == 1), (path, said)
        assert len(said.splitlines()) == codes[-1], (path, said)
        assert Path(folder, "run.json").exists() == (codes[-1] == 0)
    assert codes.count(0) > count / 10
    assert codes.count(1) > count / 10


def test_a_file_in_the_old_format_gets_a_hint(tmp_path):
    (tmp_path / "old.yaml").write_text("base: digits/mlp-gaussian\nobjective: maxup\nmaxup: {m: 4}\n")
    with pytest.raises(RecipeError, match=r"'maxup' is an old setting; write objective: \{name: \.\.\., arguments\}"):
        parse_recipe(str(tmp_path / "old.yaml"), [])


def test_a_record_in_the_old_format_is_upgraded():
    record = {"objective": "maxup", "maxup": {"m": 10, "chunk": 5, "rank": "kl"}, "model": {"normalise": True}}
    upgraded = {"objective": {"name": "maxup", "m": 10, "chunk_size": 5, "score": "kl"}, "model": {"normalize": True}}
    assert recipe_from(record) == recipe_from(upgraded)


@pytest.mark.parametrize("broken", [{"objective": 3, "maxup": {}}, {"objective": "maxup", "maxup": [1]}])
def test_a_broken_record_in_the_old_format_is_refused(broken):
    with pytest.raises(RecipeError, match="objective"):
        recipe_from(broken)


def test_another_objective_has_its_own_defaults(tmp_path):
    (tmp_path / "a.yaml").write_text("base: digits/mlp-gaussian\nobjective: {name: maxup, m: 3}\n")
    assert parse_recipe(str(tmp_path / "a.yaml"), ["--objective", "smoothadv"]).objective["warmup"] == 10
    assert parse_recipe(str(tmp_path / "a.yaml"), ["--objective", "average"]).objective["m"] == 3


def test_an_objective_of_a_base_is_merged_or_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("objective: {m: 2}\n")
    (tmp_path / "b.yaml").write_text("base: a\nobjective: {name: maxup, warmup: 1}\n")
    found = parse_recipe(str(tmp_path / "b.yaml"), []).objective
    assert (found["m"], found["warmup"]) == (2, 1)
    with pytest.raises(RecipeError, match=r"objective must be \{name: \.\.\., arguments\}"):
        parse_recipe(str(tmp_path / "a.yaml"), [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--objective", "[a]"], r"objective must be \{name: \.\.\., arguments\}"),
        (["--objective.name", "{a: 1}"], r"objective must be \{name: \.\.\., arguments\}"),
        (["--objective.m", "--seed", "1"], r"--objective\.m needs a value"),
    ],
)
def test_values_that_are_no_objective_get_a_message(words, message):
    with pytest.raises(RecipeError, match=message):
        parse_recipe(NAME, words)


def test_null_is_a_value_of_an_optional_argument():
    recipe = parse_recipe("digits/mlp-gaussian-maxup", ["--objective.shortlist", "2"])
    assert recipe.objective["shortlist"] == 2
    assert parse_recipe("digits/mlp-gaussian-maxup", ["--objective.shortlist", "null"]).objective["shortlist"] is None
    for text, message in (
        ("many", r"objective\.shortlist must be a whole number, but is 'many'"),
        ("0", r"objective\.shortlist=0 is out of range"),
    ):
        with pytest.raises(RecipeError, match=message):
            parse_recipe("digits/mlp-gaussian-maxup", ["--objective.shortlist", text])
    with pytest.raises(RecipeError, match=r"objective\.m must be a whole number, but is None"):
        parse_recipe("digits/mlp-gaussian-maxup", ["--objective.m", "null"])

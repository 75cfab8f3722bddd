"""Mutations of recipes and of tables of recipes: the YAML that strangers send."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tests.torture.mutations import ODD, mutate_bytes, mutate_file, mutate_json
from tests.torture.outcomes import PAYLOAD, Ended, classify, command
from tests.torture.subject import make, train_words

TRICKS = [  # what YAML can do that a recipe must not
    f"!!python/object/apply:os.mkdir [{PAYLOAD}]",
    f'!!python/object/new:os.mkdir ["{PAYLOAD}"]',
    "!!python/name:os.system",
    "!!python/module:antigravity",
    "!!binary aGVsbG8=",
    "!!set {a, b}",
    "!unknown x",
    "2026-01-01",
    "0o777",
    "1_000",
    "190:20:30",
    "1e3",
    "~",
    "*missing",
    "&a [*a]",
    "{? [1, 2] : 3}",
    "{a: 1, a: 2}",
    "{<<: {a: 1}}",
    "[" * 1000 + "]" * 1000,
    "|\n  text\n  more",
    "'it''s'",
    '"\\x1b[31m"',
    '"\\0"',
    "9" * 5000,
]
SMALL = {"base": "base.yaml", "data": {"train_size": 60}, "epochs": 1, "batch_size": 30}
SHORT = [  # what networks, perturbations and optimizers take
    SMALL
    | {
        "model": {"name": "conv", "args": {"width": 4}, "normalize": False},
        "objective": {"name": "maxup", "m": 2, "warmup": 0},
    },
    SMALL
    | {
        "model": {"name": "wrn16_4", "args": {"depth": 10, "width": 1}, "normalize": True},
        "augment": [{"name": "crop_flip", "padding": 1, "flip": False}],
        "perturb": [{"name": "cutout", "length": 3, "fill": 0.5}],
        "optim": {"name": "adamw", "lr": 0.1, "schedule": "steps", "milestones": [0.5], "gamma": 0.1, "clip": 1.0},
    },
    SMALL
    | {
        "perturb": [
            {"name": "affine", "degrees": 5.0, "translate": 0.1},
            {"name": "rand_augment", "num_ops": 2, "magnitude": 9, "bins": 31},
            {"name": "cutmix", "alpha": 1.0},
            {"name": "label_noise", "epsilon": 0.1},
        ],
        "optim": {"lr": 0.01, "sam": 0.05, "warmup": 0.1, "ema": 0.9},
    },
    SMALL
    | {
        "objective": {"name": "smoothadv", "radius": 0.5, "attack": "ddn", "steps": 2, "samples": 2, "warmup": 1},
        "perturb": [{"name": "gaussian", "sigma": 0.5}],
    },
    SMALL | {"objective": {"name": "adversarial", "radius": 0.5, "p": 2.0, "steps": 2}},
    {
        "task": "language",
        "data": {"name": "text", "root": "text"},
        "model": {"name": "awd_lstm", "args": {"embedding": 4, "hidden": 4, "layers": 2, "weight_drop": 0.2}},
        "perturb": [{"name": "embedding_dropout", "p": 0.1}],
        "objective": {"name": "maxup", "m": 2, "strategy": "retain", "warmup": 0, "unit": "column"},
        "language": {"bptt": 5, "epsilon": 0.01, "validation_columns": 2, "test_columns": 1},
        "optim": {
            "name": "asgd",
            "lr": 1.0,
            "clip": 0.25,
            "schedule": "constant",
            "average_from": 0.5,
            "momentum": 0.0,
        },
        "epochs": 2,
        "batch_size": 4,
    },
]
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)


class Recipes:
    """What a recipe says must be what the run trains with; a table must list what its file lists."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("text", "runs", "results"):
            (place / name).mkdir()
        for part in ("train", "valid", "test"):
            (place / "text" / f"{part}.txt").write_text("the worst of two copies\n" * 20)
        for number, document in enumerate(SHORT):
            (place / f"short-{number}.yaml").write_text(yaml.safe_dump(document))
        unchanged = [train_words(f"short-{n}", f"short-{n}.yaml", []) for n in range(len(SHORT))]
        make(place, ["cp", "smoke/digits-gaussian-maxup", "base.yaml"], *unchanged)
        self.recipe = yaml.safe_load(command(place, *train_words("shown"), "--print_config").out)

    def case(self, number: int, chance: Random) -> tuple[str, str]:
        table = chance.random() < 0.15
        document = (
            {"recipes": ["smoke/digits-gaussian", "base.yaml"]} if table else chance.choice([self.recipe, *SHORT])
        )
        content = mutate_yaml(document, chance)
        mine, same = self.place / "mine.yaml", True
        mine.rmdir() if mine.is_dir() else mine.unlink(missing_ok=True)
        mine.write_bytes(content)
        about = f"{content[:300]!r}..." if len(content) > 300 else repr(content)
        if chance.random() < 0.05:
            about = mutate_file(mine, chance, self.place / "base.yaml")
            content = mine.read_bytes() if about in ("bytes", "json", "link", "pickle") else b""
        if table:
            folders = ["--results", "results"]
            words = ["reproduce", "mine.yaml", "--dry_run", *folders]
            if chance.random() < 0.3:
                words = ["report", "mine.yaml", "--runs", "runs", "--out", "report", *folders]
            ended = command(self.place, *words, patience=20)
            return classify(ended), f"{words[0]}: {about}: {ended.err[-1500:]}"
        ended = command(self.place, "train", "mine.yaml", "--print_config")
        if ended.status == 0:
            same = says_the_same(content, ended.out)
            about = f"{_changes(document, ended)}: {about}"
            if same and not ended.ran:
                ended = command(self.place, *train_words(f"out-{number}", "mine.yaml", []), patience=5)
        return classify(ended, same=same, long=True), f"{about}: {ended.err[-1500:]}"


def mutate_yaml(document: Any, chance: Random) -> bytes:
    """A document as YAML with something odd in it."""
    kind = chance.choice(["bytes"] * 3 + ["value"] * 6 + ["trick"] * 4 + ["lines", "key", "base", "laughs"])
    if kind == "value":
        document = mutate_json(document, chance)
    if kind == "base":
        bases = [
            "base.yaml",
            "mine.yaml",
            "./mine.yaml",
            "/dev/zero",
            "../",
            "",
            3,
            None,
            ["base.yaml"],
            "smoke",
            "\x1b",
        ]
        document = {"base": chance.choice(bases), **document}
    if kind == "key":
        document = {**document, chance.choice([*[str(odd)[:40] for odd in ODD], 3, None, True]): chance.choice(ODD)}
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=False)
    lines = text.splitlines()
    at = chance.randrange(len(lines))
    if kind == "bytes":
        return mutate_bytes(text.encode(), chance)
    if kind == "trick":
        key = lines[at].partition(":")[0] if ":" in lines[at] else lines[at].replace("-", " ") + "\n-"
        lines[at] = f"{key}: {chance.choice(TRICKS)}"
    elif kind == "lines":
        lines.insert(chance.randrange(len(lines)), lines[at])
    elif kind == "laughs":
        lines = [*LAUGHS.splitlines(), *lines]
    return ("\n".join(lines) + "\n").encode(errors="surrogatepass")


def says_the_same(content: bytes, shown: str) -> bool:
    """Whether every value in a recipe's file is in the settings that are shown, as PyYAML reads both."""
    wanted, got = dict(_leaves(yaml.safe_load(content))), dict(_leaves(yaml.safe_load(shown)))
    return all(key in got and _equal(value, got[key]) for key, value in wanted.items() if key[:1] != ("base",))


def _leaves(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value that is no mapping and no list, with its keys."""
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from _leaves(value, (*path, key))
    else:
        yield path, document


def _equal(a: Any, b: Any) -> bool:
    """Whether two values mean the same: 1 and 1.0, and a number that YAML took for a word, such as 1e-3."""
    if type(a) is bool or type(b) is bool:
        return a is b
    try:
        return float(a) == float(b) or (float(a) != float(a) and float(b) != float(b))
    except (TypeError, ValueError, OverflowError):
        return str(a) == str(b)


def _changes(recipe: Any, ended: Ended) -> str:
    before, now = (dict(_leaves(found)) for found in (recipe, yaml.safe_load(ended.out)))
    changed = {k: v for k, v in now.items() if k in before and not _equal(before[k], v)}
    return json.dumps({".".join(map(str, k)): str(v)[:60] for k, v in changed.items()})

"""Mutations of command lines."""

import shutil
from itertools import pairwise
from pathlib import Path
from random import Random

import yaml

from tests.torture.mutations import ODD
from tests.torture.outcomes import classify, command
from tests.torture.subject import CERTIFY, RECIPE, SMALL, make, train_words

VALUES = [
    *(str(odd) for odd in ODD if odd is None or not isinstance(odd, str) or "\0" not in odd), "--", "-", "-1", "--help",
    "1e3", "1_000", "0x10", "1,2", "1 2", "1.5", "\u0661", "run", "run/run.json", "nowhere", "pipe", "out.png",
    ".", "~", "{", "[", "[1", "{a: b}", "best", "last", "last\n", "*", "=", "--seed", "--out=", "--m=3",
    "@run/run.json", "out.xyz", *"0 0.1 0.25 1 2 3 5 16 50 100 1000 100000 digits true false null sgd adamw".split(),
]  # fmt: skip


class Arguments:
    """Commands whose words are replaced, removed, repeated and swapped: done, or refused with a sentence.

    A setting of a recipe that was accepted must be the one that was given.
    """

    def __init__(self, place: Path) -> None:
        self.place, self.clean = place, place / "clean"
        self.clean.mkdir()
        make(self.clean, ["export", "run", "model"], ["certify", "run", *CERTIFY, "--out", "c.tsv"], ["ls", "digits"])
        self.commands = [
            train_words("new"),
            train_words("run"),
            [*train_words("new"), "--certify"],
            ["compare", RECIPE, *SMALL, "--seeds", "2", "--m", "1", "2", "--out", "compared", "--no_equal_time"],
            ["eval", "run", "--checkpoint", "best"],
            ["certify", "run", *CERTIFY, "--sigma", "0.5", "--alpha", "0.001", "--seed", "1", "--out", "new.tsv"],
            ["certify", "run", *CERTIFY, "--radii", "0.25", "0.5", "--max", "3", "--out", "new.tsv", "--attack", "1"],
            ["certify", "model", *CERTIFY, "--picture", "out.png", "--image", "3"],
            ["certify", "c.tsv", "--plot", "out.png"],
            ["export", "run", "to", "--checkpoint", "last"],
            ["show", "run", "--images", "2", "--m", "3", "--batch", "1", "--out", "out.png"],
            ["report", "--runs", "run", "--results", "run", "--out", "report"],
            ["reproduce", "table-cifar10", "--seeds", "2", "--budget", "0.5", "--dry_run", "--results", "run"],
            ["ls", "digits", "--results", "run", "--runs", "run"],
            ["sample", "run", "--words", "3", "--temperature", "0.5", "--prompt", "a", "--seed", "1"],
            ["cp", RECIPE, "new.yaml"],
            ["data", "--root", "."],
        ]

    def case(self, number: int, chance: Random) -> tuple[str, str]:
        shutil.rmtree(self.place / "work", ignore_errors=True)
        work = shutil.copytree(self.clean, self.place / "work")
        words = list(chance.choice(self.commands))
        for _ in range(chance.choice([1, 1, 1, 2])):
            mutate_words(words, chance)
        ended = command(work, *words, patience=5)
        same = True
        if ended.status == 0 and words[0] == "train" and words.count("--seed") < 2 and "--help" not in words:
            shown = command(work, *words, "--print_config")
            same = shown.status != 0 or settings_kept(words, shown.out)
        return classify(ended, same=same, long=True), f"{words!r:.1500}: {ended.err[-1500:]}"


def mutate_words(words: list[str], chance: Random) -> None:
    """One change of the words after the verb, most often of a value."""
    at, other = (chance.randrange(1, len(words)) for _ in "12")
    kind = chance.randrange(8)
    if kind < 4:
        values = [n for n, word in enumerate(words) if n and not word.startswith("--")]
        words[chance.choice(values or [at])] = chance.choice(VALUES)
    elif kind == 4:
        words.insert(at, chance.choice(VALUES))
    elif kind == 5:
        words.insert(at, words[other])
    elif kind == 6:
        words[at], words[other] = words[other], words[at]
    elif len(words) > 2:
        del words[at]


def settings_kept(words: list[str], shown: str) -> bool:
    """Whether the last value given for each numeric setting is the one that is shown."""
    found = yaml.safe_load(shown)
    flat = {f"--{s}.{k}": v for s, section in found.items() if isinstance(section, dict) for k, v in section.items()}
    flat |= {f"--{key}": value for key, value in found.items()}
    given = {word: value for word, value in pairwise(words) if word in flat}
    for option, value in given.items():
        if isinstance(flat[option], int | float) and type(flat[option]) is not bool:
            try:
                read = yaml.safe_load(value)  # 0x10 is 16
                if (read if isinstance(read, int | float) else float(value)) != flat[option]:
                    return False
            except (ValueError, yaml.YAMLError):
                return False
    return True

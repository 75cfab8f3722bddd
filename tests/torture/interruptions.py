"""Kills and I/O errors at every file operation of training, resuming and certifying; then the same command again."""

import json
import re
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from maxup.cli.main import main
from maxup.lab.certify.tsv import read as read_rows
from maxup.lab.storage.checkpoint import latest
from maxup.lab.train.log import read_records
from tests.lab.storage.test_state_io import same
from tests.torture import faults
from tests.torture.outcomes import Ended, classify, command, run
from tests.torture.subject import CERTIFY, make, train_words

TIMES = (
    "seconds",
    "training_seconds",
    "compile_seconds",
    "metrics_size",
    "environment",
)  # what no two runs have in common


@dataclass
class Scenario:
    """A command, the folder it starts with, and how many file operations it makes there."""

    start: Path | None
    words: list[str]
    result: Any = None
    operations: int = 0


class Interruptions:
    """Case n interrupts one scenario at one operation; after all of them, two random ones, one after the other.

    The result, to the last bit, must be that of the undisturbed command: checkpoint, metrics, record, certificates.
    """

    def __init__(self, place: Path, actions: dict[str, Any]) -> None:
        self.place, self.run, self.actions = place, place / "run", actions
        make(place, ["certify", "run", *CERTIFY, "--out", "once.tsv"])
        finished = self.run.rename(place / "finished")
        train, certify = train_words(self.run), ["certify", str(self.run), *CERTIFY]
        self.scenarios = {
            "train": Scenario(None, train),
            "resume": Scenario(place / "half", train),
            "train again": Scenario(finished, train),
            "certify": Scenario(finished, certify),
        }
        for name, scenario in self.scenarios.items():
            ended = self._attempt(scenario, -1, faults.kill)
            assert ended.status == 0, ended
            scenario.result, scenario.operations = self._result(), int(ended.out.rpartition("operations ")[2])
            if name == "train":
                self._attempt(scenario, scenario.operations // 2, faults.kill)
                self.run.rename(place / "half")
        self.points = [
            (name, point, action)
            for name, scenario in self.scenarios.items()
            for point in range(scenario.operations)
            for action in actions
        ]

    def case(self, number: int, chance: Random) -> tuple[str, str]:
        if number < len(self.points):
            name, *first = self.points[number * 7919 % len(self.points)]  # a prime: all of them, in a mixed order
            moments = [first]
        else:
            name = chance.choice(list(self.scenarios))
            moments = [
                [chance.randrange(self.scenarios[name].operations), chance.choice(list(self.actions))] for _ in "12"
            ]
        scenario, what = self.scenarios[name], f"{name}: {moments}"
        self._restore(scenario)
        worst = "fine"
        for point, action in moments:
            ended = self._attempt(None, point, self.actions[action], scenario.words)
            if ended.status == -9 and self.actions[action] is faults.kill and not ended.hung:
                continue
            kind = classify(ended)
            if kind not in ("fine", "refused"):
                return kind, f"{what}: {ended.err[-2000:]}"
            worst = kind if worst == "fine" else worst
        ended = command(self.place, *scenario.words)
        kind = classify(ended, same=ended.status == 0 and self._as_undisturbed(scenario))
        if kind == "refused":  # what was interrupted must go on
            kind = "silent change"
        return (worst if kind == "fine" else kind), f"{what}: {ended.err[-2000:]}"

    def _as_undisturbed(self, scenario: Scenario) -> bool:
        try:
            return same(self._result(), scenario.result)
        except Exception as error:  # a file that cannot be read
            print(error, file=sys.stderr)
            return False

    def _restore(self, scenario: Scenario) -> None:
        shutil.rmtree(self.run, ignore_errors=True)
        if scenario.start:
            shutil.copytree(scenario.start, self.run)

    def _attempt(self, restored: Scenario | None, point: int, act: Any, words: list[str] | None = None) -> Ended:
        if restored:
            self._restore(restored)
            words = restored.words

        def action() -> int:
            count = faults.at(self.run, point, act)
            status = main(words)
            print(f"operations {count()}")
            return status

        return run(self.place, action)

    def _result(self) -> Any:
        """What a run's folder says, but for times; and what is left behind there."""
        found = latest(self.run / "checkpoints", print)
        assert found is not None
        step, state = found
        records = [_without(record) for record in read_records(self.run / "metrics.jsonl")]
        rows = [
            (row.idx, row.label, row.predict, row.radius)
            for path in sorted(self.run.glob("certified-*.tsv"))
            for row in read_rows(path)[1]
        ]
        left = [path.name for path in self.run.rglob(".tmp-*")]
        return [step, _without(state), records, _without(json.loads((self.run / "run.json").read_text())), rows, left]


def _without(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if not re.fullmatch("|".join(TIMES), key)}


kills = partial(Interruptions, actions={"kill": faults.kill})
io_errors = partial(Interruptions, actions={faults.errno.errorcode[n]: faults.fail(n) for n in faults.ERRORS})

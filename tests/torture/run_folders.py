"""Mutations of run folders: records, metrics and checkpoints, damaged and forged; links, pipes and holes."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from random import Random

from tests.lab.storage.test_checkpoint_hostile import forge
from tests.torture.exports import mutate_tensors
from tests.torture.mutations import mutate_file, mutate_json, to_json
from tests.torture.outcomes import Ended, classify, command
from tests.torture.subject import RECIPE, make, train_words

PRECIOUS = b"do not touch\n"


class RunFolders:
    """What a command prints must be what it printed before, unless it says what is wrong, or all was forged to fit.

    A checkpoint has digests. `run.json` and `metrics.jsonl` are plain records: an edited number that is still possible
    is printed as it stands. Nothing outside the folder may change.
    """

    def __init__(self, place: Path) -> None:
        self.place, self.run = place, place / "run"
        (place / "table.yaml").write_text(f"recipes: [{RECIPE}]\n")
        report = ["report", "table.yaml", "--runs", "run", "--results", "run", "--out", "report"]
        show = ["show", "run", "--images", "2", "--out", "out.png"]
        make(place, ["eval", "run"], ["export", "run", "to"], show, report)
        _keep_one(self.run)
        finished = self.run.rename(place / "finished")
        half = shutil.copytree(finished, place / "half")  # as a kill after the last step leaves it
        (half / "run.json").unlink()
        self.commands = [
            (finished, train_words("run")),
            (half, train_words("run")),
            (half, train_words("run")),
            (finished, ["eval", "run"]),
            (finished, ["eval", "run", "--checkpoint", "best"]),
            (finished, ["export", "run", "to"]),
            (finished, ["ls", "digits", "--runs", "run", "--results", "run"]),
            (finished, show),
            (finished, report),
        ]
        self.outputs = []
        for start, words in self.commands:
            self._restore(start)
            ended = command(place, *words)
            assert ended.status == 0, ended
            self.outputs.append(self._result(ended))

    def case(self, number: int, chance: Random) -> tuple[str, str]:
        which = chance.randrange(len(self.commands))
        start, words = self.commands[which]
        self._restore(start)
        elsewhere = self.place / "elsewhere"
        elsewhere.write_bytes(PRECIOUS)
        forge_it = words[0] != "train" and chance.random() < 0.4  # a run trusts its own folder: see docs/security.md
        forged, what = self._mutate(chance, elsewhere, records=words[0] in ("ls", "report"), forge_it=forge_it)
        ended = command(self.place, *words)
        plain = "run.json" in what or "metrics.jsonl" in what
        named = any(f"step-{n:06}" in ended.err + ended.out for n in (4, 9))  # a checkpoint, by a complaint
        same = forged or plain or named or self._result(ended) == self.outputs[which]
        same = same and elsewhere.read_bytes() == PRECIOUS
        about = f"{start.name}, {' '.join(words[:2])}, {what}"
        return classify(ended, same=same), f"{about}: {ended.out[-300:]}{ended.err[-1500:]}"

    def _mutate(self, chance: Random, elsewhere: Path, *, records: bool, forge_it: bool) -> tuple[bool, str]:
        """Change one file, of all or of records alone. Returns whether digests were forged, and what was changed."""
        folders = [self.run, self.run / "checkpoints", *(self.run / "checkpoints").glob("step-*")]
        if records:
            path = self.run / chance.choice(["run.json", "metrics.jsonl"])
            return False, f"{path.name}, {mutate_file(path, chance, elsewhere)}"
        if chance.random() < 0.1:  # a folder, or what a command will make
            path = chance.choice([*folders[1:], self.run / "checkpoints" / "step-000009", self.run / "best.json"])
            kind = chance.choice(["link", "pipe", "file"])
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
            if kind == "link":
                path.symlink_to(chance.choice([elsewhere, self.place, Path("/nowhere")]))
            elif kind == "pipe":
                os.mkfifo(path)
            else:
                path.touch()
            return False, f"{path.relative_to(self.run)} is a {kind}"
        path = chance.choice(sorted(p for folder in folders for p in folder.iterdir() if p.is_file()))
        name = str(path.relative_to(self.run))
        if forge_it and path.suffix in (".json", ".safetensors") and path.parent.parent != self.place:
            if path.suffix == ".json":
                path.write_bytes(to_json(mutate_json(json.loads(path.read_bytes()), chance)))
            else:
                path.write_bytes(mutate_tensors(path.read_bytes(), chance))
            if path.name in ("state.json", "tensors.safetensors"):
                forge(path.parent)
            return True, f"{name}, forged ({hashlib.sha256(path.read_bytes()).hexdigest()[:8]})"
        return False, f"{name}, {mutate_file(path, chance, elsewhere)}"

    def _restore(self, start: Path) -> None:
        for name in ("run", "to", "report"):
            shutil.rmtree(self.place / name, ignore_errors=True)
        shutil.copytree(start, self.run)

    def _result(self, ended: Ended) -> str:
        """What a command printed, but for times."""
        return re.sub(r", in [\d.]+ s|[\d,]+ examples/s|[\d:]+ left", "", ended.out)


def _keep_one(run: Path) -> None:
    """Leave a run its last checkpoint alone, as the best one too: damage to it then matters to every command."""
    folders = sorted((run / "checkpoints").glob("step-*"))
    for folder in folders[:-1]:
        shutil.rmtree(folder)
    best = run / "checkpoints" / "best.json"
    best.write_bytes(to_json(json.loads(best.read_text()) | {"step": int(folders[-1].name[5:]), "before": None}))

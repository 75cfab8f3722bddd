"""Mutations of exported models, read by `maxup.load` and `maxup certify FOLDER`."""

import hashlib
import json
import shutil
import sys
from pathlib import Path
from random import Random
from typing import Any

import torch

import maxup
from maxup.errors import LoadError
from tests.torture.mutations import mutate_bytes, mutate_file, mutate_json, to_json
from tests.torture.outcomes import classify, command, run
from tests.torture.subject import CERTIFY, make

FILES = ["config.json", "model.safetensors"]


class Exports:
    """A model that loads must give the answers it gave, unless its digests were forged.

    Names of classes and metrics in config.json are a plain record, as run.json is.
    """

    def __init__(self, place: Path) -> None:
        self.place, self.model, self.good = place, place / "model", place / "good"
        make(place, ["export", "run", "good"], ["certify", "good", *CERTIFY, "--out", "once.tsv"])
        shutil.copytree(self.good, self.model)
        self.answers = run(place, self._load).out

    def case(self, number: int, chance: Random) -> tuple[str, str]:
        shutil.rmtree(self.model)
        shutil.copytree(self.good, self.model)
        name = chance.choice(FILES)
        path = self.model / name
        elsewhere = self.place / "elsewhere"
        elsewhere.write_bytes(path.read_bytes())
        kind = chance.choice(["bytes", "json", "forged", "forged", "file"])
        if kind == "file":
            kind = mutate_file(path, chance, elsewhere)
        elif kind == "bytes":
            path.write_bytes(mutate_bytes(path.read_bytes(), chance))
        elif name == "config.json":
            path.write_bytes(to_json(mutate_json(json.loads(path.read_bytes()), chance)))
        else:
            path.write_bytes(mutate_tensors(path.read_bytes(), chance))
        if kind == "forged":
            forge(self.model)
        if chance.random() < 0.75:
            ended = run(self.place, self._load)
            same = ended.out == self.answers or kind == "forged"
        else:
            ended = command(self.place, "certify", "model", *CERTIFY, "--out", f"certified-{number}.tsv")
            same = True  # its certificates name the network they are of
        return classify(ended, same=same), f"{name}, {kind}: {ended.out[-300:]}{ended.err[-1500:]}"

    def _load(self) -> int:
        """Print what a model answers, or the one sentence about why it cannot be loaded."""
        try:
            model = maxup.load(self.model)
        except LoadError as error:
            said = "".join(c if c.isprintable() or c == "\n" else "?" for c in str(error))  # as the command would
            print(f"maxup: {said}", file=sys.stderr)
            return 1
        config: Any = model.config
        torch.manual_seed(0)
        print(model(torch.rand(4, *config["shape"])).tolist())
        return 0


def mutate_tensors(data: bytes, chance: Random) -> bytes:
    """A safetensors file with another header, its length to match."""
    size = int.from_bytes(data[:8], "little")
    header = to_json(mutate_json(json.loads(data[8 : 8 + size]), chance))
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def forge(folder: Path) -> None:
    """Digests that fit whatever is in the folder, as far as config.json can still be read."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
        data = (folder / "model.safetensors").read_bytes()
        config["files"]["model.safetensors"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        path.write_bytes(to_json(config))
    except (ValueError, TypeError, KeyError, OSError):
        pass

"""Write and read the files in results/, and say where they were measured."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speedrun_rows import Row, equal_time
from maxup.lab.environment import environment
from maxup.lab.results.comparison import FAST, TIME_OF, gain, is_maxup, summary
from maxup.lab.storage.atomic_io import make_folder, write_json

RESULTS = Path(__file__).parent.parent / "results"
SPEED_RUN_METRICS = {"accuracy": "clean"}  # other names than in `maxup compare`


@dataclass(frozen=True)
class Experiment:
    """What a file of `maxup compare` is about."""

    name: str
    """In the tables of claims."""
    section: str
    """Of the results page."""
    plot: str = ""
    """Title of its plot. Empty: it has none."""
    copies: tuple[int, ...] = (4,)
    """The numbers of copies that the claims are about."""
    fast: bool = False
    """Whether the claims are about fast scoring."""

    def row(self, m: int) -> str:
        """Return the name of the row with m copies."""
        return f"m = {m}{FAST}" if self.fast else f"m = {m}"


# setting -> result file
RATES = {rate: f"digits-lr/{rate}" for rate in ("0.05", "0.1", "0.2", "0.4")}
SIZES = {size: f"digits-size/{size}" for size in ("50", "100", "200")} | {"500": RATES["0.1"]}
LENGTHS = {epochs: f"digits-length/{epochs}" for epochs in ("60", "240", "960")}
NOISES = {sigma: f"digits-noise/{sigma}" for sigma in ("0.1", "0.2", "0.3", "0.4", "0.6")}
CERTIFIED_NOISES = {sigma: f"digits-certified-noise/{sigma}" for sigma in ("0.5", "0.6", "0.7", "0.85", "1.0")}
FEW = {"1,000": "cifar10-little/1000", "4,000": "cifar10-little/4000"}
SAM = {rho: f"digits-rivals/sam-{rho}" for rho in ("0.05", "0.1", "0.2")}
RIVALS = {  # name -> result file and row; the file of the same name with "-time" has them at equal time
    **{f"SAM, radius {rho}": (file, "m = 1") for rho, file in SAM.items()},
    "PGD training, with noise": ("digits-rivals/pgd", "PGD, radius 0.5"),
}
SPEED_RUN, SPEED_RUN_FEW = "speedrun-32", "speedrun-1000"
REPEATED = {RATES["0.1"], LENGTHS["60"], NOISES["0.2"]}  # the settings of "digits"
EXPERIMENTS = {  # by result file
    "digits": Experiment("digits, MLP, 60 epochs, 500 images, noise 0.2", "digits", "MLP on digits"),
    "digits-cause": Experiment("digits, MLP", "corruptions-and-calibration", "MLP on digits"),
    **{file: Experiment(f"digits, MLP, {size} images", "little-data")
       for size, file in SIZES.items() if file not in REPEATED},
    **{file: Experiment(f"digits, MLP, learning rate {lr}", "is-it-the-learning-rate") for lr, file in RATES.items()},
    **{file: Experiment(f"digits, MLP, {epochs} epochs", "longer-training",
                        "MLP on digits, 240 epochs" if epochs == "240" else "") for epochs, file in LENGTHS.items()},
    **{file: Experiment(f"digits, MLP, noise {sigma}", "is-it-only-stronger-noise") for sigma, file in NOISES.items()},
    "digits-rivals/pgd": Experiment("digits, MLP", "sam-and-pgd-training", "MLP on digits, with PGD training"),
    "digits-rivals/sam-0.1": Experiment("digits, MLP, SAM", "sam-and-pgd-training", "MLP on digits, with SAM of 0.1"),
    "digits-certified": Experiment("digits, MLP, noise 0.5", "certified-radius-on-digits", "MLP on digits, noise 0.5",
                                   copies=(5, 25)),
    "digits-shortlist/exact-8": Experiment("digits, MLP, noise 0.5", "a-shortlist-for-many-copies", copies=(8,)),
    **{file: Experiment(f"CIFAR-10, {size} images, ResNet-14, Cutout", "few-images",
                        f"ResNet-14 on {size} images of CIFAR-10, Cutout") for size, file in FEW.items()},
    "cifar16": Experiment("CIFAR-10 at 16 x 16, 500 images, ResNet-8, Cutout", "500-images-trained-for-long",
                          "ResNet-8 on 500 images of CIFAR-10 at 16 x 16, Cutout"),
    "cifar16-certified": Experiment("CIFAR-10 at 16 x 16, ResNet-8, noise 0.25", "certified-radius-at-16-x-16-pixels",
                                    "ResNet-8 on CIFAR-10 at 16 x 16, noise 0.25", copies=(5,)),
    "photos": Experiment("photos at 96 x 96, 500 images, ResNet-8, CutMix", "photos-with-cutmix",
                         "ResNet-8 on 500 photos at 96 x 96, CutMix"),
    "minilm": Experiment("docstrings, pretrained MiniLM, token dropout", "fine-tuning-a-pretrained-encoder",
                         "MiniLM on docstrings, token dropout"),
    "docstrings-embedding_dropout": Experiment("docstrings, Transformer, word dropout", "text-classification",
                                               "Transformer on docstrings, word dropout"),
    "docstrings-embedding_dropout-no_dropout": Experiment(
        "docstrings, Transformer, word dropout, `dropout=False`", "text-classification"),
    "docstrings-token_dropout": Experiment("docstrings, Transformer, token dropout", "text-classification",
                                           "Transformer on docstrings, token dropout"),
    "docstrings-token_dropout-no_dropout": Experiment(
        "docstrings, Transformer, token dropout, `dropout=False`", "text-classification"),
    "ptb-quarter": Experiment("a quarter of Penn Treebank, AWD-LSTM", "a-quarter-of-penn-treebank",
                              "AWD-LSTM on a quarter of Penn Treebank", copies=(2,)),
    SPEED_RUN: Experiment("CIFAR-10, speed-run network, Cutout, `fast=True`", "the-speed-run",
                          "Speed run on CIFAR-10, Cutout", fast=True),
    SPEED_RUN_FEW: Experiment("CIFAR-10, 1,000 images, speed-run network, Cutout, `fast=True`",
                              "the-speed-run-with-few-images", "Speed run on 1,000 images of CIFAR-10, Cutout",
                              fast=True),
}  # fmt: skip


def write_result(folder: Path, name: str, found: dict[str, Any]) -> None:
    """Write what a benchmark found, and its environment, to a file of a folder."""
    make_folder(folder)
    write_json(folder / f"{name}.json", found | {"environment": environment()})


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def compared(name: str) -> Any:
    """Return a result of `maxup compare`, or one of `benchmarks.speedrun` in the same form."""
    found = result(name)
    if found.get("benchmark") != "speedrun":
        return found
    rows, paired = found["rows"], bool(found.get("images"))
    names = {row: _row_name(row, rows) for row in sorted(rows, key=lambda row: (Row.parse(row).factor, row != "m1"))}
    runs = {
        name: [{SPEED_RUN_METRICS.get(key, key): value for key, value in run.items()}
               for run in sorted(rows[row], key=lambda run: run["seed"])]
        for row, name in names.items()
    }  # fmt: skip
    gains = {
        name: {"gain": gain(runs[name.rpartition(TIME_OF)[2]], runs[name], paired=paired)}
        for name in runs
        if TIME_OF in name
    }
    seeds = [run["seed"] for run in runs["m = 1"]]
    assert not paired or all([run["seed"] for run in row] == seeds for row in runs.values()), f"{name}: other seeds"
    about = {"runs": runs, "summary": summary(runs, paired=paired), "equal_time": gains, "paired": paired}
    return about | {"seeds": seeds, "environment": found["environment"]}


def _row_name(row: str, rows: dict[str, Any]) -> str:
    """Return the name that `maxup compare` gives a row of the speed run.

    A row with m = 1 and more epochs has the time of the row that sets its epochs.
    """
    parsed = Row.parse(row)
    titles = {"fast": "m = {}" + FAST, "easy": "easiest of {}", "avg": "average of {}", "m": "m = {}"}
    if parsed.factor == 1:
        return titles[parsed.kind].format(parsed.m) if parsed.kind in titles and not parsed.part else row
    names = {name: _row_name(name, rows) for name in rows if Row.parse(name).factor == 1}
    (other,) = [title for name, title in names.items() if is_maxup(title) and equal_time(rows, name) == row]
    return f"m = 1{TIME_OF}{other}"


def origin(where: dict[str, Any], *others: dict[str, Any]) -> str:
    """Hardware, torch version and commits."""
    device = where["hardware"]
    if "NVIDIA" not in device:
        device += f", {where['threads']} thread{'s' if where['threads'] > 1 else ''}"
    commits = " and ".join(dict.fromkeys(map(short_commit, (where, *others))))
    return f"({device}; torch {where['versions']['torch']}; commit {commits}.)"


def short_commit(where: dict[str, Any]) -> str:
    return where["commit"].rstrip("+")[:7] + ("+" if where["commit"].endswith("+") else "")

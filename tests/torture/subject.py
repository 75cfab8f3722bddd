"""The small run that is tortured: four steps of an MLP on digits with MaxUp, a checkpoint at every step."""

import os
from pathlib import Path
from typing import Any

import torch

RECIPE = "smoke/digits-gaussian-maxup"
SMALL = [
    "--data.train_size", "60", "--data.validation", "0.2", "--batch_size", "24", "--epochs", "2", "--objective.m", "2",
    "--objective.warmup", "0", "--model.args", "{hidden: [4]}", "--optim.ema", "0.5",
]  # fmt: skip
CERTIFY = ["--n0", "10", "--n", "100", "--batch", "100", "--skip", "100"]


def train_words(out: Any, recipe: str = RECIPE, settings: list[str] = SMALL) -> list[str]:
    """The command line that trains it, or resumes it."""
    return ["train", recipe, "--out", str(out), "--trackers", "none", "--save_every", "0", *settings]


def make(place: Path, *more: list[str]) -> None:
    """Train it in the folder `run`, then run more commands there, all in this process: its imports serve every fork."""
    from maxup.cli.main import main

    torch.set_num_threads(1)
    before = os.getcwd()
    os.chdir(place)
    try:
        for words in (train_words("run"), *more):
            status = main(words)
            assert status == 0, words
    finally:
        os.chdir(before)

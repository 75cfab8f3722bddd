"""A tiny finished run that the verbs' tests share."""

from maxup.lab.recipes.load import parse_recipe
from maxup.lab.train.loop import train

WORDS = ["--epochs", "3", "--data.train_size", "200", "--data.validation", "0.2", "--model.name", "conv"]
WORDS += ["--model.args", "{width: 4}", "--optim.ema", "0.9", "--batch_size", "20"]


def make(folder, *words):
    return train(parse_recipe("digits/mlp-gaussian-maxup", [*WORDS, *words]), folder, quiet=True)

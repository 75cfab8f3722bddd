"""Cost of a training step of a language model: standard, MaxUp with m = 2 and both strategies, and a plain nn.LSTM.

    python -m benchmarks.language                           # on the GPU if there is one, otherwise on the CPU
    python -m benchmarks.language --out results --data DIR  # DIR has Penn Treebank

The text is that of the recipe if `maxup data` finds it, otherwise Python's help texts, which have fewer words.

The variants alternate in one run, on windows of the same length, and the results are ratios of medians. A step is the
forward pass, the backward pass, clipping and the optimizer step. The lower limit is torch's nn.LSTM with the same sizes
and the same tied softmax, without regularization.
"""

import argparse
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.result_files import write_result
from maxup.lab.bench.timing import interleaved
from maxup.lab.data.find import locate
from maxup.lab.data.windows import Windows
from maxup.lab.recipes.load import parse_recipe
from maxup.lab.recipes.schema import Recipe
from maxup.lab.tasks.language import Language
from maxup.lab.train.optim import create_optimizer


class Plain(nn.Module):
    """The lower limit: embedding, three LSTM layers, tied softmax."""

    def __init__(self, words: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        sizes = [embedding, *[hidden] * (layers - 1), embedding]
        self.words = nn.Embedding(words, embedding)
        self.layers = nn.ModuleList(nn.LSTM(n, k) for n, k in pairwise(sizes))
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, tokens: Tensor, hidden: list[Any]) -> tuple[Tensor, list[Any]]:
        x, ends = self.words(tokens.T), []
        for layer, state in zip(self.layers, hidden, strict=True):
            x, end = layer(x, state)
            ends.append(tuple(part.detach() for part in end))
        return F.linear(x, self.words.weight, self.bias), ends


def task_step(recipe: Recipe, device: torch.device, length: int) -> Callable[[], None]:
    """Return a function that makes one training step of a recipe, on windows of one length."""
    task = Language(recipe, device)
    optimizer = create_optimizer(task.model, recipe.optim)
    windows = fixed(task, recipe, device, length)
    task.hidden = task.model.start(recipe.batch_size)
    task.loader.position = 2  # not the first window, so that the state is carried over
    task.model.train()

    def run() -> None:
        task.step(task.model, next(windows)).loss.backward()
        nn.utils.clip_grad_norm_(task.model.parameters(), recipe.optim.clip or 0.25)
        optimizer.step()
        optimizer.zero_grad()

    return run


def plain_step(recipe: Recipe, device: torch.device, length: int) -> Callable[[], None]:
    """Return a function that makes one training step of the plain LSTM."""
    task = Language(recipe, device)
    windows = fixed(task, recipe, device, length)
    sizes = {name: recipe.model.args[name] for name in ("embedding", "hidden", "layers")}
    model = Plain(len(task.text.words), **sizes).to(device)
    optimizer = create_optimizer(model, recipe.optim)
    hidden: list[Any] = [None] * sizes["layers"]

    def run() -> None:
        nonlocal hidden
        _, tokens, target = next(windows)
        scores, hidden = model(tokens, hidden)
        F.cross_entropy(scores.flatten(0, 1), target.T.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.optim.clip or 0.25)
        optimizer.step()
        optimizer.zero_grad()

    return run


def fixed(task: Language, recipe: Recipe, device: torch.device, length: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield windows of one length, forever."""
    windows = Windows(task.text.train, recipe.batch_size, length, device=device, seed=None)
    while True:
        for batch in windows:
            if batch[1].shape[1] == length:
                yield batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="ptb/adv_awd_lstm-embedding_dropout-maxup", help="a language recipe")
    parser.add_argument("--data", help="folder to search first for the recipe's text")
    parser.add_argument("--columns", type=int, help="batch size (default: the recipe's)")
    parser.add_argument("--length", type=int, help="length of a window (default: the recipe's bptt)")
    parser.add_argument("--scale", type=float, default=1.0, help="scale of the layer sizes, for a quick test")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="folder for language-<device>.json")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    recipe = parse_recipe(args.recipe, [])
    recipe.data.root = args.data
    recipe.data.name = recipe.data.name if args.data or locate(recipe.data.name) else "text"
    recipe.batch_size, length = args.columns or recipe.batch_size, args.length or recipe.language.bptt
    for name in ("embedding", "hidden"):
        recipe.model.args[name] = max(2, round(args.scale * recipe.model.args[name]))
    maxup = recipe.objective | {"warmup": 0}
    variants: dict[str, Callable[[], object]] = {"plain nn.LSTM": plain_step(recipe, device, length)}
    variants["standard"] = task_step(replace(recipe, objective={"name": "standard"}), device, length)
    for strategy in ("recompute", "retain"):
        recipe = replace(recipe, objective=maxup | {"strategy": strategy})
        variants[f"MaxUp m = {maxup['m']}, {strategy}"] = task_step(recipe, device, length)
    with warnings.catch_warnings(record=True) as caught:  # cuDNN must not warn that weights are not contiguous
        warnings.simplefilter("always")
        times = interleaved(variants, args.rounds, device.type, calls=args.steps)
    median = {name: statistics.median(values) for name, values in times.items()}
    tokens = recipe.batch_size * length
    how = f"{recipe.batch_size} columns of {length}, {device}, median of {args.rounds} rounds"
    print(f"{args.recipe}, text {recipe.data.name}, {how}")
    for name, value in median.items():
        ratio, rate = value / median["standard"], tokens / value
        print(f"  {name:<22} {1000 * value:9.2f} ms   {rate:12,.0f} tokens/s   {ratio:5.2f} of a standard step")
    print("warnings:", [str(w.message).splitlines()[0] for w in caught] or "none")
    if args.out:
        result = {
            "benchmark": "language",
            "recipe": args.recipe,
            "text": recipe.data.name,
            "sizes": {name: recipe.model.args[name] for name in ("embedding", "hidden", "layers")},
            "columns": recipe.batch_size,
            "length": length,
            "device": device.type,
            "rounds": args.rounds,
            "steps": args.steps,
            "median_seconds": median,
            "tokens_per_second": {name: tokens / value for name, value in median.items()},
            "ratio": {name: value / median["standard"] for name, value in median.items()},
            "warnings": [str(w.message) for w in caught],
        }
        write_result(args.out, f"language-{device.type}", result)


if __name__ == "__main__":
    main()

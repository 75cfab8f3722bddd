"""List recipes and networks."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from maxup.cli.parser import folder, parser_of
from maxup.lab.output import say

GROUP = "Recipes and data"
EXAMPLES = """examples:
  maxup ls                         all recipes
  maxup ls digits                  recipes with "digits" in their name
  maxup ls --models                networks that a recipe can name
  maxup ls --models timm/resnet    networks of timm that start with "resnet"
"""
HEADING = f"{'network':<34} {'parameters':>11} {'multiply-adds':>14}  input"
FEW = 5  # build at most this many networks of another package to count their parameters
CLASSES = {"cifar10": 10, "cifar100": 100, "svhn": 10, "cub": 200}  # by the last part of pytorchcv's names


def main(argv: Sequence[str]) -> int:
    """List recipes or networks."""
    parser = parser_of(
        "ls",
        "List recipes with a description, the paper's number, our number (mean ± std, n seeds), and the cost: seconds "
        "of training if measured, otherwise m, the copies per example.",
        EXAMPLES,
    )
    parser.add_argument("word", nargs="?", default="", help="list only names that contain this")
    parser.add_argument("--models", action="store_true", help="list networks instead")
    option = partial(parser.add_argument, metavar="DIR", type=folder)
    option("--results", default=Path("results/runs"), help="folder of the result files (default: results/runs)")
    option("--runs", default=Path("runs"), help="folder of the runs (default: runs)")
    args = parser.parse_args(argv)
    if args.models:
        found = 0
        for found, line in enumerate(_models(args.word), 1):
            say(*[HEADING] * (found == 1), line, sep="\n", flush=True)
        if not found:
            say(f"no network has {args.word!r:.80} in its name", file=sys.stderr)
        return 0 if found else 1
    from maxup.lab.report.listing import listing, show

    entries, notes = listing(args.word, results=args.results, runs=args.runs)
    show(entries)
    for note in notes:
        say(note, file=sys.stderr)
    if not entries:
        say(f"no recipe has {args.word!r:.80} in its name", file=sys.stderr)
    return 0 if entries else 1


def _models(word: str) -> Iterator[str]:
    """Yield a line per network: ours and the paper's, or those of the package that the word names."""
    from maxup.lab.models import list_models
    from maxup.lab.models.external import PAPER, is_external, list_external
    from maxup.lab.registry import LANGUAGE_MODELS

    if is_external(word):
        names = list_external(f"{word}*")
        yield from (_count(name) if name in PAPER or len(names) <= FEW else name for name in names)
        return
    yield from (_count(name) for name in (*list_models(), *PAPER, *LANGUAGE_MODELS) if word in name)
    if not word:
        yield "Recipes can also name networks of timm and pytorchcv: maxup ls --models timm/ or pytorchcv/ lists them."


def _count(name: str) -> str:
    """Return a line with the parameters of a network, and its multiply-adds if the input size is known."""
    import torch

    from maxup.errors import ModelError
    from maxup.lab.models import create_model
    from maxup.lab.models.count import count_multiply_adds, count_parameters, format_count
    from maxup.lab.models.external import PAPER, is_external
    from maxup.lab.registry import LANGUAGE_MODELS, build

    size = PAPER.get(name, 8 if name == "mlp" else 32)
    shape = (1 if name == "mlp" else 3, size, size)
    classes = CLASSES.get(name.rpartition("_")[2], 1000) if is_external(name) else 10
    adds, inputs = "", ""
    try:
        with torch.device("meta"):  # needs no memory
            if name in LANGUAGE_MODELS:
                model, inputs = build(LANGUAGE_MODELS, "language model", name, words=10_000), "text of 10,000 words"
            else:
                model = create_model(name, shape=shape, num_classes=classes)
    except ModelError as error:
        return f"{name:<34} {str(error).removeprefix(name).strip()}"
    if name in PAPER or not (inputs or is_external(name)):
        adds, inputs = format_count(count_multiply_adds(model, shape)), " x ".join(map(str, shape))
    return f"{name:<34} {format_count(count_parameters(model)):>11} {adds:>14}  {inputs}".rstrip()

"""`maxup ls [WORD]`: the recipes, those whose name holds a word; `--models` the networks and their size."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from maxup.cli.parser import parser_of
from maxup.cli.report import folder
from maxup.lab.output import say

EXAMPLES = """examples:
  maxup ls                         every recipe
  maxup ls digits                  those with "digits" in their name
  maxup ls --models                the networks a recipe can name
  maxup ls --models timm/resnet    those of timm whose names begin with that
"""
HEADING = f"{'network':<34} {'parameters':>11} {'multiply-adds':>14}  of an image"
FEW = 5  # networks of other packages that are built to be counted
CLASSES = {"cifar10": 10, "cifar100": 100, "svhn": 10, "cub": 200}  # by how pytorchcv's names end; ImageNet's have none


def main(argv: Sequence[str]) -> int:
    """List."""
    parser = parser_of(
        "ls",
        "List recipes: what each is, the paper's number for it, ours from the runs there are (mean ± std, "
        "n seeds), and its cost: seconds of training where measured, else the copies m forwarded for every example.",
        EXAMPLES,
    )
    parser.add_argument("word", nargs="?", default="", help="show recipes, or networks, whose name holds this")
    parser.add_argument("--models", action="store_true", help="list networks instead")
    option = partial(parser.add_argument, metavar="DIR", type=folder)
    option("--results", default=Path("results/runs"), help="result files (default: results/runs)")
    option("--runs", default=Path("runs"), help="folders of runs (default: runs)")
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
    """A line for every network: ours and the paper's of other packages, or those of the package that the word names."""
    from maxup.lab.models import list_models
    from maxup.lab.models.external import PAPER, is_external, list_external
    from maxup.lab.registry import LANGUAGE_MODELS

    if is_external(word):
        names = list_external(f"{word}*")
        yield from (_counted(name) if name in PAPER or len(names) <= FEW else name for name in names)
        return
    yield from (_counted(name) for name in (*list_models(), *PAPER, *LANGUAGE_MODELS) if word in name)
    if not word:
        yield "Those of timm and pytorchcv can be named too: maxup ls --models timm/ or pytorchcv/ lists them."


def _counted(name: str) -> str:
    """A network with its parameters, and the multiply-adds of an image where its size is known."""
    import torch

    from maxup.errors import ModelError
    from maxup.lab.models import create_model
    from maxup.lab.models.count import count_multiply_adds, count_parameters, format_count
    from maxup.lab.models.external import PAPER, is_external
    from maxup.lab.registry import LANGUAGE_MODELS, build

    size = PAPER.get(name, 8 if name == "mlp" else 32)
    shape = (1 if name == "mlp" else 3, size, size)
    classes = CLASSES.get(name.rpartition("_")[2], 1000) if is_external(name) else 10
    adds, of = "", ""
    try:
        with torch.device("meta"):  # costs neither memory nor time
            if name in LANGUAGE_MODELS:
                model, of = build(LANGUAGE_MODELS, "language model", name, words=10_000), "text of 10,000 words"
            else:
                model = create_model(name, shape=shape, num_classes=classes)
    except ModelError as error:
        return f"{name:<34} {str(error).removeprefix(name).strip()}"
    if name in PAPER or not (of or is_external(name)):
        adds, of = format_count(count_multiply_adds(model, shape)), " x ".join(map(str, shape))
    return f"{name:<34} {format_count(count_parameters(model)):>11} {adds:>14}  {of}".rstrip()

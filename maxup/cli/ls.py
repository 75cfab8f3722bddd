"""`maxup ls [WORD]`: the recipes, those whose name holds a word; `--models` the networks and their size."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from maxup.cli.parser import parser_of
from maxup.cli.report import folder

EXAMPLES = """examples:
  maxup ls             every recipe
  maxup ls digits      those with "digits" in their name
  maxup ls --models    the networks a recipe can name
"""


def main(argv: Sequence[str]) -> int:
    """List."""
    parser = parser_of(
        "ls",
        "List recipes: what each is, the paper's number for it, ours from the runs there are (mean ± std, "
        "n seeds), and its cost: seconds of training where measured, else the copies m forwarded for every example.",
        EXAMPLES,
    )
    parser.add_argument("word", nargs="?", default="", help="show recipes whose name holds this")
    parser.add_argument("--models", action="store_true", help="list networks instead")
    option = partial(parser.add_argument, metavar="DIR", type=folder)
    option("--results", default=Path("results/runs"), help="result files (default: results/runs)")
    option("--runs", default=Path("runs"), help="folders of runs (default: runs)")
    args = parser.parse_args(argv)
    if args.models:
        for line in _models(args.word):
            print(line, flush=True)
        return 0
    from maxup.report.listing import listing, show

    entries, notes = listing(args.word, results=args.results, runs=args.runs)
    show(entries)
    for note in notes:
        print(note, file=sys.stderr)
    if not entries:
        print(f"no recipe has {args.word!r} in its name", file=sys.stderr)
    return 0 if entries else 1


def _models(word: str) -> Iterator[str]:
    """Our networks for CIFAR's or digits' images, and the paper's of other packages, which have many more."""
    import torch

    from maxup.models import create_model, list_models
    from maxup.models.count import count_multiply_adds, count_parameters, in_short
    from maxup.models.external import PAPER, ExternalError
    from maxup.registry import LANGUAGE_MODELS, build

    shapes = {name: (1, 8, 8) if name == "mlp" else (3, 32, 32) for name in list_models()}
    shapes |= {name: (3, size, size) for name, size in PAPER.items()}
    yield f"{'network':<34} {'parameters':>11} {'multiply-adds':>14}  of an image"
    for name, shape in shapes.items():
        if word not in name:
            continue
        try:
            with torch.device("meta"):  # costs neither memory nor time
                model = create_model(name, shape=shape, classes=1000 if name in PAPER else 10)
        except ExternalError as error:
            yield f"{name:<34} {error}"
            continue
        counts = count_parameters(model), count_multiply_adds(model, shape)
        yield f"{name:<34} {in_short(counts[0]):>11} {in_short(counts[1]):>14}  {' x '.join(map(str, shape))}"
    for name in LANGUAGE_MODELS:
        if word in name:
            with torch.device("meta"):
                model = build(LANGUAGE_MODELS, "language model", name, words=10_000)
            yield f"{name:<34} {in_short(count_parameters(model)):>11} {'':>14}  text of 10,000 words"
    if not word:
        yield "Any network that timm or pytorchcv lists can be named as timm/NAME or pytorchcv/NAME."

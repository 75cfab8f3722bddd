"""List your runs, recipes and networks."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from maxup.cli.parser import add_json, folder, parser_of
from maxup.errors import ModelError
from maxup.lab.output import say, say_json

GROUP = "Recipes and data"
EXAMPLES = """examples:
  maxup ls                         your runs and all recipes
  maxup ls digits                  runs and recipes with "digits" in their name
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
        "List your runs, and recipes with a description, the paper's number, the result (mean ± std, n seeds), and the "
        "seconds of training if measured, otherwise m, the copies per example.",
        EXAMPLES,
    )
    parser.add_argument("word", nargs="?", default="", help="list only names that contain this")
    parser.add_argument("--models", action="store_true", help="list networks instead")
    option = partial(parser.add_argument, metavar="DIR", type=folder)
    option("--results", default=Path("results/runs"), help="folder of the result files (default: results/runs)")
    option("--runs", default=Path("runs"), help="folder of the runs (default: runs)")
    add_json(parser)
    args = parser.parse_args(argv)
    if args.models:
        return _list_models(args.word, as_json=args.json)
    from maxup.lab.report.listing import document, listing, show

    found = listing(args.word, results=args.results, runs=args.runs)
    if args.json:
        say_json(document(found))
    else:
        show(found)
        for note in found.notes:
            say(note, file=sys.stderr)
    if not found.runs and not found.recipes:
        say(f"no recipe has {args.word!r:.80} in its name, and no run in {args.runs}", file=sys.stderr)
        return 1
    if not found.runs:
        which = f" with {args.word!r:.80} in its name" if args.word else ""
        say(f"no run{which} in {args.runs}; --runs names another folder", file=sys.stderr)
    return 0


def _list_models(word: str, *, as_json: bool) -> int:
    networks = []
    for network in _models(word):
        networks.append(network)
        if not as_json:
            if len(networks) == 1:
                say(HEADING)
            say(network.line(), flush=True)
    if as_json:
        say_json({"models": [asdict(network) for network in networks]})
    if not networks:
        say(f"no network has {word!r:.80} in its name", file=sys.stderr)
    elif not word and not as_json:
        say("Recipes can also name networks of timm and pytorchcv: maxup ls --models timm/ or pytorchcv/ lists them.")
    return 0 if networks else 1


@dataclass(frozen=True)
class Network:
    """One line of the list of networks. What is not known is None."""

    name: str
    parameters: int | None = None
    multiply_adds: int | None = None
    input: str = ""
    problem: str = ""
    """Why the network cannot be built."""

    def line(self) -> str:
        """Return the line of the list."""
        from maxup.lab.models.count import format_count

        if self.problem or self.parameters is None:
            return f"{self.name:<34} {self.problem}".rstrip()
        adds = "" if self.multiply_adds is None else format_count(self.multiply_adds)
        return f"{self.name:<34} {format_count(self.parameters):>11} {adds:>14}  {self.input}".rstrip()


def _models(word: str) -> Iterator[Network]:
    """Yield the networks: ours and the paper's, or those of the package that the word names."""
    from maxup.lab.models import list_models
    from maxup.lab.models.external import PAPER, is_external, list_external
    from maxup.lab.registry import LANGUAGE_MODELS

    if is_external(word):
        names = list_external(f"{word}*")
        yield from (_count(name) if name in PAPER or len(names) <= FEW else Network(name) for name in names)
        return
    yield from (_count(name) for name in (*list_models(), *PAPER, *LANGUAGE_MODELS) if word in name)


def _count(name: str) -> Network:
    """Count the parameters of a network, and its multiply-adds if the input size is known."""
    import torch

    from maxup.lab.models import create_model
    from maxup.lab.models.count import count_multiply_adds, count_parameters
    from maxup.lab.models.external import PAPER, is_external
    from maxup.lab.registry import LANGUAGE_MODELS, build

    size = PAPER.get(name, 8 if name == "mlp" else 32)
    shape = (1 if name == "mlp" else 3, size, size)
    classes = CLASSES.get(name.rpartition("_")[2], 1000) if is_external(name) else 10
    adds, inputs = None, ""
    try:
        with torch.device("meta"):  # needs no memory
            if name in LANGUAGE_MODELS:
                model, inputs = build(LANGUAGE_MODELS, "language model", name, words=10_000), "text of 10,000 words"
            else:
                model = create_model(name, shape=shape, num_classes=classes)
    except ModelError as error:
        return Network(name, problem=str(error).removeprefix(name).strip())
    if name in PAPER or not (inputs or is_external(name)):
        adds, inputs = count_multiply_adds(model, shape), " x ".join(map(str, shape))
    return Network(name, count_parameters(model), adds, inputs)

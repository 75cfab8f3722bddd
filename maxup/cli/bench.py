"""Measure the cost of a training step: time, memory and fidelity."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from maxup.cli.parser import Parser, add_json, check_count, check_writable, folder, free_stdout, new_folder, parser_of
from maxup.cli.user_code import add_user_code, load_function, user_functions
from maxup.errors import RecipeError, RunError, unknown_name
from maxup.lab.bench.settings import DEFAULT, NAMES, SIZES
from maxup.lab.limits import Limit, option
from maxup.lab.output import say, say_json

if TYPE_CHECKING:
    import torch

    from maxup.lab.bench.workload import Workload

GROUP = "Your code"
FILES = ("bench.json", "cost.png", "gap.png")
ONE_PROCESS = True
EXAMPLES = """examples:
  maxup bench resnet20
  maxup bench resnet20 --m 2 4 8 16 --variants maxup sam --out runs/bench
  maxup bench timm/resnet50 --perturb cutmix --precision bf16 --compile
  maxup bench resnet20 --data cifar10 --train_steps 1000
  maxup bench --model_from mine:net --input 3,224,224 --num_classes 100
  maxup bench --model_from mine:net --data_from mine:data
  maxup bench mine:setup         setup() returns a dict, as for maxup doctor
"""
SIDE = Limit(1, 10**4, whole=True)
FIXED_BY_SETUP = ("input", "num_classes", "batch_size", "perturb", "data", "root", "model_from", "data_from")


def main(argv: Sequence[str]) -> int:
    """Measure variants of a training step."""
    parser = parser_of(
        "bench",
        "Measure one training step in one process: the standard step, MaxUp, the average of m copies, the graphs of "
        "all m copies (as public code does), PGD-7 adversarial training and SAM. Prints the time, the peak memory, and "
        "how much of the loss gap between the worst and the mean copy each selection keeps. Larger defaults on a GPU.",
        EXAMPLES,
    )
    parser.add_argument(
        "network", nargs="?", help="a network (see maxup ls --models), or MODULE:FUNCTION of a setup function"
    )
    add = parser.add_argument
    add("--m", type=option("bench --m"), nargs="+", default=[2, 4, 8], help="copies per example (default: 2 4 8)")
    add(
        "--variants", nargs="+", metavar="NAME", default=DEFAULT,
        help=f"what to measure besides the standard step, of {', '.join(NAMES)} (default: {' '.join(DEFAULT)})",
    )  # fmt: skip
    cpu, gpu = SIZES["cpu"], SIZES["cuda"]
    for name, what in (
        ("batch_size", "examples per batch"), ("rounds", "rounds of timing"),
        ("train_steps", "training steps before measuring; 0 for a setup function"),
    ):  # fmt: skip
        default = f"default: {cpu[name]}, on a GPU {gpu[name]}"
        add(f"--{name}", type=option(f"bench --{name}"), metavar="N", help=f"{what} ({default})")
    add("--perturb", metavar="YAML", help="'[{name: cutout, length: 16}]' or a name (default: cutout of half the side)")
    add("--input", type=_shape, metavar="C,H,W", help="shape of random data (default: 3,32,32; timm: 3,224,224)")
    add("--num_classes", type=option("bench --num_classes"), metavar="N", help="of random data (default: 10)")
    add("--data", metavar="NAME", help="use images of a data set (see maxup data) instead of random data")
    add("--data.root", dest="root", type=folder, metavar="DIR", help="folder of the data (default: as maxup data says)")
    add_user_code(parser)
    add("--precision", choices=["no", "bf16"], default="no", help="bf16: autocast (default: no)")
    add("--compile", action="store_true", help="compile the network with torch.compile")
    add("--profile", action="store_true", help="also record which kernels take the time of a step")
    add("--step", choices=["eager", "captured"], default="eager", help="captured: run steps as CUDA graphs")
    add("--device", metavar="NAME", help="cpu or cuda (default: cuda if there is one)")
    add("--out", type=new_folder, metavar="DIR", help="folder for bench.json, cost.png and gap.png")
    add_json(parser)
    args = parser.parse_args(argv)
    check_count(parser, "--m", args.m)
    _check_options(parser, args)
    import torch

    from maxup.lab.bench.measure import bench, summarize

    captured = args.step == "captured"
    device = _device(args.device, captured=captured)
    options = {
        "ms": args.m, "names": args.variants, "rounds": args.rounds, "compile": args.compile, "captured": captured,
        "profile": args.profile,
        "train_steps": 0 if args.train_steps is None and _is_setup(args) else args.train_steps,
    }  # fmt: skip

    if args.out:
        for name in FILES:
            check_writable(args.out / name)
    try:
        with free_stdout(args.json):
            progress = partial(say, file=sys.stderr, flush=True)
            result = summarize(bench(_workload(args, device), **options, say=progress))
    except torch.OutOfMemoryError as error:
        raise RunError("the standard step does not fit into memory; use a smaller --batch_size") from error
    if not args.json:
        from maxup.lab.bench.table import show

        show(result)
    if args.out:
        from maxup.lab.bench.plot import plot_cost, plot_gap
        from maxup.lab.storage import atomic_io

        atomic_io.make_folder(args.out)
        files = [args.out / name for name in FILES]
        atomic_io.write_json(files[0], result)
        plot_cost(result, files[1])
        plot_gap(result, files[2])
        if not args.json:
            say(f"\nWritten: bench.json, cost.png and gap.png in {args.out}")
    if args.json:
        say_json(result)
    return 0


def _is_setup(args: argparse.Namespace) -> bool:
    return ":" in (args.network or "")


def _check_options(parser: Parser, args: argparse.Namespace) -> None:
    """Exit with an error if options contradict each other."""
    given = [name for name in FIXED_BY_SETUP if getattr(args, name) is not None]
    names = {name: f"--{name}" for name in given} | {"root": "--data.root"}
    if _is_setup(args) and given:
        parser.error(
            f"{names[given[0]]} has no effect, because {args.network} returns the model and the batch; remove it"
        )
    if (args.network is None) == (args.model_from is None):
        parser.error("give either a network, such as resnet20, or --model_from")
    if args.data and args.data_from:
        parser.error("--data and --data_from both name the data; give one of them")
    if args.root and not args.data:
        parser.error("--data.root has no effect without --data")
    for name in ("input", "num_classes"):
        if name in given and (args.data or args.data_from):
            parser.error(f"--{name} is for random data and has no effect here; remove it")
    for name in args.variants:
        if name not in NAMES:
            parser.error(f"argument --variants: {unknown_name(name, NAMES, 'variant')}")


def _device(name: str | None, *, captured: bool) -> "torch.device":
    """Return the device to measure on."""
    import torch

    found = torch.cuda.device_count()
    name = name or ("cuda" if found else "cpu")
    if name != "cpu" and name not in ("cuda", *(f"cuda:{i}" for i in range(found))):
        raise RecipeError(f"--device must be cpu or cuda, but is {name!r:.60}")
    device = torch.device("cuda", torch.cuda.current_device()) if name == "cuda" and found else torch.device(name)
    if device.type == "cuda" and not found:
        raise RecipeError("--device is cuda, but torch finds no CUDA device; use --device cpu")
    if captured and device.type != "cuda":
        raise RecipeError("--step captured needs a CUDA device; remove it, or run on a GPU")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _workload(args: argparse.Namespace, device: "torch.device") -> "Workload":
    """Build what the arguments describe. The weights are random with seed 0."""
    import torch

    from maxup.lab.bench.workload import from_network, from_setup, load_images, parse_perturb
    from maxup.lab.models.external import is_external

    torch.manual_seed(0)
    if _is_setup(args):
        setup = load_function(args.network, "setup")
        assert setup is not None
        return from_setup(args.network, setup(), device=device, precision=args.precision)
    functions = user_functions(args)
    perturb = None if args.perturb is None else parse_perturb(args.perturb)
    side = 224 if args.network and is_external(args.network) else 32
    return from_network(
        args.network or args.model_from,
        model_from=functions["model_from"],
        images=load_images(args.data, args.root and str(args.root), functions["data_from"]),
        data=args.data or args.data_from or "random",
        shape=args.input or (3, side, side),
        num_classes=args.num_classes or 10,
        batch_size=args.batch_size or SIZES[device.type]["batch_size"],
        perturb=perturb,
        device=device,
        precision=args.precision,
    )


def _shape(text: str) -> tuple[int, ...]:
    """Return the shape that --input gives."""
    parts = text.split(",")
    sides = [int(part) for part in parts if part.strip().isascii() and part.strip().isdecimal() and len(part) < 10]
    if not 1 <= len(parts) <= 4 or len(sides) != len(parts) or not all(side in SIDE for side in sides):
        raise argparse.ArgumentTypeError(f"must be 1 to 4 sizes such as 3,224,224, each {SIDE}, but is {text!r:.60}")
    return tuple(sides)

"""Certify predictions by randomized smoothing."""

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxup.cli.parser import add_checkpoint, add_root, check_count, check_writable, figure_file, output_file, parser_of
from maxup.cli.user_code import add_user_code, load_function, user_functions
from maxup.errors import CertificateError, InterruptedRunError, RunError
from maxup.lab.limits import option as limited
from maxup.lab.output import say

if TYPE_CHECKING:
    from maxup.lab.certify.run import Settings
    from maxup.lab.certify.target import Target
    from maxup.lab.certify.tsv import Row

GROUP = "Trained models"
EXAMPLES = """examples:
  500 images of CIFAR-10, n = 100,000, with the sigma of training:
    maxup certify runs/certify/resnet110-gaussian-maxup/seed-0
  faster, with smaller radii:
    maxup certify runs/smoke/digits-gaussian/seed-0 --n 1000
  an exported model; stop early once these radii are decided:
    maxup certify my-model --sigma 0.25 --radii 0.25 0.5
  your network, which takes pixels in [0, 1]:
    maxup certify --module mine:net --data cifar10 --sigma 0.25
  attack within the certified radii afterwards:
    maxup certify runs/smoke/digits-gaussian/seed-0 --n 1000 --attack
  draw one image with its noisy copies, their classes and the radius:
    maxup certify runs/smoke/digits-gaussian/seed-0 --picture out.png
  a table and a plot of several results:
    maxup certify a.tsv b.tsv --plot certified.png
  several processes that share the images:
    torchrun --nproc_per_node 8 -m -- maxup certify RUN --n 1000
The same command resumes. The columns are idx label predict radius correct time
hash. A prediction of -1 is an abstention.
"""


def main(argv: Sequence[str]) -> int:
    """Certify images, or show certificates."""
    parser = _parser()
    args = parser.parse_args(argv)
    check_count(parser, "--radii", args.radii)
    tables = [path for path in args.what if path.suffix == ".tsv" or path.is_file()]
    show_only = bool(tables) and len(tables) == len(args.what) and args.module is None
    _check_effect(parser, args, show_only=show_only)
    if show_only:
        from maxup.lab.certify.tsv import read

        _show({path: read(path) for path in tables}, args.plot)
        return 0
    if len(args.what) + (args.module is not None) != 1:
        parser.error("give one folder, or --module; or TSV files to show")
    _certify(args)
    return 0


def _parser() -> argparse.ArgumentParser:
    about = (
        "Certify test images by randomized smoothing. Within the certified radius (l2, for pixels in [0, 1]) no "
        "perturbation changes the prediction of the smoothed classifier, except with probability alpha."
    )
    parser = parser_of("certify", about, EXAMPLES)
    option = parser.add_argument
    option(
        "what",
        nargs="*",
        type=Path,
        metavar="TARGET",
        help="folder of a run or of an exported model; or TSV files to show",
    )
    option("--module", metavar="MODULE:FUNCTION", help="your network: a function that returns it")
    option("--data", metavar="NAME", help="with --module: certify the test images of this data set")
    add_checkpoint(parser)
    option(
        "--sigma", type=limited("certify --sigma"), help="standard deviation of the noise (default: that of training)"
    )
    option(
        "--n0", type=limited("certify --n0"), default=100, metavar="N",
        help="noisy copies that choose the class (default: 100)",
    )  # fmt: skip
    option(
        "--n", type=limited("certify --n"), default=100_000, metavar="N",
        help="noisy copies that bound its probability (default: 100000)",
    )  # fmt: skip
    option(
        "--alpha", type=limited("certify --alpha"), default=0.001,
        help="probability of a wrong certificate (default: 0.001)",
    )  # fmt: skip
    option(
        "--batch", type=limited("certify --batch"), default=2000, metavar="N",
        help="noisy copies per forward pass (default: 2000)",
    )  # fmt: skip
    option(
        "--dtype", choices=["float32", "bfloat16", "float16"], default="float32",
        help="precision of the network (default: float32)",
    )  # fmt: skip
    option("--seed", type=limited("certify --seed"), default=0, metavar="N", help="seed of the noise (default: 0)")
    option("--adaptive", action="store_true", help="stop early once an abstention is certain")
    option(
        "--radii", type=partial(_number, "certify --radii"), nargs="+", metavar="R",
        help="adaptive: stop early once these radii are decided; put this after the folder",
    )  # fmt: skip
    images = parser.add_mutually_exclusive_group()
    images.add_argument(
        "--skip", type=limited("certify --skip"), metavar="N", help="certify every N-th image (default: 20)"
    )
    images.add_argument("--all", action="store_true", help="certify every image")
    option("--max", type=limited("certify --max"), metavar="N", help="certify at most N images")
    option("--eager", action="store_true", help="GPU: do not compile or capture the network")
    option("--out", type=output_file, metavar="FILE", help="TSV file (default: certified-SIGMA.tsv in the run folder)")
    option(
        "--attack", type=partial(_number, "certify --attack"), nargs="?", const=1.0, metavar="F",
        help="then attack at F times the radii (default: 1); put this after the folder",
    )  # fmt: skip
    option("--picture", type=figure_file, metavar="FILE", help="only draw how smoothing classifies one image")
    option("--image", type=limited("certify --image"), default=0, metavar="IDX", help="image of --picture (default: 0)")
    option("--plot", type=figure_file, metavar="FILE", help="plot certified accuracy over the radius: PNG, SVG or PDF")
    add_root(parser)
    add_user_code(parser, recorded=True)
    return parser


def _check_effect(parser: argparse.ArgumentParser, args: argparse.Namespace, *, show_only: bool) -> None:
    """Exit with an error if an option has no effect together with the others."""
    given = {name for name, value in vars(args).items() if value != parser.get_default(name)} - {"what"}
    of_many = {"adaptive", "radii", "skip", "all", "max", "out", "attack", "plot"}
    without_effect = {
        "when TSV files are shown": given - {"plot"} if show_only else set(),
        "with --picture, which certifies one image": given & of_many if args.picture else set(),
        "without --picture": set() if args.picture else given & {"image"},
        "with --module": given & {"model_from", "checkpoint"} if args.module else set(),
        "with --data": given & {"data_from"} if args.module and args.data else set(),
    }
    for when, names in without_effect.items():
        for name in sorted(names):
            parser.error(f"--{'data.root' if name == 'root' else name} has no effect {when}; remove it")


def _number(name: str, text: str) -> float:
    """Parse a number of an option that takes several or none, which would also take a folder that follows it."""
    try:
        float(text)
    except ValueError:
        if text.replace(",", "").replace(".", "").isdigit():
            raise argparse.ArgumentTypeError(f"{text!r} is not a number; separate numbers by spaces") from None
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number; put the folder before the options: maxup certify {text} ..."
        ) from None
    number: float = limited(name)(text)
    return number


def _certify(args: argparse.Namespace) -> None:
    from maxup.lab.certify.run import Settings, certify
    from maxup.lab.certify.tsv import read
    from maxup.lab.results.certificates import check_step, write_certified_metrics
    from maxup.lab.storage.atomic_io import check_regular
    from maxup.rng import process_rank

    target = _target(args)
    sigma = args.sigma if args.sigma is not None else target.sigma
    if sigma is None:
        raise RunError(
            f"{target.name} was not trained with Gaussian noise on pixels in [0, 1] (perturb gaussian with "
            "model.normalize true); set the noise with --sigma"
        )
    settings = Settings(
        sigma=sigma, n0=args.n0, n=args.n, alpha=args.alpha, batch_size=args.batch, dtype=args.dtype, seed=args.seed,
        adaptive=args.adaptive or args.radii is not None, radii=tuple(args.radii) if args.radii else None,
        fast=not args.eager,
    )  # fmt: skip
    if args.picture is not None:
        _picture(args, target, settings)
        return
    path = args.out or (args.what[0] if args.what else Path()) / f"certified-{sigma:g}.tsv"
    if args.plot is not None and args.plot.resolve() == path.resolve():
        raise RunError(f"--plot {args.plot} would overwrite the certificates in that file; give another file")
    if args.what and args.out is None and args.checkpoint == "last":
        check_step(args.what[0] / "run.json", target.step)
    if args.out is None:  # the file in the run folder, and those of several processes
        for file in (path, *path.parent.glob(f"{escape(path.name)}.rank-*")):
            check_regular(file)
    for file in (path, args.plot):
        if file is not None:
            _prepare(file)
    indices = list(range(0, len(target.images), 1 if args.all else args.skip or 20))[: args.max]
    try:
        rows = certify(target, settings, indices, path, say=partial(say, flush=True))
    except KeyboardInterrupt:
        raise InterruptedRunError(f"interrupted; the same command resumes (certificates: {path})") from None
    if process_rank() != 0:
        return
    header = read(path)[0] | {"asked": len(rows)}  # show only these images, even if the file has more
    _show({path: (header, rows)}, args.plot)
    say(f"Certificates: {path}")
    if settings.adaptive:
        used, most = sum(row.samples or 0 for row in rows), settings.n * len(rows)
        say(f"Adaptive sampling used {used:,} of {most:,} samples: {100 * (1 - used / most):.1f} % saved.")
    if args.what and (args.what[0] / "run.json").is_file():
        unchanged = write_certified_metrics(
            args.what[0] / "run.json", rows, settings, trained=target.sigma, images=len(target.images),
            step=target.step, last=args.checkpoint == "last", own_file=args.out is None,
        )  # fmt: skip
        if unchanged:
            say(unchanged)
    if args.attack is not None:
        from maxup.lab.certify.attack import attack_certified

        report, unchanged_file = attack_certified(target, settings, rows, path, args.attack)
        if unchanged_file is not None:
            say(f"{unchanged_file} is unchanged: it already covers more images.")
        say(f"At {args.attack:g} times the certified radii: {report}.")


def _target(args: argparse.Namespace) -> "Target":
    from maxup.lab.certify.target import load_target, target_from_module
    from maxup.lab.data import load_data
    from maxup.lab.data.user_data import from_user

    build, functions = load_function(args.module, "--module"), user_functions(args)
    if build is None:
        if args.data is not None:
            raise RunError("--data is for --module; a run or an exported model is certified on its test images")
        return load_target(args.what[0], args.checkpoint, root=args.root, **functions)
    if functions["data_from"] is not None:
        data = from_user(functions["data_from"]())
    elif args.data is not None:
        data = load_data(args.data, args.root)
    else:
        raise RunError("--module needs images; set a data set with --data, or your images with --data_from")
    return target_from_module(args.module, build, data, args.data_from or args.data)


def _prepare(path: Path) -> None:
    """Create the folder of a file, before hours of work, or raise a RunError if the file cannot be written."""
    check_writable(path)
    path.parent.mkdir(parents=True, exist_ok=True)


def _show(tables: "Mapping[Path, tuple[dict[str, Any], list[Row]]]", plot: Path | None) -> None:
    from maxup.lab.report.certified import draw, show

    for path, (_, rows) in tables.items():
        if not rows:
            raise CertificateError(f"{path} has no certificates yet")
    named = [(header | {"file": str(path)}, rows) for path, (header, rows) in tables.items()]
    show(named)
    if plot is not None:
        _prepare(plot)
        draw(plot, named)
        say(f"Written: {plot}")


def _picture(args: argparse.Namespace, target: "Target", settings: "Settings") -> None:
    from maxup.lab.certify.run import find_device, make_smooth
    from maxup.lab.report.smoothing import picture

    if not args.image < len(target.images):
        raise RunError(f"there is no image {args.image}; choose 0 to {len(target.images) - 1}")
    _prepare(args.picture)
    smooth, x = make_smooth(target, settings, find_device()), target.pixels([args.image])
    (certificate,) = smooth.certify_many(
        x, settings.n0, settings.n, settings.alpha, settings.batch_size, indices=[args.image]
    )
    counts = smooth.counts(x[0], 1000, settings.batch_size, index=args.image)
    label = int(target.images.y[args.image])
    picture(args.picture, x[0], counts, certificate, sigma=settings.sigma, label=label, classes=target.images.classes)
    say(json.dumps({"image": args.image, "label": label, "predict": certificate.predict, "radius": certificate.radius}))
    say(f"Written: {args.picture}")

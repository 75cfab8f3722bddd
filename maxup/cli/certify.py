"""`maxup certify`: certify a network by randomized smoothing, or show what certificates amount to."""

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxup.cli.parser import add_root, check_count, parser_of
from maxup.cli.show import FORMATS
from maxup.cli.user_code import add_own, own, own_of
from maxup.lab.limits import option as limited
from maxup.lab.output import say

if TYPE_CHECKING:
    from maxup.lab.certify.run import Settings
    from maxup.lab.certify.target import Target
    from maxup.lab.certify.tsv import Row

EXAMPLES = """examples:
  maxup certify runs/certify/resnet110-gaussian-maxup/seed-0          500 images, n = 100,000, sigma of the training
  maxup certify runs/smoke/digits-gaussian/seed-0 --n 1000            quicker, with shorter radii
  maxup certify my-model --sigma 0.25 --radii 0.25 0.5                stop early where these radii are settled
  maxup certify --module mine:net --data cifar10 --sigma 0.25         your own network, which takes pixels in [0, 1]
  maxup certify runs/smoke/digits-gaussian/seed-0 --n 1000 --attack   then attack within the certified radii
  maxup certify runs/smoke/digits-gaussian/seed-0 --picture out.png   one image, its noisy copies, classes and radius
  maxup certify a.tsv b.tsv --plot certified.png                      a table and a plot of several
  torchrun --nproc_per_node 8 -m -- maxup certify RUN --n 1000        processes share the images
The same command goes on where it stopped. Columns: idx label predict radius correct time hash; -1 is an abstention.
"""


def main(argv: Sequence[str]) -> int:
    """Certify."""
    about = (
        "Certify test images by randomized smoothing: within its radius no perturbation (l2, of pixels in [0, 1]) "
        "changes the smoothed classifier's answer, except with probability alpha."
    )
    parser = parser_of("certify", about, EXAMPLES)
    add_root(parser)
    add_own(parser)
    option = parser.add_argument
    option("what", nargs="*", type=Path, help="folder of a run or of an exported model; or TSV files, to be shown")
    option("--module", metavar="MODULE:FUNCTION", help="your network: a function that returns it; it takes pixels")
    option("--data", help="certify on the test images of this data set (with --module)")
    option("--checkpoint", choices=["best", "last"], default="last", help="of a run (default: last)")
    option("--sigma", type=limited("certify --sigma"), help="the noise's standard deviation (default: the training's)")
    option("--n0", type=limited("certify --n0"), default=100, help="noisy copies that choose the class (default: 100)")
    option(
        "--n",
        type=limited("certify --n"),
        default=100_000,
        help="noisy copies that bound its probability (default: 100000)",
    )
    option(
        "--alpha",
        type=limited("certify --alpha"),
        default=0.001,
        help="probability of a wrong certificate (default: 0.001)",
    )
    option(
        "--batch", type=limited("certify --batch"), default=2000, help="noisy copies of a forward pass (default: 2000)"
    )
    option("--dtype", choices=["float32", "bfloat16", "float16"], default="float32", help="precision of the network")
    option("--seed", type=limited("certify --seed"), default=0, help="decides the noise (default: 0)")
    option("--adaptive", action="store_true", help="look early, and stop where an abstention is settled")
    option(
        "--radii",
        type=partial(_number, "certify --radii"),
        nargs="+",
        metavar="R",
        help="adaptive: stop where these are settled; after the folder",
    )
    images = parser.add_mutually_exclusive_group()
    images.add_argument("--skip", type=limited("certify --skip"), help="certify every SKIP-th image (default: 20)")
    images.add_argument("--all", action="store_true", help="certify every image")
    option("--max", type=limited("certify --max"), help="certify no more than this many")
    option("--eager", action="store_true", help="on a GPU, neither compile nor capture the network")
    option("--out", type=_file, help="the TSV (default: certified-SIGMA.tsv in the run's folder)")
    option(
        "--attack", type=partial(_number, "certify --attack"), nargs="?", const=1.0, metavar="F",
        help="then attack at F times the radii (default: 1); after the folder",
    )  # fmt: skip
    option("--picture", type=_drawing, metavar="FILE", help="only draw what smoothing does to one image")
    option("--image", type=limited("certify --image"), default=0, metavar="IDX", help="which one (default: 0)")
    option("--plot", type=_drawing, metavar="FILE", help="plot certified accuracy against the radius: PNG, SVG or PDF")
    args = parser.parse_args(argv)
    check_count(parser, "--radii", args.radii)
    tables = [path for path in args.what if path.suffix == ".tsv" or path.is_file()]
    showing = bool(tables) and len(tables) == len(args.what) and args.module is None
    _refuse_idle(parser, args, showing=showing)
    if showing:
        from maxup.lab.certify.tsv import read

        _show({path: read(path) for path in tables}, args.plot)
        return 0
    if len(args.what) + (args.module is not None) != 1:
        parser.error("give one folder, or --module; or TSV files to be shown")
    _certify(args)
    return 0


def _refuse_idle(parser: argparse.ArgumentParser, args: argparse.Namespace, *, showing: bool) -> None:
    """Options that would do nothing."""
    given = {name for name, value in vars(args).items() if value != parser.get_default(name)} - {"what"}
    of_many = {"adaptive", "radii", "skip", "all", "max", "out", "attack", "plot"}
    idle = {
        "does nothing where TSV files are shown": given - {"plot"} if showing else set(),
        "does nothing with --picture, which certifies one image": given & of_many if args.picture else set(),
        "does nothing without --picture": set() if args.picture else given & {"image"},
        "does nothing with --module": given & {"model_from", "checkpoint"} if args.module else set(),
        "does nothing with --data": given & {"data_from"} if args.module and args.data else set(),
    }
    for why, names in idle.items():
        for name in sorted(names):
            parser.error(f"--{'data.root' if name == 'root' else name} {why}; leave it out")


def _file(text: str) -> Path:
    """A file to be written."""
    if not text or Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is {'a folder' if text else 'no name'}; name a file")
    return Path(text)


def _drawing(text: str) -> Path:
    path = _file(text)
    if path.suffix.lower() not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} must end in {', '.join(FORMATS)}")
    return path


def _number(name: str, text: str) -> float:
    """Of options that take some numbers or none: a folder behind them is taken for one."""
    try:
        float(text)
    except ValueError:
        if text.replace(",", "").replace(".", "").isdigit():
            raise argparse.ArgumentTypeError(f"{text!r} is no number; separate numbers by spaces") from None
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number; the folder comes before the options: maxup certify {text} ..."
        ) from None
    number: float = limited(name)(text)
    return number


def _certify(args: argparse.Namespace) -> None:
    from maxup.errors import InterruptedRunError, RunError
    from maxup.lab.certify.run import Settings, certify
    from maxup.lab.certify.tsv import read
    from maxup.lab.results.certificates import record
    from maxup.lab.storage.atomic_io import check_regular

    target = _target(args)
    sigma = args.sigma if args.sigma is not None else target.sigma
    if sigma is None:
        raise RunError(f"{target.name} was not trained with Gaussian noise on pixels; say which noise with --sigma")
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
        raise RunError(f"--plot {args.plot} would replace the certificates in that file; name another")
    if args.what and args.out is None and args.checkpoint == "last":
        _refuse_another_step(args.what[0] / "run.json", target.step)
    if args.out is None:  # a run's own file, and those that several processes left
        for file in (path, *path.parent.glob(f"{escape(path.name)}.rank-*")):
            check_regular(file)
    for file in (path, args.plot):
        if file is not None:
            _try_place(file)
    indices = list(range(0, len(target.images), 1 if args.all else args.skip or 20))[: args.max]
    try:
        rows = certify(target, settings, indices, path, say=partial(say, flush=True))
    except KeyboardInterrupt:
        raise InterruptedRunError("interrupted; the same command goes on where it stopped") from None
    if _rank():
        return
    done = read(path)[0] | {"asked": len(rows)}  # these images are shown, whatever else is in the file
    _show({path: (done, rows)}, args.plot)
    if settings.adaptive:
        used, most = sum(row.samples or 0 for row in rows), settings.n * len(rows)
        say(f"Adaptive sampling took {used:,} of {most:,} samples: {100 * (1 - used / most):.1f} % saved.")
    if args.what and (args.what[0] / "run.json").is_file():
        why = record(
            args.what[0] / "run.json", rows, settings, trained=target.sigma, images=len(target.images),
            step=target.step, last=args.checkpoint == "last", own_file=args.out is None,
        )  # fmt: skip
        if why:
            say(why)
    if args.attack is not None:
        _attack(args, target, settings, rows, path)


def _target(args: argparse.Namespace) -> "Target":
    from maxup.errors import RunError
    from maxup.lab.certify.target import of_folder, of_module
    from maxup.lab.data import load_data
    from maxup.lab.data.images import Images, from_arrays

    build, mine = own(args.module, "--module"), own_of(args)
    if build is None:
        if args.data is not None:
            raise RunError("--data is for --module: a run or an exported model is certified on its own test images")
        return of_folder(args.what[0], args.checkpoint, root=args.root, **mine)
    found: Any = None
    if mine["data_from"] is not None:
        found = from_arrays(mine["data_from"]())
    elif args.data is not None:
        found = load_data(args.data, args.root)
    else:
        raise RunError("--module needs images: name a data set with --data, or your own with --data_from")
    train, test = found if isinstance(found, tuple) else (None, None)
    images = train if test is None else test
    if not isinstance(images, Images) or not len(images):
        raise RunError(f"{args.data or args.data_from} has no test images in memory to certify on; choose other data")
    if test is None and not _rank():
        say(f"{args.data or args.data_from} has no test part: all its images are certified, also those of a training")
    return of_module(args.module, build, images)


def _refuse_another_step(record: Path, step: int | None) -> None:
    """A finished run is certified at the step it finished with, whatever else its folder holds."""
    from maxup.errors import RunError
    from maxup.lab.storage.atomic_io import read_json

    try:
        finished = read_json(record)["steps"]
    except FileNotFoundError:  # not finished, or an export
        return
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise RunError(f"{record} is not the record of a run; restore it, or name another file with --out") from None
    if finished != step:
        raise RunError(
            f"{record} is of step {finished}, but the newest checkpoint that can be read is of step {step}; finish the "
            "training with the same maxup train command, or name another file with --out"
        )


def _try_place(path: Path) -> None:
    """See that a file can be written, before hours of work."""
    from tempfile import TemporaryFile

    from maxup.errors import RunError, error_message

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error_message(error)}; choose another place") from None


def _show(tables: "Mapping[Path, tuple[dict[str, Any], list[Row]]]", plot: Path | None) -> None:
    from maxup.errors import CertificateError
    from maxup.lab.report.certified import draw, show

    for path, (_, rows) in tables.items():
        if not rows:
            raise CertificateError(f"{path} has no certificates yet")
    found = [(about | {"file": str(path)}, rows) for path, (about, rows) in tables.items()]
    show(found)
    if plot is not None:
        _try_place(plot)
        draw(plot, found)
        say(f"Written: {plot}")


def _attack(args: argparse.Namespace, target: "Target", settings: "Settings", rows: "list[Row]", path: Path) -> None:
    from dataclasses import asdict

    from maxup.lab.certify.attack import check
    from maxup.lab.certify.run import find_device, make_smooth
    from maxup.lab.certify.tsv import read
    from maxup.lab.environment import environment
    from maxup.lab.storage.atomic_io import write_json

    smooth = make_smooth(target, settings, find_device())
    x = target.pixels([row.idx for row in rows])
    factor = f"-{args.attack:g}" if args.attack != 1 else ""
    out = path.with_name(f"{path.name.removesuffix('.tsv')}.attack{factor}.json")
    about = {"model": read(path)[0]["model"], "sigma": settings.sigma, "images": len(rows)}
    how = {"factor": args.attack, "n": min(settings.n, 10_000), "alpha": settings.alpha, "seed": settings.seed}
    report = check(
        smooth, x, [row.predict for row in rows], [row.radius for row in rows], batch_size=settings.batch_size, **how
    )
    if _holds_more(out, about | how):
        say(f"{out} stays as it is: it is of more images.")
    else:
        write_json(out, about | how | asdict(report) | {"environment": environment()})
    say(f"At {args.attack:g} times the certified radii: {report}.")


def _holds_more(report: Path, about: dict[str, Any]) -> bool:
    """Whether an earlier report of the same network and settings is of more images."""
    from maxup.lab.storage.atomic_io import read_json

    try:
        before = read_json(report)
    except (OSError, ValueError):
        return False
    match before:
        case {"images": int(images)}:
            same = all(before.get(key) == value for key, value in about.items() if key != "images")
            return same and images > about["images"]
    return False


def _picture(args: argparse.Namespace, target: "Target", settings: "Settings") -> None:
    from maxup.errors import RunError
    from maxup.lab.certify.run import find_device, make_smooth
    from maxup.lab.report.smoothing import picture

    if not args.image < len(target.images):
        raise RunError(f"there is no image {args.image}: they are 0 to {len(target.images) - 1}")
    _try_place(args.picture)
    smooth, x = make_smooth(target, settings, find_device()), target.pixels([args.image])
    (found,) = smooth.certify_many(
        x, settings.n0, settings.n, settings.alpha, settings.batch_size, indices=[args.image]
    )
    counts = smooth.counts(x[0], 1000, settings.batch_size, index=args.image)
    label = int(target.images.y[args.image])
    picture(args.picture, x[0], counts, found, sigma=settings.sigma, label=label, classes=target.images.classes)
    say(json.dumps({"image": args.image, "label": label, "predict": found.predict, "radius": found.radius}))
    say(f"Written: {args.picture}")


def _rank() -> int:
    import os

    return int(os.environ.get("RANK", 0))

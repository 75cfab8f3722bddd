"""Draw copies of training images, their losses, and the worst."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from maxup.cli.parser import add_run, figure_file, open_from, parser_of
from maxup.errors import RunError
from maxup.lab.limits import option
from maxup.lab.output import say

GROUP = "Trained models"
EXAMPLES = """examples:
  maxup show runs/cifar10/resnet110-cutout-maxup/seed-0
  maxup show runs/cifar10/resnet110-cutout-maxup/seed-0 --images 8 --m 10 \\
    --batch 3 --out copies.svg
"""


def main(argv: Sequence[str]) -> int:
    """Draw copies of training images."""
    parser = parser_of(
        "show",
        "Draw the m copies of a few training images with the loss of each. A frame marks the worst copy, which MaxUp "
        "trains on. Copies are drawn and scored as in training: in a full batch, with the network in training mode.",
        EXAMPLES,
    )
    parser.add_argument("run", type=Path, help="run folder, as written by maxup train")
    parser.add_argument(
        "--images",
        type=option("show --images"),
        default=6,
        metavar="N",
        help="number of images, of different classes (default: 6)",
    )
    parser.add_argument(
        "--m", type=option("show --m"), metavar="M", help="copies per image, 2 or more (default: the recipe's)"
    )
    parser.add_argument(
        "--batch", type=option("show --batch"), default=0, metavar="N", help="take the images from batch N (default: 0)"
    )
    parser.add_argument(
        "--out",
        type=figure_file,
        metavar="FILE",
        help="PNG, SVG or PDF file, which is replaced if it exists (default: copies.png, or a new copies-N.png)",
    )
    add_run(parser)
    args = parser.parse_args(argv)
    from maxup.lab.recipes.schema import num_copies
    from maxup.lab.report.contact_sheet import contact_sheet, copies_of_run

    run = open_from(args, task="vision")
    m = args.m or num_copies(run.recipe)
    if not run.recipe.perturb:
        raise RunError(f"{args.run} has no copies to show: the recipe's perturb is empty")
    if m < 2:
        raise RunError(
            f"{args.run} was trained with m = 1, so there is nothing to select; set the number of copies with --m"
        )
    originals, copies, names = copies_of_run(run, m, batch=args.batch, images=args.images)
    if len(names) < args.images:
        say(f"The batch has only {len(names)} images.")
    for name, scores, winner in zip(names, copies.scores.T.tolist(), copies.winner.tolist(), strict=True):
        say(f"{name:<12} " + "  ".join(f"{s:.4f}{'*' if i == winner else ' '}" for i, s in enumerate(scores)))
    title = f"MaxUp trains on the worst of {m} random copies of each image (framed)"
    out = args.out or _unused(Path("copies.png"))
    out.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(out, originals, copies, names=names, title=title)
    say(f"Written: {out}. * marks the worst copy, which is framed.")
    return 0


def _unused(path: Path) -> Path:
    """Return the path, or with the next free number if it exists."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return path if not path.exists() else next(new for new in numbered if not new.exists())

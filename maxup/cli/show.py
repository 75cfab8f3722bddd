"""Draw copies of training images, their losses, and the worst."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxup.cli.parser import add_accept, add_checkpoint, add_root, parser_of
from maxup.cli.user_code import add_user_code, user_functions
from maxup.lab.limits import option
from maxup.lab.output import say

if TYPE_CHECKING:
    from torch import Tensor

GROUP = "Trained models"
EXAMPLES = """examples:
  maxup show runs/cifar10/resnet110-cutout-maxup/seed-0
  maxup show runs/cifar10/resnet110-cutout-maxup/seed-0 --images 8 --m 10 \\
    --batch 3 --out copies.svg
"""
FORMATS = (".png", ".svg", ".pdf")


def main(argv: Sequence[str]) -> int:
    """Draw copies of training images."""
    parser = parser_of(
        "show",
        "Draw the m copies of a few training images with the loss of each. A frame marks the worst copy, which MaxUp "
        "trains on. Copies are drawn and scored as in training: in a full batch, with the network in training mode.",
        EXAMPLES,
    )
    parser.add_argument("run", help="run folder, as written by maxup train")
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
    add_checkpoint(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("copies.png"),
        metavar="FILE",
        help="PNG, SVG or PDF file (default: copies.png)",
    )
    add_root(parser)
    add_accept(parser)
    add_user_code(parser)
    args = parser.parse_args(argv)
    if args.out.suffix not in FORMATS:
        parser.error(f"--out {args.out}: must end in {', '.join(FORMATS)}")
    _refuse_recipe(args.run)
    from itertools import islice

    import torch

    from maxup.errors import RunError
    from maxup.lab.recipes.build import build_perturbation
    from maxup.lab.recipes.objectives import override_objective, resolve_objective
    from maxup.lab.recipes.schema import num_copies
    from maxup.lab.report.contact_sheet import contact_sheet, draw_copies
    from maxup.lab.train.runs import open_run
    from maxup.objectives.maxup import MaxUp

    run = open_run(
        Path(args.run),
        args.checkpoint,
        task="vision",
        root=args.root,
        accept_changed_data=args.accept_changed_data,
        **user_functions(args),
    )
    task = run.task
    settings: dict[str, Any] = resolve_objective(override_objective(run.recipe.objective, {"name": "maxup"}))
    if not run.recipe.perturb:
        raise RunError(f"{args.run} has no copies to show: the recipe's perturb is empty")
    m, images = args.m or num_copies(run.recipe), task.train
    if m < 2:
        raise RunError(f"{args.run} was trained with m = 1, so there is nothing to choose; set the copies with --m")
    if not 0 <= args.batch < len(task.loader):
        raise RunError(f"there is no batch {args.batch}: an epoch has batches 0 to {len(task.loader) - 1}")
    _, x, y = next(islice(iter(task.loader), args.batch, None))
    x = task.prepare(x)
    if task.augment is not None:
        x, y = task.augment(x, y, generator=task.generator)
    perturbation = build_perturbation(run.recipe.perturb, len(images.classes), **task.pixels)
    scoring = {key: settings[key] for key in ("norm", "chunk_size", "score")}
    objective = MaxUp(perturbation, m=m, generator=task.objective.generator, **scoring)
    copies = draw_copies(objective, run.model.train(), x, y)
    classes = y if y.ndim == 1 else y.argmax(1)  # (B,)
    chosen = different(classes, args.images)
    if len(chosen) < args.images:
        say(f"The batch has only {len(chosen)} images.")
    mean, std = torch.tensor([*task.pixels.values()], device=x.device)[:, :, None, None]  # (C, 1, 1) each
    shown = copies.only(chosen, scale=std, shift=mean)
    names = [images.classes[int(c)] for c in classes[chosen]]
    score = "loss" if settings["score"] == "loss" else "KL"
    for name, scores, winner in zip(names, shown.scores.T.tolist(), shown.winner.tolist(), strict=True):
        say(f"{name:<12} " + "  ".join(f"{s:.4f}{'*' if i == winner else ' '}" for i, s in enumerate(scores)))
    title = f"MaxUp trains on the worst of {m} random copies of each image (framed)"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(args.out, x[chosen] * std + mean, shown, names=names, title=title, score=score)
    say(f"Written: {args.out}. * marks the worst copy, which is framed.")
    return 0


def different(classes: "Tensor", n: int) -> "Tensor":
    """Return the indices of n examples, one of each class first.

    Example:
        >>> import torch
        >>> different(torch.tensor([3, 3, 1, 3, 2]), 4)
        tensor([0, 2, 4, 1])
    """
    import torch

    seen: set[int] = set()
    new, again = list[int](), list[int]()
    for i, c in enumerate(classes.tolist()):
        (again if c in seen else new).append(i)
        seen.add(c)
    return torch.tensor((new + again)[:n], device=classes.device)


def _refuse_recipe(name: str) -> None:
    from maxup.errors import RecipeError
    from maxup.lab.recipes.load import list_recipes

    if not Path(name).is_dir() and (name in list_recipes() or name.endswith((".yaml", ".yml"))):
        raise RecipeError(
            f"{name} is a recipe, but this command needs a trained network; train it first (maxup train {name}), then "
            "give the run folder"
        )

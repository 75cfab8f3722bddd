"""`maxup train RECIPE`: train, or go on with a run that stopped."""

import os
from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import add_accept, new_folder, parser_of
from maxup.cli.user_code import add_own, own_of
from maxup.lab.limits import option
from maxup.lab.output import say

EXAMPLES = """examples:
  maxup train digits/mlp-gaussian-maxup
  maxup train digits/mlp-gaussian-maxup --objective.m 8 --seed 1 --epochs 30
  maxup train mine.yaml --out runs/mine
  maxup train mine.yaml --data_from mine:data --model_from mine:net      your own code, as docs/command.md says
  torchrun --nproc_per_node 2 -m maxup train digits/mlp-gaussian-maxup
Any setting of the recipe can be given as an option; --print_config shows them all.
"""


def main(argv: Sequence[str]) -> int:
    """Train."""
    parser = parser_of("train", "Train a recipe. The same command goes on where it stopped.", EXAMPLES)
    parser.add_argument("recipe", help="name of a recipe (see maxup ls), or a YAML file")
    parser.add_argument("--out", type=new_folder, help="the run's folder (default: runs/RECIPE/seed-N)")
    parser.add_argument("--print_config", action="store_true", help="print the recipe with all settings, and stop")
    parser.add_argument(
        "--save_every",
        type=option("train --save_every"),
        default=60,
        metavar="SECONDS",
        help="between checkpoints (default: 60)",
    )
    parser.add_argument(
        "--trackers", default="tensorboard", help="Accelerate's trackers by comma, or none (default: tensorboard)"
    )
    parser.add_argument("--certify", action="store_true", help="then certify the test images, as maxup certify does")
    add_accept(parser)
    add_own(parser)
    args, overrides = parser.parse_known_args(argv)
    from maxup.errors import RecipeError
    from maxup.lab.recipes.load import parse_recipe, run_name
    from maxup.lab.recipes.schema import noise_of

    recipe = parse_recipe(args.recipe, overrides)
    if args.certify and recipe.task == "language":
        raise RecipeError(f"--certify is for images, and {args.recipe} is of text; leave it out")
    if args.certify and noise_of(recipe) is None:
        wanted = "model.normalize true and perturb [{name: gaussian, sigma: ...}]"
        raise RecipeError(f"{args.recipe} cannot be certified as it is: it needs {wanted}")
    if args.certify and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise RecipeError("--certify is for one process; under torchrun train first, then use maxup certify")
    if args.print_config:
        from dataclasses import asdict

        import yaml

        say(yaml.safe_dump(asdict(recipe), sort_keys=False), end="")
        return 0
    root = None if args.data_from else recipe.data.root
    if root is not None and not Path(root).expanduser().is_dir():
        raise RecipeError(f"data.root: there is no folder {root}; correct it, or leave it out for the usual places")
    from maxup.lab.train.loop import train

    out = args.out or Path("runs") / run_name(args.recipe) / f"seed-{recipe.seed}"
    trackers = [] if args.trackers == "none" else args.trackers.split(",")
    result = train(
        recipe,
        out,
        save_every=args.save_every,
        trackers=trackers,
        accept_changed_data=args.accept_changed_data,
        **own_of(args),
    )
    from maxup.lab.progress import describe

    measured = {
        k: v for k, v in result["last"].items() if k not in ("epoch", "skipped_images") and "certified" not in k
    }
    epoch = f"after epoch {result['last']['epoch']}"
    if recipe.optim.restarts:
        epoch = f"at epoch {result['best']['epoch']}, the best of {result['last']['epoch']}"
    if os.environ.get("RANK", "0") == "0":  # of several processes, one tells
        say(f"{out}: {describe(measured)}  {epoch}, in {result['seconds']:.1f} s", flush=True)
    if args.certify:
        from maxup.cli.certify import main as certify

        named = [(f"--{option}", value) for option in ("model_from", "data_from") if (value := getattr(args, option))]
        return certify([str(out), *(word for pair in named for word in pair)])
    return 0

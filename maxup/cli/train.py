"""Train a recipe. The same command resumes."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from maxup.cli.parser import add_accept, new_folder, parser_of
from maxup.cli.user_code import add_user_code, user_functions
from maxup.errors import RecipeError
from maxup.lab.limits import option
from maxup.lab.output import say

if TYPE_CHECKING:
    from maxup.lab.recipes.schema import Recipe

GROUP = "Training"
EXAMPLES = """examples:
  maxup train digits/mlp-gaussian-maxup
  maxup train digits/mlp-gaussian-maxup --objective.m 8 --seed 1 --epochs 30
  maxup train mine.yaml --out runs/mine
  maxup train mine.yaml --out runs/mine --epochs 90 --extend
  maxup train mine.yaml --data_from mine:data --model_from mine:net
  torchrun --nproc_per_node 2 -m maxup train digits/mlp-gaussian-maxup
"""


def main(argv: Sequence[str]) -> int:
    """Train a recipe."""
    parser = parser_of("train", "Train a recipe. The same command resumes.", EXAMPLES)
    if {"-h", "--help"} & set(argv):
        from maxup.lab.recipes.settings import help_text

        parser.epilog = f"{EXAMPLES}\n{help_text()}"
    parser.add_argument("recipe", help="name of a recipe (see maxup ls), or a YAML file")
    parser.add_argument("--out", type=new_folder, metavar="DIR", help="run folder (default: runs/RECIPE/seed-N)")
    parser.add_argument("--print_config", action="store_true", help="print all settings of the recipe and exit")
    parser.add_argument(
        "--save_every",
        type=option("train --save_every"),
        default=60,
        metavar="SECONDS",
        help="time between checkpoints (default: 60)",
    )
    parser.add_argument(
        "--trackers",
        default="tensorboard",
        metavar="NAMES",
        help="trackers of Accelerate, separated by commas, or none (default: tensorboard)",
    )
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--extend", action="store_true", help="continue a run in --out that has fewer epochs")
    again.add_argument("--restart", action="store_true", help="start over; an earlier run in --out is renamed")
    parser.add_argument("--certify", action="store_true", help="run maxup certify after training")
    add_accept(parser)
    add_user_code(parser)
    args, overrides = parser.parse_known_args(argv)
    from maxup.lab.recipes.load import parse_recipe

    recipe = parse_recipe(args.recipe, overrides)
    if args.certify:
        _check_certifiable(args.recipe, recipe)
    if args.print_config:
        import yaml

        say(yaml.safe_dump(asdict(recipe), sort_keys=False), end="")
        return 0
    from maxup.lab.train.api import run_folder
    from maxup.lab.train.loop import train

    out = args.out or run_folder(args.recipe, recipe)
    result = train(
        recipe,
        out,
        name=args.recipe,
        extend=args.extend,
        restart=args.restart,
        save_every=args.save_every,
        trackers=[] if args.trackers == "none" else args.trackers.split(","),
        accept_changed_data=args.accept_changed_data,
        **user_functions(args),
    )
    from maxup.rng import process_rank

    if process_rank() == 0:
        from maxup.lab.progress import format_metrics

        metrics = {k: v for k, v in result["last"].items() if "certified" not in k}
        epoch = f"after epoch {result['last']['epoch']}"
        if recipe.optim.restarts:
            epoch = f"at epoch {result['best']['epoch']}, the best of {result['last']['epoch']}"
        steps = result.get("training_seconds", result["seconds"]) - result.get("compile_seconds", 0.0)  # older records
        took = f"in {result['seconds']:.1f} s, of which {steps:.1f} s are training steps"
        say(f"{out}: {format_metrics(metrics)}  {epoch}, {took}", flush=True)
    if args.certify:
        from maxup.cli.certify import main as certify

        options = [(f"--{name}", value) for name in ("model_from", "data_from") if (value := getattr(args, name))]
        return certify([str(out), *(word for pair in options for word in pair)])
    return 0


def _check_certifiable(name: str, recipe: "Recipe") -> None:
    from maxup.lab.recipes.schema import gaussian_sigma

    if recipe.task == "language":
        raise RecipeError(f"--certify is for images, but {name} is a recipe for text; remove it")
    if gaussian_sigma(recipe) is None:
        needed = "model.normalize true and perturb [{name: gaussian, sigma: ...}]"
        raise RecipeError(f"--certify needs noise on pixels: set {needed} in {name}")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise RecipeError("--certify runs in one process; under torchrun, train first and then run maxup certify")

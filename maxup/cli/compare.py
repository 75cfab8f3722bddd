"""Train a recipe with and without MaxUp over several seeds."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from maxup.cli.parser import add_json, check_count, free_stdout, new_folder, parser_of
from maxup.cli.user_code import add_user_code, user_functions
from maxup.errors import InterruptedRunError
from maxup.lab.limits import option
from maxup.lab.output import say, say_json

GROUP = "Training"
ONE_PROCESS = True
EXAMPLES = """examples:
  maxup compare digits/mlp-gaussian-maxup --seeds 5
  maxup compare digits/mlp-gaussian-maxup --seeds 8 --m 1 4 20 --no_equal_time
  maxup compare digits/mlp-gaussian-maxup --seeds 5 --objectives average easiest
  maxup compare digits/mlp-gaussian-maxup --seeds 2 --epochs 5 --out out/try
  maxup compare smoke/digits-gaussian-maxup --seeds 3 --certify 100 \\
    --objectives smoothadv
  maxup compare cifar10/resnet110-cutout-maxup --seeds 3 --robustness \\
    --images 1000 --eval_every 10
  maxup compare smoke/resnet20-cutmix --seeds 3 --fast
  maxup compare text/awd_lstm-embedding_dropout-maxup --seeds 3
The same command resumes. Settings of the recipe are options too: see
maxup train --help.
"""


def main(argv: Sequence[str]) -> int:
    """Compare a recipe with its baseline."""
    parser = parser_of(
        "compare",
        "Train a recipe with m = 1 and with MaxUp over several seeds, at equal epochs and at equal measured time. "
        "Measures the time, and the accuracy on clean inputs, on the worst of 20 copies and under attack, and the norm "
        "of the input gradient. The last two are left out for token ids. For a language model: the test perplexity. "
        "Prints a table and writes compare.json and compare.png.",
        EXAMPLES,
    )
    parser.add_argument("recipe", help="name of a recipe (see maxup ls), or a YAML file")
    parser.add_argument(
        "--seeds", type=option("compare --seeds"), required=True, metavar="N", help="number of seeds, at least 2"
    )
    parser.add_argument(
        "--m",
        type=option("compare --m"),
        nargs="+",
        help="values of m to compare with m = 1 (default: the recipe's, or 4)",
    )
    parser.add_argument(
        "--objectives", nargs="+", default=[],
        choices=["average", "easiest", "adversarial", "smoothadv", "hard_examples"],
        metavar="NAME", help="also compare these objectives: average and easiest (of m copies), adversarial, "
        "smoothadv (2 steps), hard_examples",
    )  # fmt: skip
    parser.add_argument(
        "--fast", action="store_true", help="also train every m with cheaper, approximate scoring (objective.fast)"
    )
    parser.add_argument(
        "--out", type=new_folder, metavar="DIR", help="folder for results and runs (default: runs/compare/RECIPE)"
    )
    parser.add_argument(
        "--no_equal_time", action="store_true", help="do not train m = 1 and SmoothAdv for as long as MaxUp takes"
    )
    parser.add_argument(
        "--certify",
        type=option("compare --certify"),
        metavar="IMAGES",
        help="also certify this many test images per run",
    )
    parser.add_argument(
        "--certify_n",
        type=option("compare --certify_n"),
        metavar="N",
        help="noisy copies per certified image (default: 10000)",
    )
    parser.add_argument(
        "--certify_sigma",
        type=option("compare --certify_sigma"),
        metavar="SIGMA",
        help="standard deviation of their noise (default: that of training)",
    )
    parser.add_argument(
        "--robustness",
        action="store_true",
        help="also measure the accuracy on corrupted images, and the calibration; needs images",
    )
    parser.add_argument(
        "--images",
        type=option("compare --images"),
        metavar="N",
        help="limit all metrics except the clean accuracy and certificates to N test examples (default: all)",
    )
    parser.add_argument(
        "--radius",
        type=option("compare --radius"),
        metavar="R",
        help="radius of the PGD attack, of adversarial training and of SmoothAdv, in the units of the network's input "
        "(default: 0.5, or that of an adversarial recipe)",
    )
    parser.add_argument(
        "--attack_norm",
        choices=["2", "inf"],
        help="norm of the PGD attack and of adversarial training (default: 2, or the recipe's)",
    )
    parser.add_argument(
        "--attack_steps", type=option("compare --attack_steps"), metavar="N",
        help="their gradient steps (default: 10, or the recipe's)",
    )  # fmt: skip
    parser.add_argument("--progress", action="store_true", help="show the progress of every run")
    add_user_code(parser)
    add_json(parser)
    args, overrides = parser.parse_known_args(argv)
    check_count(parser, "--m", args.m)
    for name in ("certify_n", "certify_sigma"):
        if getattr(args, name) is not None and args.certify is None:
            parser.error(f"--{name} needs --certify IMAGES")
    from maxup.lab.recipes.load import parse_recipe, run_name

    recipe = parse_recipe(args.recipe, overrides)
    from maxup.lab.experiments.certification import Certification
    from maxup.lab.experiments.compare import Measurement, compare, make_attack
    from maxup.lab.recipes.schema import gaussian_sigma
    from maxup.lab.report.comparison import plot, text

    name = run_name(args.recipe)
    out = args.out or Path("runs") / "compare" / name
    norm = None if args.attack_norm is None else float(args.attack_norm)
    attack = make_attack(recipe, radius=args.radius, p=norm, steps=args.attack_steps)
    certification = None
    if args.certify:
        sigma = None if args.certify_sigma == gaussian_sigma(recipe) else args.certify_sigma
        certification = Certification(args.certify, args.certify_n or Certification.n, sigma)
    measurement = Measurement(attack, certification, robustness=args.robustness, images=args.images)
    with free_stdout(args.json):
        try:
            result = compare(
                recipe, out, seeds=args.seeds, ms=args.m or [recipe.objective.get("m", 4)], objectives=args.objectives,
                measurement=measurement, fast=args.fast, equal_time=not args.no_equal_time,
                say=partial(say, flush=True), quiet=not args.progress, **user_functions(args),
            )  # fmt: skip
        except KeyboardInterrupt:  # outside of training, which has its own message
            raise InterruptedRunError("interrupted; finished runs are kept, and the same command resumes") from None
        say(text(result))
        plot(result, out / "compare.png", name)
        say(f"\nWritten: {out / 'compare.json'} and {out / 'compare.png'}")
    if args.json:
        say_json(result)
    return 0

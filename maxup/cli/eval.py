"""Evaluate a checkpoint of a run."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maxup.cli.parser import add_json, add_run, free_stdout, open_from, parser_of
from maxup.lab.limits import option
from maxup.lab.output import say, say_json

GROUP = "Trained models"
ONE_PROCESS = True
EXAMPLES = """examples:
  maxup eval runs/digits/mlp-gaussian-maxup/seed-0
  maxup eval runs/digits/mlp-gaussian-maxup/seed-0 --checkpoint best --json
  maxup eval runs/cifar10/resnet110-cutout-maxup/seed-0 --robustness
  maxup eval runs/digits/mlp-gaussian-maxup/seed-0 --robustness --images 200
  maxup eval runs/ptb/awd_lstm-embedding_dropout/seed-0 --dynamic
  maxup eval runs/text/awd_lstm-embedding_dropout/seed-0 --data.root my_folder
"""


def main(argv: Sequence[str]) -> int:
    """Evaluate a checkpoint."""
    about = "Print loss and accuracy, or perplexity, of a checkpoint of a run on its validation and test splits."
    parser = parser_of("eval", about, EXAMPLES)
    parser.add_argument("run", type=Path, help="run folder, as written by maxup train")
    more = parser.add_mutually_exclusive_group()
    more.add_argument(
        "--dynamic", action="store_true", help="text: also run dynamic evaluation; the same command resumes it"
    )
    more.add_argument(
        "--robustness",
        action="store_true",
        help="images: also measure accuracy under corruptions and a PGD attack, and calibration; writes "
        "robustness.json to the run folder",
    )
    parser.add_argument(
        "--images", type=option("eval --images"), metavar="N", help="with --robustness: use at most N test images"
    )
    add_run(parser)
    add_json(parser)
    args = parser.parse_args(argv)
    if args.images is not None and not args.robustness:
        parser.error("--images has no effect without --robustness; remove it")
    with free_stdout(args.json):
        found = _evaluate(args)
    if args.json:
        say_json(found)
    return 0


def _evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Evaluate the checkpoint, print the metrics, and return them as a document."""
    from maxup.lab.progress import format_metric
    from maxup.lab.train.runs import evaluate

    run = open_from(args, task="language" if args.dynamic else "vision" if args.robustness else None)
    splits = evaluate(run)
    document = {"run": str(args.run), "checkpoint": args.checkpoint, "step": run.step, "splits": splits}
    say(f"{args.run}, {args.checkpoint} checkpoint, step {run.step}")
    for name, found in splits.items():
        words = "perplexity" in found
        named = {"top5_accuracy": "top-5", "flip_accuracy": "with flip"}
        more = "".join(f"  {text} {100 * found[key]:.2f} %" for key, text in named.items() if key in found)
        metric = "perplexity" if words else "accuracy"
        score = f"{metric} {format_metric(metric, found[metric])}{more}"
        unit = "words" if words else "examples"
        say(f"  {name:<10}  {score}  loss {found['loss']:.4f}  ({found['count']:,} {unit})")
    if skipped := sorted(run.task.skipped()):
        document["skipped"] = skipped
        count = f"{len(skipped)} image{'s' if len(skipped) > 1 else ''}"
        say(f"  skipped {count} that cannot be read, such as {skipped[0]}")
    if args.dynamic:
        from maxup.lab.tasks.dynamic_evaluation import dynamic_evaluation
        from maxup.lab.train.signals import stop_on_signal

        with stop_on_signal() as should_stop:
            found = dynamic_evaluation(run.model, run.task.text, args.run, should_stop=should_stop)
        document["dynamic"] = found
        say(f"  dynamic evaluation, lr {found['dynamic_lr']:g}, decay {found['dynamic_decay']:g}:")
        for name in ("validation", "test"):
            say(f"  {name:<10}  perplexity {format_metric('perplexity', found[f'{name}_dynamic_perplexity'])}")
    if args.robustness:
        from maxup.lab.report.robustness import show
        from maxup.lab.robustness.measure import measure, save

        found = measure(run, images=args.images)
        document["robustness"] = found
        show(found)
        path, written = save(found, args.run, checkpoint=args.checkpoint, step=run.step)
        say(f"Written: {path}" if written else f"{path} is unchanged: it already covers more images.")
    return document

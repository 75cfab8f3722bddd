"""`maxup eval RUN`: loss and accuracy of a run's checkpoint on its splits."""

from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import parser_of

EXAMPLES = """examples:
  maxup eval runs/digits/mlp-gaussian-maxup/seed-0
  maxup eval runs/digits/mlp-gaussian-maxup/seed-0 --checkpoint best
"""


def main(argv: Sequence[str]) -> int:
    """Evaluate."""
    parser = parser_of("eval", "Evaluate a run's checkpoint on its splits, as training did.", EXAMPLES)
    parser.add_argument("run", type=Path, help="folder of a run, as maxup train made it")
    parser.add_argument("--checkpoint", choices=["best", "last"], default="last", help="which one (default: last)")
    args = parser.parse_args(argv)
    from maxup.engine.runs import evaluate, open_run

    run = open_run(args.run, args.checkpoint)
    print(f"{args.run}, {args.checkpoint} checkpoint, step {run.step}")
    for name, found in evaluate(run).items():
        top5 = f"  top-5 {100 * found['top5_accuracy']:.2f} %" if "top5_accuracy" in found else ""
        accuracy, loss = f"accuracy {100 * found['accuracy']:.2f} %{top5}", f"loss {found['loss']:.4f}"
        print(f"  {name:<10}  {accuracy}  {loss}  ({found['count']} images)")
    if skipped := sorted(run.task.skipped()):
        print(f"  images skipped because they cannot be read: {len(skipped)}, such as {skipped[0]}")
    return 0

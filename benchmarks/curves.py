"""Collect the learning curves of a comparison in one file: a line per run.

maxup compare digits/mlp-gaussian-maxup --seeds 20 --m 4 --objectives average easiest --out out
python -m benchmarks.curves out results/curves/digits-cause.jsonl
"""

import argparse
import json
from pathlib import Path
from typing import Any

METRICS = ("test_accuracy", "test_loss", "validation_perplexity")  # of images and rows, and of text


def curve(run: Path) -> dict[str, Any]:
    """Return the metrics of a run after every epoch, rounded to five decimals."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curves = {metric: [round(line[metric], 5) for line in lines if metric in line] for metric in METRICS}
    about = {"row": run.parent.name, "seed": int(run.name.removeprefix("seed-"))}
    return about | {metric: values for metric, values in curves.items() if values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", type=Path, help="folder that maxup compare wrote")
    parser.add_argument("out", type=Path, help="file to write")
    args = parser.parse_args()
    curves = [curve(file.parent) for file in args.comparison.glob("runs/*/seed-*/metrics.jsonl")]
    if not curves:
        parser.error(f"{args.comparison} has no runs/*/seed-*/metrics.jsonl; give the --out of maxup compare")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("".join(f"{json.dumps(c)}\n" for c in sorted(curves, key=lambda c: (c["row"], c["seed"]))))


if __name__ == "__main__":
    main()

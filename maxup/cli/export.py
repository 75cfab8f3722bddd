"""Write the model of a run for maxup.load."""

from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import add_run, open_from, parser_of
from maxup.lab.output import say

GROUP = "Trained models"
ONE_PROCESS = True
EXAMPLES = """examples:
  maxup export runs/digits/mlp-gaussian-maxup/seed-0 my-model
  python -c 'import maxup; print(maxup.load("my-model").config["metrics"])'
"""


def main(argv: Sequence[str]) -> int:
    """Export the model of a run."""
    parser = parser_of(
        "export",
        "Write the model of a run as model.safetensors and config.json, to share it. maxup.load(DIR) loads it. Loading "
        "does not execute code from the files.",
        EXAMPLES,
    )
    parser.add_argument("run", type=Path, help="run folder, as written by maxup train")
    parser.add_argument("dir", type=Path, help="new or empty folder")
    add_run(parser)
    args = parser.parse_args(argv)
    from contextlib import suppress
    from dataclasses import asdict

    from maxup.lab.models.export import save
    from maxup.lab.storage.atomic_io import read_json

    run = open_from(args)
    metrics = run.metrics
    with suppress(OSError, ValueError, TypeError, KeyError):  # run.json of a finished run has more metrics
        record = read_json(args.run / "run.json")
        metrics = record["last"] if record["steps"] == run.step else metrics
    config = {"recipe": asdict(run.recipe), "task": run.task.identity, "metrics": metrics, "step": run.step}
    save(args.dir, run.model, config | run.task.description(), run.sources.get("model_from"))
    name = run.task.identity.get("model_from")
    argument = f", model_from={name.replace(':', '.')}" if name else ""
    say(f'{args.dir}: now  maxup.load("{args.dir}"{argument})')
    return 0

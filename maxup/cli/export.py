"""`maxup export RUN DIR`: a run's model as safetensors and config.json, which `maxup.load(DIR)` reads."""

from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import add_accept, add_root, parser_of
from maxup.cli.user_code import add_own, own_of
from maxup.lab.output import say

EXAMPLES = """examples:
  maxup export runs/digits/mlp-gaussian-maxup/seed-0 my-model
  python -c 'import maxup; print(maxup.load("my-model").config["metrics"])'
"""


def main(argv: Sequence[str]) -> int:
    """Export."""
    parser = parser_of(
        "export",
        "Write a run's model to share it: model.safetensors and config.json. maxup.load(DIR) reads it "
        "back; no code runs on load.",
        EXAMPLES,
    )
    parser.add_argument("run", type=Path, help="folder of a run, as maxup train made it")
    parser.add_argument("dir", type=Path, help="where to; must be new or empty")
    parser.add_argument("--checkpoint", choices=["best", "last"], default="last", help="which one (default: last)")
    add_root(parser)
    add_accept(parser)
    add_own(parser)
    args = parser.parse_args(argv)
    from contextlib import suppress
    from dataclasses import asdict

    from maxup.lab.models.export import save
    from maxup.lab.storage.atomic_io import read_json
    from maxup.lab.train.runs import open_run

    theirs = own_of(args)
    run = open_run(args.run, args.checkpoint, root=args.root, accept_changed_data=args.accept_changed_data, **theirs)
    metrics = run.recorded
    with suppress(OSError, ValueError, TypeError, KeyError):  # a finished run has measured more
        record = read_json(args.run / "run.json")
        metrics = record["last"] if record["steps"] == run.step else metrics
    config = {"recipe": asdict(run.recipe), "task": run.task.identity, "metrics": metrics, "step": run.step}
    save(args.dir, run.model, config | run.task.description(), theirs["model_from"])
    own = f", model_from={args.model_from.replace(':', '.')}" if args.model_from else ""
    say(f'{args.dir}: now  maxup.load("{args.dir}"{own})')
    return 0

"""Write the model of a run, with a model card."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from maxup.cli.parser import add_run, open_from, parser_of
from maxup.lab.output import say

GROUP = "Trained models"
ONE_PROCESS = True
EXAMPLES = """examples:
  maxup export runs/digits/mlp-gaussian-maxup/seed-0 my-model
  maxup export runs/digits/mlp-gaussian-maxup/seed-0 my-model --onnx \\
    --push_to_hub me/my-model
  python -c 'import maxup; print(maxup.load("my-model").config["metrics"])'
"""


def main(argv: Sequence[str]) -> int:
    """Export the model of a run."""
    parser = parser_of(
        "export",
        "Write the model of a run as model.safetensors and config.json, with a model card (README.md), to share it. "
        "maxup.load(DIR) loads it. Loading does not execute code from the files.",
        EXAMPLES,
    )
    parser.add_argument("run", type=Path, help="run folder, as written by maxup train")
    parser.add_argument("dir", type=Path, help="new or empty folder")
    parser.add_argument("--onnx", action="store_true", help="also write model.onnx, for image networks")
    parser.add_argument(
        "--push_to_hub", metavar="REPO", help="also upload the folder to the Hugging Face Hub; a new REPO is private"
    )
    add_run(parser)
    args = parser.parse_args(argv)
    from maxup.lab.models.card import model_card
    from maxup.lab.models.export import save
    from maxup.lab.models.hub import check_repo, push_to_hub
    from maxup.lab.models.onnx import FILE, check_onnx, save_onnx
    from maxup.lab.results.files import read_run

    if args.onnx:
        check_onnx()
    if args.push_to_hub is not None:
        check_repo(args.push_to_hub)
    run = open_from(args, task="vision" if args.onnx else None)
    metrics, record = run.metrics, None
    with suppress(OSError, ValueError, TypeError, KeyError):  # run.json of a finished run has more metrics
        found = read_run(args.run / "run.json")
        metrics, record = (found["last"], found) if found["steps"] == run.step else (metrics, None)
    config = {"recipe": asdict(run.recipe), "task": run.task.identity, "metrics": metrics, "step": run.step}
    config |= run.task.description()
    model = save(args.dir, run.model, config, run.sources.get("model_from"), card=model_card(config, record))
    if args.onnx:
        save_onnx(args.dir / FILE, model, config["shape"])
    name = run.task.identity.get("model_from")
    argument = f", model_from={name.replace(':', '.')}" if name else ""
    say(f'{args.dir}: now  maxup.load("{args.dir}"{argument})')
    if args.push_to_hub is not None:
        say(push_to_hub(args.dir, args.push_to_hub))
    return 0

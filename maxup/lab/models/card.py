"""The model card of an exported model: README.md, with the numbers of the run's record and nothing else."""

from collections.abc import Mapping
from typing import Any

from maxup.errors import first_names
from maxup.lab.output import one_line
from maxup.lab.progress import HIDDEN, format_metric


def model_card(config: Mapping[str, Any], record: Mapping[str, Any] | None = None) -> str:
    """Return a model card in the format of the Hugging Face Hub.

    Args:
        config: What `maxup.load` returns as `model.config`.
        record: What `read_run` returns for the run.json of the run, if it belongs to the same step.
    """
    recipe, epoch = config["recipe"], config["metrics"].get("epoch")
    model = (config.get("task") or {}).get("model_from") or recipe["model"]["name"]
    lines = [
        "---", "library_name: maxup", f"pipeline_tag: {_tag(config)}", "tags:", "- maxup", "---", "",
        f"# {_plain(model)} on {_plain(_data(config))}", "",
        f"Trained with [maxup](https://arxiv.org/abs/2002.09024), objective {_plain(_objective(recipe))}.", "",
        "| metric | value |", "|---|---|",
        *(f"| {_plain(name)} | {value} |" for name, value in _metrics(config)), "",
        f"The weights are from step {config['step']}, with seed {recipe['seed']}."
        + ("" if epoch is None else f" The metrics are from epoch {_plain(epoch)}."),
        "",
        *_environment(record),
        "## How to use it", "",
        *_usage(config), "",
        "`config.json` has every setting of the training recipe.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _tag(config: Mapping[str, Any]) -> str:
    if "words" in config:
        return "text-generation"
    if len(config["shape"]) > 1:
        return "image-classification"
    return "tabular-classification" if config["mean"] else "text-classification"


def _plain(text: object) -> str:
    """Return a name on one line, in which Markdown has no meaning."""
    return one_line(str(text)).translate({ord(c): f"\\{c}" for c in "|`*<>[]"})


def _data(config: Mapping[str, Any]) -> str:
    return str((config.get("task") or {}).get("data_from") or config["recipe"]["data"]["name"])


def _objective(recipe: Mapping[str, Any]) -> str:
    objective = recipe["objective"]
    return str(objective["name"]) + (f", m = {objective['m']}" if "m" in objective else "")


def _metrics(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the metrics as text. Certified accuracies have a radius in their name."""
    metrics = {k: v for k, v in config["metrics"].items() if isinstance(v, int | float) and k not in HIDDEN}
    kinds = {key: "accuracy" if "accuracy" in key else key for key in metrics}
    return [(key.replace("_", " "), format_metric(kinds[key], value)) for key, value in metrics.items()]


def _environment(record: Mapping[str, Any] | None) -> list[str]:
    """Return where and how long the run was trained, as far as it is recorded."""
    if record is None:
        return []
    environment, seconds = record["environment"], record.get("training_seconds")
    versions = environment.get("versions")
    version = versions.get("torch") if isinstance(versions, dict) else None
    parts = [
        f"on {_plain(environment['hardware'])}" if environment.get("hardware") else "",
        f"with PyTorch {_plain(version)}" if version else "",
        f"in {seconds:,.0f} seconds" if isinstance(seconds, int | float) else "",
    ]
    return [f"It was trained {', '.join(part for part in parts if part)}.", ""] if any(parts) else []


def _usage(config: Mapping[str, Any]) -> list[str]:
    custom = (config.get("task") or {}).get("model_from")
    argument = ", model_from=YOUR_FUNCTION" if custom else ""
    lines = ["```python", "import maxup", "", f'model = maxup.load("FOLDER"{argument})', "```", ""]
    if custom:
        lines += [f"`YOUR_FUNCTION` is `{_plain(custom)}`, which builds the network.", ""]
    if "words" in config:
        return [*lines, f"It takes tokens (B, T), indices into the {len(config['words']):,} words in `config.json`."]
    mean, std, top, shape = (config[key] for key in ("mean", "std", "top", "shape"))
    logits = f"It returns the logits of {len(config['classes'])} classes, whose names are in `config.json`."
    if len(shape) == 1:
        columns = config.get("columns")
        order = f" in the order of `columns` in `config.json` ({_plain(first_names(columns))})" if columns else ""
        what, values = f"rows of {shape[0]} numbers{order}", "`mean` and `std` in `config.json`"
    else:
        what, values = f"images of {' x '.join(map(str, shape))} values", f"mean {mean} and std {std} per channel"
    if not mean:
        what = f"token ids (B, {shape[0]})"
    elif config["recipe"]["model"].get("normalize"):
        what += " in [0, 1]"
    else:
        what += f", normalized as `({'x' if top == 1 else f'x / {top}'} - mean) / std` with {values}"
    return [*lines, f"It takes {what}. {logits}"]

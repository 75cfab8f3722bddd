"""Compare objectives: train one recipe with several objectives and seeds, for equal epochs and for equal time.

A seed sets the initial weights and the order of the examples for every objective. With `data.train_size` or
`data.validation`, or if the data have no test set, it also selects the training images. Then all rows of a seed share
them, and differences are paired. Otherwise runs with the same seed are not pairs, and intervals are Welch's.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from maxup.errors import RunError
from maxup.lab.certify.target import check_certifiable
from maxup.lab.data.images import evenly_spaced
from maxup.lab.environment import environment
from maxup.lab.experiments.certification import Certification, certify_run, check_noise
from maxup.lab.experiments.measure import measure, merge_last_single
from maxup.lab.recipes.build import build_perturbation
from maxup.lab.recipes.difference import difference
from maxup.lab.recipes.objectives import warmup_note
from maxup.lab.recipes.resolve import override_objective, resolve_objective
from maxup.lab.recipes.schema import Recipe
from maxup.lab.results.comparison import FAST, METRICS, TIME_OF, Runs, gain, is_maxup, summary
from maxup.lab.results.replace import replace_result
from maxup.lab.robustness.measure import average, check_images
from maxup.lab.robustness.measure import measure as measure_robustness
from maxup.lab.storage.atomic_io import read_json
from maxup.lab.train.checkpointing import START_OVER
from maxup.lab.train.loop import train
from maxup.lab.train.runs import build_task, evaluate, open_run
from maxup.objectives.adversarial import Adversarial

BASELINE = "m = 1"  # name of the baseline's row
COPIES = 20  # copies per example, for the accuracy on the worst copy
SMOOTHADV_STEPS = 2  # gradient steps of the cheapest SmoothAdv of its authors' grid


@dataclass
class Attack:
    """The PGD attack on the trained models."""

    radius: float
    """Radius of the ball, in units of the network's input."""
    p: float = 2
    """Norm of the ball: 2 or inf."""
    steps: int = 10
    """Gradient steps."""

    def build(self, clip: tuple[float, float] | None = None) -> Adversarial:
        """Build the objective that runs the attack."""
        return Adversarial(self.radius, p=self.p, steps=self.steps, clip=clip, norm="running")


@dataclass(frozen=True)
class Measurement:
    """What is measured on every run besides its time."""

    attack: Attack
    certification: Certification | None = None
    """How to certify the run. None: not at all."""
    robustness: bool = False
    """Whether to also measure on corrupted images, and the calibration."""
    images: int | None = None
    """Measure all but the clean accuracy and certificates on at most this many test examples. None: on all."""


def make_attack(recipe: Recipe, **changes: float | None) -> Attack:
    """Return the attack of a recipe that trains adversarially, otherwise the default one. None keeps a value.

    Example:
        >>> make_attack(Recipe(), radius=0.25, steps=None)
        Attack(radius=0.25, p=2.0, steps=10)
    """
    own = recipe.objective if recipe.objective["name"] == "adversarial" else "adversarial"
    settings = {key: value for key, value in resolve_objective(own).items() if key != "name"}
    return Attack(**settings | {key: value for key, value in changes.items() if value is not None})


def rows(
    recipe: Recipe, ms: list[int], objectives: list[str], attack: Attack, *, fast: bool = False
) -> dict[str, Recipe]:
    """Return the recipes to compare, by name of the row. The baseline with m = 1 is first.

    Example:
        >>> list(rows(Recipe(), [1, 4], ["average", "easiest"], Attack(0.5)))
        ['m = 1', 'm = 4', 'average of 4', 'easiest of 4']
        >>> list(rows(Recipe(), [4], [], Attack(0.5), fast=True))
        ['m = 1', 'm = 4', 'm = 4, fast']
    """
    objective = resolve_objective(recipe.objective)

    def row(name: str, **arguments: Any) -> Recipe:
        return replace(recipe, objective=resolve_objective(override_objective(objective, {"name": name, **arguments})))

    found = {BASELINE: row("standard")}
    more = [m for m in ms if m > 1]
    found |= {f"m = {m}": row("maxup", m=m) for m in more}
    if fast:
        found |= {f"m = {m}{FAST}": row("maxup", m=m, fast=True) for m in more}
    found |= {f"average of {m}": row("average", m=m) for m in more if "average" in objectives}
    found |= {f"easiest of {m}": row("maxup", m=m, score="easiest") for m in more if "easiest" in objectives}
    if "adversarial" in objectives:
        found[f"PGD, radius {attack.radius:g}"] = row("adversarial", **asdict(attack))
    if "smoothadv" in objectives:
        found[f"SmoothAdv, radius {attack.radius:g}"] = row("smoothadv", radius=attack.radius, steps=SMOOTHADV_STEPS)
    if "hard_examples" in objectives:
        hard = row("hard_examples")
        found[f"hardest {100 * hard.objective['keep']:g} %"] = hard
    if objective["name"] not in ("standard", "maxup", *objectives):
        raise RunError(
            f"maxup compare needs a standard or maxup recipe, but the objective is {objective['name']!r}; average, "
            "easiest, adversarial, smoothadv and hard_examples can be added with --objectives"
        )
    if objective.get("score") == "easiest":
        raise RunError("objective.score=easiest is a control; remove it, and add the row with --objectives easiest")
    if fast and objective.get("fast"):
        raise RunError("--fast compares fast=True with exact scoring, but objective.fast is true; remove one of them")
    if len(found) == 1:
        raise RunError("there is nothing to compare with m = 1; give a number above 1 with --m, or use --objectives")
    return found


def compare(
    recipe: Recipe,
    folder: Path,
    *,
    seeds: int,
    ms: list[int],
    objectives: list[str],
    measurement: Measurement,
    fast: bool = False,
    equal_time: bool = True,
    say: Callable[[str], Any] = print,
    quiet: bool = True,
    **user_code: Callable[..., Any] | None,
) -> dict[str, Any]:
    """Train and measure every row with every seed. Finished runs in the folder are not trained again.

    Args:
        recipe: The recipe. Its seed is the first seed.
        folder: Folder for compare.json and for the runs, as `runs/ROW/seed-N`.
        seeds: Number of seeds, at least 2.
        ms: Copies per example, one MaxUp row each. The baseline with m = 1 is always included.
        objectives: Further objectives: "average", "easiest", "adversarial", "smoothadv", "hard_examples".
        measurement: What to measure on every run. Its attack is also that of the adversarial rows.
        fast: Whether to also train every MaxUp row with `fast=True`.
        equal_time: Whether to also train the baseline, and SmoothAdv, for as long as each MaxUp row takes.
        say: Called with one line per run.
        quiet: Whether to hide the progress of each training.
        user_code: `model_from` and `data_from`, as in `train`.

    Returns:
        The content of compare.json.
    """
    planned = rows(recipe, ms, objectives, measurement.attack, fast=fast)
    task = _check(planned, measurement, **user_code)
    numbers = list(range(recipe.seed, recipe.seed + seeds))
    say(f"{len(planned) * seeds} runs in {folder / 'runs'}{', then runs at equal time' if equal_time else ''}")
    if note := warmup_note(recipe):
        say(note)
    here = environment()
    width = max(map(len, planned)) + (len(f"{TIME_OF}m = 10{FAST if fast else ''}") if equal_time else 0)
    places = set[Path]()  # of runs of this call

    def run(name: str, row: Recipe, seed: int) -> dict[str, float]:
        place = folder / "runs" / _slug(name, row, recipe) / f"seed-{seed}"
        before = "  (trained before)" if place not in places and _finished(replace(row, seed=seed), place) else ""
        places.add(place)
        try:
            metrics, trained_on = run_once(replace(row, seed=seed), place, measurement, quiet=quiet, **user_code)
        except RunError as error:
            raise RunError(str(error).replace(START_OVER, f"remove {folder}")) from None  # one run is not enough
        if other := [k for k in ("hardware", "threads") if trained_on.get(k) != here[k]]:
            say(f"note: {place} was trained in another environment ({', '.join(other)}), so its time is not comparable")
        say(f"seed {seed}  {name:<{width}}  {_line(metrics)}{before}")
        return metrics

    paired = task.seed_selects_data
    runs: Runs = {name: [] for name in planned}
    for seed in numbers:  # interleave the rows, so that a slow machine affects all of them
        for name, row in planned.items():
            runs[name].append(run(name, row, seed))
    equal: dict[str, dict[str, Any]] = {}
    for name in filter(is_maxup, planned) if equal_time else ():
        for baseline in (n for n, row in planned.items() if row.objective["name"] in ("standard", "smoothadv")):
            pairs = zip(runs[name], runs[baseline], strict=True)
            ratio = median(ours["seconds"] / theirs["seconds"] for ours, theirs in pairs)  # one slow run has no effect
            epochs = max(1, round(ratio * recipe.epochs))
            timed = f"{baseline}{TIME_OF}{name}"
            runs[timed] = [run(timed, replace(planned[baseline], epochs=epochs), seed) for seed in numbers]
            equal[timed] = {"ratio": ratio, "epochs": epochs, "gain": gain(runs[name], runs[timed], paired=paired)}
    result = {
        "format": "maxup-compare",
        "version": 1,
        "recipe": asdict(recipe),
        "task": task.identity,
        "seeds": numbers,
        "copies": COPIES,
        "attack": asdict(measurement.attack),
        "certification": measurement.certification and measurement.certification.record(),
        "images": None if measurement.images is None else min(measurement.images, len(task.test)),
        "equal_time": equal,
        "paired": paired,
        "summary": summary(runs, paired=paired),
        "runs": runs,
        "environment": here,
    }
    replace_result(folder / "compare.json", result, say)
    return result


def run_once(
    recipe: Recipe, folder: Path, measurement: Measurement, *, quiet: bool = True, **user_code: Any
) -> tuple[dict[str, float], dict[str, Any]]:
    """Train a recipe unless its run is finished, and measure the last weights on the test images.

    Returns:
        The metrics, and the environment of the training.
    """
    settings: dict[str, Any] = {"save_best": False, "quiet": quiet, **user_code}
    finished = _finished(recipe, folder) or train(recipe, folder, **settings)
    about = {"seed": recipe.seed, "epochs": recipe.epochs}
    time = {"seconds": finished["training_seconds"] - finished.get("compile_seconds", 0.0)}
    if recipe.task == "language":
        perplexities = {name: finished["last"][name] for name in METRICS if name in finished["last"]}
        return about | perplexities | time, finished["environment"]
    run = open_run(folder, "last", task="vision", root=recipe.data.root, **user_code)
    task, images = run.task, measurement.images
    test = task.evaluation["test"]
    if images is not None and images < len(task.test):
        chosen = task.test.subset(evenly_spaced(len(task.test), images))
        test = chosen.loader(recipe.batch_size, training=False, seed=0, device=task.generator.device)
    batches = merge_last_single((task.prepare(x), y) for _, x, y in test)
    drawn = build_perturbation(recipe.perturb, len(task.train.classes), **task.pixels)
    built = measurement.attack.build(clip=task.clip)  # pixels stay in [0, 1]
    measured = measure(run.model, batches, drawn, copies=COPIES, attack=built, seed=recipe.seed)
    if images is not None:
        measured["clean"] = 100 * evaluate(run)["test"]["accuracy"]
    if measurement.robustness:
        found = measure_robustness(run, images=images, attack=False, quiet=True)
        measured["corrupted"] = 100 * found["corrupted"]["accuracy"]
        for kind, levels in found["corruptions"].items():
            measured[f"corrupted_{kind}"] = 100 * average(levels)["accuracy"]
        measured |= {name: found["clean"][name] for name in ("nll", "ece")}
    if measurement.certification is not None:
        measured |= certify_run(folder, recipe, measurement.certification, **user_code)
    return about | measured | time, finished["environment"]


def _check(planned: dict[str, Recipe], measurement: Measurement, **user_code: Any) -> Any:
    """Return the task of the last row, or raise an error if a row cannot be trained or measured."""
    recipe, certification = planned[BASELINE], measurement.certification
    if recipe.task == "language" and (certification or measurement.robustness or measurement.images is not None):
        raise RunError(
            "the recipe trains a language model, but --certify, --robustness and --images need a classifier; remove "
            "these options"
        )
    if certification is not None:
        check_noise(recipe)
    for row in planned.values():
        task = build_task(row, **user_code)
    if certification is not None:
        check_certifiable(task.test, task.identity["data_from"] or recipe.data.name)
    if measurement.robustness:
        check_images(task.test)
        if not task.test.in_unit_range:
            raise RunError("robustness needs pixels in [0, 1], but some are outside; scale them")
    return task


def _finished(recipe: Recipe, folder: Path) -> dict[str, Any] | None:
    """Return the run.json of a run that finished with this recipe, apart from `eval_every`, or None."""
    try:
        record = read_json(folder / "run.json")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / 'run.json'} cannot be read ({error}); remove {folder} to train again") from None
    if not isinstance(record, dict) or not {"recipe", "training_seconds", "environment"} <= set(record):
        raise RunError(f"{folder / 'run.json'} is not the result of a run; remove {folder} to train again")
    return record if not difference(record["recipe"], recipe, ignore=("eval_every",)) else None


def _slug(name: str, row: Recipe, recipe: Recipe) -> str:
    """Return the folder name of a row. It includes the number of epochs if that is not the recipe's."""
    name = name.partition(TIME_OF)[0]
    more = f"-{row.epochs}-epochs" if row.epochs != recipe.epochs else ""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") + more


def _line(run: dict[str, float]) -> str:
    return "  ".join(f"{metric.short} {metric.format(run[key])}" for key, metric in METRICS.items() if key in run)

"""Fill in the tables of README.md and docs/ from results/. Numbers are computed, never typed.

python -m benchmarks.tables          # replaces everything between <!-- NAME --> and <!-- end -->
"""

import json
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import claims, comparisons, costs, speedrun_tables
from benchmarks.comparisons import one_difference, sweep
from benchmarks.result_files import (
    CERTIFIED_NOISES,
    FEW,
    LENGTHS,
    NOISES,
    RATES,
    SAM,
    SIZES,
    SPEED_RUN,
    SPEED_RUN_FEW,
    origin,
    result,
    short_commit,
)
from maxup.lab.certify.tsv import read
from maxup.lab.report.certified import columns as certified_columns
from maxup.lab.report.certified import differences
from maxup.lab.report.tables import format_difference, format_estimate
from maxup.lab.results.files import load_results
from maxup.lab.results.paper import load_paper
from maxup.lab.results.statistics import estimate, welch

ROOT = Path(__file__).parent.parent
DOCS = ("method", "results", "experiments", "language", "imagenet", "certify", "reliability", "scaling")
MINUS, TYPOGRAPHIC = r"(?<=[ \[])-(?=\d)", "\N{MINUS SIGN}"  # of a negative number
TIME = "time: "
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in DOCS)]


def cifar() -> str:
    """One row per m and number of epochs: ResNet-110 on CIFAR-10, with the paper's numbers after 200 epochs."""
    results, _ = load_results(ROOT / "results" / "runs", ROOT / "results" / "runs")
    runs = [r for r in results if r.recipe.startswith("cifar10/resnet110-cutout")]
    paper = load_paper()["table-cifar10"].rows.values()
    lines = ["| ResNet-110, Cutout | epochs | test accuracy [%] | minus m = 1 [95 % interval] | paper, 200 epochs |"]
    lines += ["|---|---|---|---|---|"]
    seeds: dict[tuple[int, int], dict[int, float]] = {}
    for r in runs:
        seeds.setdefault((round(200 * r.budget), r.m), {})[r.seed] = 100 * r.last["test_accuracy"]
    short, long, *_ = sorted(epochs for epochs, m in seeds if m == 1)  # the second takes as long as m = 4
    for (epochs, m), mine in sorted(seeds.items()):
        recipe = f"cifar10/resnet110-cutout{'-maxup' if m > 1 else ''}"
        theirs = [row.values["top1"] for row in paper if row.recipe == recipe and epochs == short and m in (1, 4)]
        published = f"{theirs[0].mean:.2f} ± {theirs[0].std:.2f}" if theirs else ""
        difference = welch(mine.values(), seeds[short, 1].values())
        gain = format_difference(difference, 2, len(mine)) if (epochs, m) != (short, 1) else ""
        name = f"MaxUp, m = {m}" if m > 1 else "m = 1, time of m = 4" if epochs == long else "m = 1"
        lines.append(
            f"| {name} | {epochs} | {format_estimate(estimate(list(mine.values())), 2)} | {gain} | {published} |"
        )
    equal = format_difference(welch(seeds[short, 4].values(), seeds[long, 1].values()), 2, len(seeds[short, 4]))
    commits = ", ".join(sorted({short_commit(r.environment) for r in runs}))
    cost = result("epoch-cuda")
    second = cost["seconds_a_step"]["standard"] * cost["steps"]
    ratio = cost["ratio"]["maxup, running norm, one wide batch"]
    notes = f"m = 4 minus m = 1 at equal time: {equal}. Runs of commits {commits}.\n"
    notes += (
        f"An epoch takes {second:.1f} s with m = 1 and {second * ratio:.1f} s with m = 4, {ratio:.2f} times as long"
    )
    plain = costs.loop_ratio("plain loop, m = 4, capture", "plain loop, m = 1")
    exact = costs.loop_ratio("captured, m = 4", "captured, m = 1")
    other = (
        f"This is our fastest step. With batch statistics, a captured step with m = 4 takes {exact:.2f} times as long. "
        f"In that\ntime m = 1 trains for {short * exact:.0f} epochs, which was not run. In a plain loop, in which the "
        f"GPU waits for launches,\nm = 4 takes {plain:.2f} times as long with `capture=True`, also with "
        "batch statistics"
    )
    notes += f" {origin(cost['environment'])}\n{other} {origin(result('captured-cuda')['environment'])}"
    return "\n".join(lines) + f"\n\n{notes}"


def embedded() -> str:
    """Test perplexity of the language model on Python's help texts."""
    found, _ = load_results(ROOT / "results" / "runs", ROOT / "results" / "runs")
    runs = [r for r in found if r.recipe.startswith("text/awd_lstm-embedding_dropout")]
    parts = [
        f"{format_estimate(estimate([r.last['test_perplexity'] for r in runs if r.m == m]), 1)} with m = {m}"
        for m in sorted({r.m for r in runs})
    ]
    return f"{' and '.join(parts)}\n{origin(runs[0].environment)}"


def language() -> str:
    """Cost of a training step of AWD-LSTM, per variant."""
    found = result("language-cuda")
    lines = [
        "| step of 20 columns of 70 words | milliseconds | tokens per second | relative to standard |",
        "|---|---|---|---|",
    ]
    for name, seconds in found["median_seconds"].items():
        rate, ratio = found["tokens_per_second"][name], found["ratio"][name]
        lines.append(f"| {name} | {1000 * seconds:.1f} | {rate:,.0f} | {ratio:.2f} |")
    return "\n".join(lines) + f"\n\n{origin(found['environment'])}"


def ptb() -> str:
    """Perplexity of AWD-LSTM with adversarial softmax on Penn Treebank by epoch and at the end, m = 1 and 2."""
    epochs = (5, 10, 20, 30, 40, 50)
    lines = [f"| validation perplexity after epoch | {' | '.join(map(str, epochs))} | test | test, dynamic |"]
    lines += ["|---" * (len(epochs) + 3) + "|"]
    for m in (1, 2):
        run = result(f"ptb/m-{m}/run")
        records = map(json.loads, (ROOT / "results" / "ptb" / f"m-{m}" / "metrics.jsonl").read_text().splitlines())
        curve = {r["epoch"]: r["validation_perplexity"] for r in records if "epoch" in r}
        values = [curve[e] for e in epochs] + [run["last"][f"test_{kind}perplexity"] for kind in ("", "dynamic_")]
        lines.append(f"| {f'MaxUp, m = {m}' if m > 1 else 'm = 1'} | {' | '.join(f'{v:.2f}' for v in values)} |")
    return "\n".join(lines) + f"\n\n{origin(run['environment'])}"


def finetune() -> str:
    """Images per second of a ResNet-50 on photos, by m."""
    found = result("finetune-cuda")
    lines = ["| ResNet-50, 224 px, batch 256 | images per second, steps alone | with reading, decoding and cropping |"]
    lines += ["|---|---|---|"]
    for name, rate in found["images_a_second"].items():
        lines.append(f"| {name} | {rate['step']:,.0f} | {rate['epoch']:,.0f} |")
    return "\n".join(lines) + f"\n\n{origin(found['environment'])}"


def certify_speed() -> str:
    """Images per minute of the usual loop and of ours, and copies per second of the bare network."""
    found = result("certify_speed-cuda")
    headings = "images per minute | speedup over the usual loop | copies per second | samples saved"
    lines = [f"| ResNet-110, n = {found['n']:,} | {headings} |", "|---" * 5 + "|"]
    for name, way in sorted(found["ways"].items(), key=lambda item: item[1].get("images_a_minute", math.inf)):
        formats = {"images_a_minute": ".0f", "times_the_usual": ".1f", "copies_a_second": ",.0f", "saved": ".0%"}
        cells = [format(way[key], how) if way.get(key) else "" for key, how in formats.items()]
        lines.append(f"| {' | '.join([name, *cells])} |")
    agreement = [
        f"in {dtype}, {way['same_class']:.0%} of the classes agree and {way['compared']} radii differ by at most "
        f"{way['largest_in_errors']:.1f} standard errors"
        for dtype, way in found["agreement"].items()
    ]
    images = f"{found['images']} images, {found['usual_images']} of them also with the usual loop"
    return "\n".join(lines) + f"\n\n{images}: {'; '.join(agreement)}. {origin(found['environment'])}"


def certify_epochs() -> str:
    """Seconds per epoch of training for certification, per method."""
    found = result("certify_epochs-cuda")
    what = f"ResNet-110, {found['images']:,} random images ({found['timed_images']:,} of them timed)"
    lines = [f"| {what} | seconds per epoch | relative to Gaussian noise |", "|---|---|---|"]
    for name, seconds in found["seconds_an_epoch"].items():
        lines.append(f"| {name} | {seconds:.1f} | {found['ratio'][name]:.2f} |")
    return "\n".join(lines) + f"\n\n{origin(found['environment'])}"


def certified(network: str) -> str:
    """Certified accuracy by radius of the models of a network, and the paired difference from the first."""
    files = {"MaxUp, m = 5": "gaussian-maxup", "MaxUp, m = 25": "gaussian-maxup-m-25"}
    folder = ROOT / "results" / "certified"
    tables = [read(folder / f"{network}-{name}.tsv") for name in ("gaussian", *files.values())]
    (_, radii), (_, base), *others = certified_columns(tables)
    grid = [("radius", radii), ("Gaussian", base)]
    for name, (_, cells), (_, more) in zip(files, others[: len(files)], differences(tables), strict=True):
        grid += [(name, cells), ("minus Gaussian", more + [""] * (len(cells) - len(more)))]
    lines = [f"| {' | '.join(heading for heading, _ in grid)} |", "|---" * len(grid) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in zip(*(cells for _, cells in grid), strict=True)]
    return "\n".join(lines) + f"\n\n{origin(*(about['environment'] for about, _ in tables))}"


def counts(found: dict[str, Any]) -> str:
    """Outcomes of the torture programs, per harness and in total."""
    rows = found["harnesses"]
    kinds = [key for key in rows[0] if key not in ("name", "failed")]
    total = {"name": "all"} | {kind: sum(row[kind] for row in rows) for kind in kinds}
    lines = [f"| | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for row in (*rows, total):
        lines.append(f"| {row['name'].replace('_', ' ')} | {' | '.join(f'{row[kind]:,}' for kind in kinds)} |")
    how = f"Seed {found['seed']}, {found['seconds']:.0f} seconds, two harnesses at a time."
    return "\n".join(lines) + f"\n\n{how} {origin(found['environment'])}"


def processes() -> str:
    """Speed of several processes relative to one."""
    found = result("processes-cpu")
    several = [n for n in next(iter(found["ratio"].values())) if n != "1"]
    title = f"{found['network']}, batch {found['batch_size']}"
    lines = [f"| {title} | {' | '.join(f'{n} processes' for n in several)} |", "|---" * (len(several) + 1) + "|"]
    for name, ratio in found["ratio"].items():
        lines.append(f"| {name} | {' | '.join(f'{ratio[n]:.2f}' for n in several)} |")
    note = "Examples per second relative to one process. A larger batch has as many examples per process as one has."
    return "\n".join(lines) + f"\n\n{note} {found['cores']} cores. {origin(found['environment'])}"


def loader() -> str:
    """Images per second of the loader, per decoder and number of workers."""
    found = result("loader")
    lines = ["| photos to 224 x 224 | images per second | relative to bare PIL |", "|---|---|---|"]
    for name, rate in found["images_a_second"].items():
        lines.append(f"| {name} | {rate:,.0f} | {found['ratio'][name]:.2f} |")
    side = found.get("short_side")
    about = f"enlarged to a short side of {side}" if side else "of 224 x 224 pixels"
    note = f"{found['images']:,} reads of photos {about}, {found['cores']} cores, decoded by"
    return "\n".join(lines) + f"\n\n{note} {found.get('decoder', 'PIL')}. {origin(found['environment'])}"


FILLERS: dict[str, Callable[[], str]] = {
    **{f"claims-{question}": partial(claims.table, question) for question in claims.QUESTIONS},
    "claims-tally": claims.tally,
    "digits": partial(comparisons.comparison, "digits", "maxup compare digits/mlp-gaussian-maxup"),
    "digits-m": comparisons.which_m,
    "digits-cause": comparisons.digits_cause,
    "digits-rivals": comparisons.rivals,
    "digits-sam": partial(sweep, "radius of SAM", SAM),
    "digits-robustness": comparisons.digits_robustness,
    "digits-lr": partial(sweep, "learning rate", RATES),
    "digits-size": partial(sweep, "training images", SIZES),
    "shortlist": partial(
        costs.gaps, "ResNet-20", {f"noise {s}": f"bench/resnet20-gaussian{s}" for s in ("1.0", "2.0")}
    ),
    "digits-shortlist": comparisons.digits_shortlist,
    "digits-size-trend": comparisons.trend,
    "digits-length": partial(sweep, "epochs", LENGTHS),
    "digits-late": comparisons.late,
    "digits-late-0.5": partial(comparisons.late_minus_all, "0.5"),
    "digits-late-0.8": partial(comparisons.late_minus_all, "0.8"),
    "cifar16": comparisons.cifar16,
    "cifar16-certified": comparisons.cifar16_certified,
    "photos": partial(comparisons.photos, "photos"),
    "photos-2": partial(comparisons.photos, "photos-2"),
    "minilm": comparisons.minilm,
    "digits-noise": partial(sweep, "noise", NOISES),
    "digits-noise-best-attacked": partial(comparisons.at_best_noise, NOISES.values(), 4, "attacked", "attacked"),
    "digits-noise-best-clean": partial(comparisons.at_best_noise, NOISES.values(), 4, "attacked", "clean"),
    "exploratory": speedrun_tables.exploratory,
    "speedrun": partial(speedrun_tables.planned, SPEED_RUN, ("m1", "fast4", "m1x1.9", "m2", "easy4")),
    "speedrun-1000": partial(speedrun_tables.planned, SPEED_RUN_FEW, ("m1", "fast4", "m1x1.65")),
    "speedrun-4000": partial(speedrun_tables.planned, "speedrun-4000", ("m1", "fast4", "m1x1.75")),
    "speedrun-flip": partial(speedrun_tables.with_flip, "m = 1"),
    "speedrun-flip-time": partial(speedrun_tables.with_flip, "m = 1, time of m = 4, fast"),
    "digits-certified": comparisons.digits_certified,
    "certified-noise": comparisons.certified_noise,
    "certified-noise-best": partial(comparisons.at_best_noise, CERTIFIED_NOISES.values(), 5, "radius", "radius"),
    "certified-noise-best-clean": partial(comparisons.at_best_noise, CERTIFIED_NOISES.values(), 5, "radius", "clean"),
    "docstrings-embedding": partial(comparisons.docstrings, "embedding_dropout"),
    "docstrings-token": partial(comparisons.docstrings, "token_dropout"),
    "docstrings-embedding-no_dropout": partial(comparisons.docstrings, "embedding_dropout", dropout=False),
    "docstrings-token-no_dropout": partial(comparisons.docstrings, "token_dropout", dropout=False),
    "without-dropout": partial(
        costs.gaps,
        "small Transformer, dropout 0.1",
        {"token dropout": "bench/docstrings-token", "word dropout": "bench/docstrings-embedding"},
    ),
    "cifar": cifar,
    "cifar-little": partial(sweep, "training images", FEW, ["clean", "attacked", "corrupted"]),
    "embedded": embedded,
    "language": language,
    "ptb": ptb,
    "ptb-quarter": partial(
        comparisons.comparison,
        "ptb-quarter",
        "maxup compare benchmarks/ptb-quarter.yaml --data_from benchmarks.ptb_quarter:data",
    ),
    "finetune": finetune,
    "processes": processes,
    "loader": loader,
    "certify-speed": certify_speed,
    "certify-epochs": certify_epochs,
    "certified-resnet20": partial(certified, "resnet20"),
    "certified-resnet110": partial(certified, "resnet110"),
    "torture": lambda: counts(result("torture")),
    "torture-cases": lambda: f"{sum(row['cases'] for row in result('torture')['harnesses']):,}",
    "cost": costs.cost,
    "selection": costs.selection,
    "added-time": costs.added_time,
    "readme-cost": costs.readme,
    "loops": costs.loops,
    "loops-capture": lambda: f"{costs.loop_ratio('plain loop, m = 4, capture', 'plain loop, m = 1'):.2f}",
    "loops-captured": lambda: f"{costs.loop_ratio('captured, m = 4', 'captured, m = 1'):.2f}",
    "loops-wide": lambda: f"{costs.loop_ratio('captured, m = 4, running, wide', 'captured, m = 1'):.2f}",
    "copy-resnet50": partial(costs.copy_share, "resnet50"),
    "copy-crops": partial(costs.copy_share, "crops"),
    "copy-least": partial(costs.copy_shares, True),
    "copy-most": partial(costs.copy_shares, False),
    "efficientnet": partial(costs.gaps, "EfficientNet-Lite0, 224 px", {"CutMix": "bench/efficientnet"}),
    "fast-modes": partial(costs.fast_modes, "photos", "ResNet-18"),
    "fast-modes-vit": partial(costs.fast_modes, "vit", "ViT-S/16"),
    "fast-modes-speednet": partial(costs.fast_modes, "speednet", "speed-run network"),
    "fast-modes-speednet-16": partial(costs.fast_modes, "speednet", "speed-run network", "16"),
    "fidelity": costs.fidelity,
    "overhead-resnet50-average": partial(costs.overhead, "resnet50-cuda", "step, average of 4"),
    "overhead-resnet50-maxup": partial(costs.overhead, "resnet50-cuda", "step, m = 4"),
    "overhead-cpu": partial(costs.percent, "cpu"),
    "overhead-cuda": partial(costs.percent, "cuda"),
}


def fill(text: str) -> str:
    """Replace everything between <!-- NAME --> and <!-- end -->.

    NAME is a filler, "ROW | ROW | METRIC", or "time: NETWORK VARIANT M" for a ratio to the standard step.
    """

    def filled(match: re.Match[str]) -> str:
        name = match[1]
        if name in FILLERS:
            new = FILLERS[name]()
        elif name.startswith(TIME):
            network, variant, m = name.removeprefix(TIME).split()
            new = costs.ratio(network, variant, int(m))
        elif name.count(" | ") == 2:
            new = one_difference(*name.split(" | "))
        else:
            raise ValueError(f"<!-- {name} --> is not a table; use one of {', '.join(FILLERS)}")
        if not new:
            raise ValueError(f"<!-- {name} --> was not measured")
        new = f"\n{new}\n" if "\n" in new else new  # a table starts on a new line
        return f"<!-- {name} -->{re.sub(MINUS, TYPOGRAPHIC, new)}<!-- end -->"

    return re.sub(r"<!-- ([^<>]+) -->((?!<!--).)*<!-- end -->", filled, text, flags=re.DOTALL)


def main() -> None:
    for page in PAGES:
        page.write_text(fill(page.read_text()))


if __name__ == "__main__":
    main()

"""The paper's claims on the results page, with verdicts that are computed from results/.

The rule: a claim is "supported" if the 95 % interval of MaxUp minus its baseline is on the better side of 0, "not
supported (worse)" if it is on the other side, and "not supported" if it contains 0. An interval needs 3 seeds per side;
with fewer, the claim is "untested". A cost is supported if it is at most `SLIGHT` times that of m = 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from benchmarks.result_files import RESULTS, result
from maxup.lab.report.tables import DASH, format_difference, format_signed
from maxup.lab.results.files import budget_name, known_recipe, load_results, read_run
from maxup.lab.results.paper import Row, Table, load_paper
from maxup.lab.results.statistics import Difference, difference, welch

ELSEWHERE = {  # runs outside of results/runs, and the recipe of their baseline
    "cifar10-200/*.json": "cifar10/resnet110-cutout",
    "ptb/*/run.json": "ptb/adv_awd_lstm-embedding_dropout",
}
IMAGES = {
    "ImageNet": ("table-resnet50", "table-imagenet"),
    "CIFAR-10": ("table-cifar10",),
    "CIFAR-100": ("table-cifar100",),
}
SLIGHT = 1.25  # the paper says "only slightly"
NEVER = "[never tested](#what-was-never-tested-and-what-would-change-our-mind)"
Runs = dict[tuple[str, int, float], dict[int, dict[str, float]]]
"""The last metrics by seed, of a baseline recipe, m, and a budget, which is a fraction of the recipe's epochs."""


@dataclass(frozen=True)
class Measured:
    """What we measured for a claim."""

    what: str
    difference: Difference
    """At equal epochs."""
    at_equal_time: Difference | None
    digits: int = 2
    lower: bool = False
    """Whether lower is better."""


def verdict(difference: Difference | None, *, lower: bool = False) -> str:
    """Return the verdict on the claim that a difference is better than 0.

    Example:
        >>> [verdict(Difference(0.8, low, 1.6, 3)) for low in (0.1, -0.1)], verdict(Difference(0.8, None, None, 1))
        (['supported', 'not supported'], 'untested')
        >>> verdict(Difference(-0.8, -1.6, -0.1, 3))
        'not supported (worse)'
    """
    if difference is None or difference.low is None or difference.high is None:
        return "untested"
    if difference.low <= 0 <= difference.high:
        return "not supported"
    return "supported" if (difference.high < 0) == lower else "not supported (worse)"


def table() -> str:
    """Return the claims as a Markdown table."""
    lines = [
        "| the paper's claim | what we measured | verdict | verdict at equal time | n | details |",
        "|---" * 6 + "|",
    ]
    for text, found, link in claims():
        cells = [text, DASH, "untested", "untested", "0", NEVER]
        if found is not None:
            verdicts = [_verdict_cell(one, found) for one in (found.difference, found.at_equal_time)]
            cells = [text, found.what, *verdicts, str(found.difference.n), link]
        lines.append(f"| {' | '.join(cells)} |")
    for text, what, ratio in costs():
        word = "supported" if ratio <= SLIGHT else "not supported"
        lines.append(f"| {text} | {what} | {word} | {DASH} | {DASH} | [cost](method.md#cost) |")
    return "\n".join(lines)


def _verdict_cell(difference: Difference | None, found: Measured) -> str:
    word = verdict(difference, lower=found.lower)
    return word if difference is None else f"{word}, {format_difference(difference, found.digits, difference.n)}"


def claims() -> Iterator[tuple[str, Measured | None, str]]:
    """Yield the paper's claims about accuracy, perplexity and robustness, what we measured, and a link to it."""
    paper, runs = load_paper(), load_runs()
    for data, names in IMAGES.items():
        untested = []
        for row, before, digits in (one for name in names for one in _with_baseline(paper[name])):
            old, new = (one.values["top1"].mean for one in (before, row))
            if (found := measure(runs, row, "test_accuracy", 100)) is None:
                untested.append((row.model, format_signed(new - old, digits), new - old))
            else:
                yield f"{data}, {row.model}: {old:.{digits}f} to {new:.{digits}f} %", found, "[CIFAR](#cifar-10)"
        if untested:
            models, gains = ", ".join(name for name, *_ in untested), sorted(untested, key=lambda one: one[2])
            yield f"{data}, {models}: {gains[0][1]} to {gains[-1][1]} points", None, NEVER
    for name, title in (("table-ptb", "Penn Treebank"), ("table-wt2", "WikiText-2")):
        row, before, digits = next(_with_baseline(paper[name]))
        found = measure(runs, row, "test_perplexity", lower=True)
        change = f"{before.values['test'].mean:.{digits}f} to {row.values['test'].mean:.{digits}f}"
        yield f"{title}, {row.model}: perplexity {change}", found, "[language](#language-models)"
    help_text = {m: runs["text/awd_lstm-embedding_dropout", m, 1.0].values() for m in (1, 2)}
    values = {m: [last["test_perplexity"] for last in lasts] for m, lasts in help_text.items()}
    behind = welch(values[2], values[1])
    assert behind is not None
    found = Measured("Python's help text, AWD-LSTM, m = 2, 6 epochs", behind, None, 1, lower=True)
    yield "lower perplexity, on a text that the paper does not have", found, "[language](#language-models)"
    row, before, digits = next(_with_baseline(paper["table-certified"]))
    for radius in ("0.25", "1.0"):
        found = measure(runs, row, f"certified_accuracy_{radius}", 100, m=5, digits=1)
        change = f"{before.values[radius].mean:.{digits}f} to {row.values[radius].mean:.{digits}f} %"
        text = f"certified accuracy at radius {float(radius):g}, best of many models: {change}"
        yield text, found, "[certified](#certified-robustness)"
    yield "certified accuracy: above SmoothAdv at every radius", None, NEVER
    for file, name, radius, link in (
        ("digits-certified", "digits, MLP", "0.5", "[digits](#certified-radius-on-digits)"),
        ("cifar16-certified", "CIFAR-10 at 16 x 16, ResNet-8", "1", "[CIFAR](#certified-radius-at-16-x-16-pixels)"),
    ):
        for text, baseline in (("Gaussian noise", "m = 1"), ("SmoothAdv", f"SmoothAdv, radius {radius}")):
            found = _certified(file, name, baseline)
            yield f"certified robustness: above {text}, on a task that the paper does not have", found, link
    for file, name, m, link in (
        ("digits", "digits, MLP", 4, "#digits"),
        ("digits-length/960", "digits, MLP, 960 epochs", 4, "#longer-training"),
        ("digits-size/50", "digits, MLP, 50 images", 4, "#little-data"),
        ("digits-certified", "digits, MLP, noise 0.5", 5, "#certified-radius-on-digits"),
    ):
        text = "Gaussian noise: penalizes the gradient norm of the loss (Theorem 1)"
        yield text, _compared(file, name, "gradient", 3, m=m), f"[digits]({link})"
    few = {
        f"cifar10-little/{size}": (f"CIFAR-10, {size:,} images, ResNet-14, Cutout", "[CIFAR](#few-images)")
        for size in (1000, 4000)
    }
    long = {"cifar16": ("CIFAR-10 at 16 x 16, 500 images, ResNet-8, Cutout", "[CIFAR](#500-images-trained-for-long)")}
    sizes = {f"digits-size/{n}": (f"digits, MLP, {n} images", "[digits](#little-data)") for n in (50, 100, 200)}
    digits_mlp = {"digits": ("digits, MLP", "[digits](#digits)")}
    longer = {
        f"digits-length/{epochs}": (f"digits, MLP, {epochs} epochs", "[digits](#longer-training)")
        for epochs in (240, 960)
    }
    corrupted = {"digits-cause": ("digits, MLP", "[digits](#corruptions-and-calibration)")}
    tokens = {"docstrings-token_dropout": ("docstrings, Transformer, token dropout", "[text](#text-classification)")}
    for metric, text, files in (
        ("worst", "more robust to the perturbation of training", digits_mlp | few | long | tokens),
        ("clean", "better generalization, on a task that the paper does not have", digits_mlp | longer),
        ("clean", "better generalization with little data; not a claim of the paper", sizes | few | long),
        ("corrupted", "more robust to common corruptions; not a claim of the paper", corrupted | few),
    ):
        for file, (name, link) in files.items():
            yield text, _compared(file, name, metric, 2), link
    for file, name in (("embedding_dropout", "word dropout"), ("token_dropout", "token dropout")):
        for scoring, title in (("", ""), ("-no_dropout", ", scored without dropout")):
            found = _compared(f"docstrings-{file}{scoring}", f"docstrings, Transformer, {name}{title}", "clean", 2)
            yield f"text classification, {name}{title}: left to future work", found, "[text](#text-classification)"


def costs() -> Iterator[tuple[str, str, float]]:
    """Yield the paper's claims about cost, what we measured, and the largest ratio in a plain PyTorch loop."""
    plain = {device: result(f"overhead-{device}")["step_ratio"]["step, m = 4"] for device in ("cpu", "cuda")}
    peaks = {device: result(f"memory-{device}")["peak_bytes"]["maxup"] for device in ("cpu", "cuda")}
    memory = {device: peak["4"] / peak["1"] for device, peak in peaks.items()}
    where = "m = 4, plain PyTorch: {cpu:.2f} times (CPU), {cuda:.2f} times (GPU)"
    fastest = _epoch_ratio("cifar10/resnet110-cutout", 4)
    times = (
        f"{where.format(**plain)}; an epoch of ResNet-110 with CUDA graphs and running statistics: {fastest:.2f} times"
    )
    yield 'cost: "only slightly" more time per step', times, max(plain.values())
    yield 'cost: "only slightly" more memory', where.format(**memory), max(memory.values())


@cache
def load_runs() -> Runs:
    """Load all runs with the settings of their recipe, apart from m and the number of epochs."""
    found: Runs = {}
    for one in load_results(RESULTS / "runs", RESULTS / "runs")[0]:
        if not one.variant:
            found.setdefault((one.name.removesuffix("-maxup"), one.m, one.budget), {})[one.seed] = one.last
    for pattern, baseline in ELSEWHERE.items():
        recipe = known_recipe(baseline)
        assert recipe is not None, baseline
        for path in sorted(RESULTS.glob(pattern)):
            run = read_run(path)
            key = (baseline, run["recipe"]["objective"].get("m", 1), run["recipe"]["epochs"] / recipe.epochs)
            found.setdefault(key, {})[run["seed"]] = run["last"]
    return found


def measure(
    runs: Runs, row: Row, metric: str, scale: float = 1, *, m: int | None = None, digits: int = 2, lower: bool = False
) -> Measured | None:
    """Compare our runs of a row with those of its baseline: the longest that have an interval, otherwise the longest.

    Args:
        runs: All runs.
        row: A MaxUp row of the paper.
        metric: Name of the metric in the runs.
        scale: Factor of the metric, 100 for percent.
        m: Number of copies. Default: the row's.
        digits: Decimals of the difference.
        lower: Whether lower is better.
    """
    baseline, m = str(row.recipe).removesuffix("-maxup"), m or row.m or 1

    def values(copies: int, budget: float) -> list[float]:
        return [scale * last[metric] for last in runs.get((baseline, copies, budget), {}).values() if metric in last]

    budgets = sorted({budget for name, _, budget in runs if name == baseline})
    found = {b: one for b in budgets if (one := welch(values(m, b), values(1, b))) is not None}
    if not found:
        return None
    budget = max(found, key=lambda b: (verdict(found[b]) != "untested", b))
    ratio = _epoch_ratio(baseline, m)
    longer = [b for b in budgets if ratio is not None and abs(b / budget / ratio - 1) < 0.02]
    at_time = welch(values(m, budget), values(1, longer[0])) if longer else None
    length = "full length" if budget == 1 else budget_name(budget, [baseline])
    return Measured(f"{row.model}, m = {m}, {length}", found[budget], at_time, digits, lower)


def _epoch_ratio(baseline: str, m: int) -> float | None:
    """Return the time of an epoch with m copies relative to m = 1 with our fastest step, or None if not measured."""
    if (baseline, m) == ("cifar10/resnet110-cutout", 4):
        return float(result("epoch-cuda")["ratio"]["maxup, running norm, one wide batch"])
    if baseline == "certify/resnet110-gaussian":
        ratio: float | None = result("certify_epochs-cuda")["ratio"].get(f"MaxUp, m = {m}")
        return ratio
    return None


def _with_baseline(table: Table) -> Iterator[tuple[Row, Row, int]]:
    """Yield the MaxUp rows of a table, their baselines, and the decimals. Dynamic evaluation is left out."""
    for row in table.rows.values():
        if row.baseline is not None and not row.dynamic:
            yield row, table.rows[row.baseline], table.digits


def _compared(file: str, name: str, metric: str, digits: int, m: int = 4) -> Measured:
    """Return the comparison of MaxUp with m = 1 in a file of `maxup compare`."""
    found = result(file)
    gains = (found["summary"][metric][f"m = {m}"], found["equal_time"][f"m = 1, time of m = {m}"]["gain"][metric])
    at_epochs, at_time = (Difference(g["difference"], g["low"], g["high"], len(found["seeds"])) for g in gains)
    what = {
        "gradient": "gradient norm", "worst": "accuracy on the worst of 20 copies", "clean": "accuracy",
        "corrupted": "mean accuracy on 5 kinds of corrupted images, noise included",
    }[metric]  # fmt: skip
    return Measured(f"{name}, m = {m}: {what}", at_epochs, at_time, digits, metric == "gradient")


def _certified(file: str, name: str, baseline: str) -> Measured:
    """Compare the average certified radius of m = 5 with that of a baseline."""
    found = result(file)
    ours, theirs = ({run["seed"]: run["radius"] for run in found["runs"][name]} for name in ("m = 5", baseline))
    at_epochs = difference(ours, theirs, paired=found["paired"])
    gain = found["equal_time"][f"{baseline}, time of m = 5"]["gain"]["radius"]
    at_time = Difference(gain["difference"], gain["low"], gain["high"], len(found["seeds"]))
    assert at_epochs is not None
    return Measured(f"{name}, m = 5: average certified radius", at_epochs, at_time, 3)

"""The claims on the results page, with verdicts that are computed from results/.

The rule: MaxUp is "better" than its baseline if the 95 % interval of the difference is on the better side of 0, "worse"
if it is on the other side, and "undecided" if it contains 0. An interval needs 3 seeds per side; with fewer, a claim is
"untested". A claim of the paper is "supported" if MaxUp is better. A cost is supported if it is at most `SLIGHT` times
that of m = 1.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from benchmarks.comparisons import row_difference
from benchmarks.result_files import (
    EXPERIMENTS,
    FEW,
    LENGTHS,
    NOISES,
    RATES,
    REPEATED,
    RESULTS,
    RIVALS,
    SIZES,
    SPEED_RUN,
    SPEED_RUN_FEW,
    compared,
    result,
)
from maxup.lab.report.tables import DASH, format_difference, format_signed
from maxup.lab.results.comparison import METRICS, TIME_OF
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
PERPLEXITY = "perplexity (lower is better)"
NEVER = "what-was-never-tested-and-what-would-change-our-mind"
QUESTIONS = {
    "paper": "more accurate or robust, in the paper's experiments",
    "robustness": "more robust, in other experiments",
    "accuracy": "more accurate, in other experiments",
    "others": "better than another method, not m = 1",
    "gradient": "smaller gradient norm, in other experiments",
}
OF_A_CLAIM = {"better": "supported", "undecided": "not supported (undecided)", "worse": "not supported (worse)"}
Runs = dict[tuple[str, int, float], dict[int, dict[str, float]]]
"""The last metrics by seed, of a baseline recipe, m, and a budget, which is a fraction of the recipe's epochs."""


@dataclass(frozen=True)
class Measured:
    """What we measured for a claim."""

    what: str
    difference: Difference | None = None
    """At equal epochs."""
    at_equal_time: Difference | None = None
    digits: int = 2
    lower: bool = False
    """Whether lower is better."""


UNTESTED = Measured("never tested")


@dataclass(frozen=True)
class Claim:
    """A claim, what we measured for it, and the section of the results page with the details."""

    question: str
    """A key of QUESTIONS."""
    text: str
    found: Measured = UNTESTED
    section: str = NEVER

    def verdicts(self) -> tuple[str, str]:
        """Return the verdicts at equal epochs and at equal time."""
        one, other = self.found.difference, self.found.at_equal_time
        return verdict(one, lower=self.found.lower), verdict(other, lower=self.found.lower)


def verdict(difference: Difference | None, *, lower: bool = False) -> str:
    """Return the verdict on a difference.

    Args:
        difference: MaxUp minus its baseline, or None if it was not measured.
        lower: Whether lower is better.

    Example:
        >>> [verdict(Difference(0.8, low, 1.6, 3)) for low in (0.1, -0.1)], verdict(Difference(0.8, None, None, 1))
        (['better', 'undecided'], 'untested')
        >>> verdict(Difference(-0.8, -1.6, -0.1, 3))
        'worse'
    """
    if difference is None or difference.low is None or difference.high is None:
        return "untested"
    if difference.low <= 0 <= difference.high:
        return "undecided"
    return "better" if (difference.high < 0) == lower else "worse"


def tally() -> str:
    """Return the number of claims per question and verdict as a Markdown table."""
    words = ("better", "undecided", "worse", "untested")
    headings = [f"{when}: {words[0]} | {' | '.join(words[1:])}" for when in ("equal epochs", "equal time")]
    lines = [f"| MaxUp is | {' | '.join(headings)} |", "|---" * (1 + 2 * len(words)) + "|"]
    for question, title in QUESTIONS.items():
        verdicts = [claim.verdicts() for claim in claims() if claim.question == question]
        counts = [Counter(column) for column in zip(*verdicts, strict=True)]
        cells = [str(count[word]) for count in counts for word in words]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table(question: str) -> str:
    """Return the claims about a question as a Markdown table."""
    paper = question == "paper"
    first, second = ("the paper's claim", "what we measured") if paper else ("metric", "experiment")
    lines = [f"| {first} | {second} | equal epochs | equal time | n |", "|---" * 5 + "|"]
    before = None
    for claim in claims():
        if claim.question == question:
            n = claim.found.difference.n if claim.found.difference else 0
            text, before = "" if claim.text == before else claim.text, claim.text
            lines.append(f"| {text} | [{claim.found.what}](#{claim.section}) | {' | '.join(_cells(claim))} | {n} |")
    if paper:
        for text, what, ratio in costs():
            word = "supported" if ratio <= SLIGHT else "not supported"
            lines.append(f"| {text} | [{what}](method.md#cost) | {word} | {DASH} | {DASH} |")
    return "\n".join(lines)


def _cells(claim: Claim) -> list[str]:
    """Return a verdict with its difference, at equal epochs and at equal time."""
    found, cells = claim.found, []
    for word, gap in zip(claim.verdicts(), (found.difference, found.at_equal_time), strict=True):
        word = OF_A_CLAIM.get(word, word) if claim.question == "paper" else word
        cells.append(word if gap is None else f"{word}, {format_difference(gap, found.digits, gap.n)}")
    return cells


def claims() -> Iterator[Claim]:
    """Yield all claims about accuracy, perplexity and robustness, by question."""
    yield from _claims_of_the_paper()
    few, noises = [*FEW.values(), "cifar16", "photos"], [*NOISES.values(), "digits-certified"]
    words = ["docstrings-embedding_dropout", "docstrings-embedding_dropout-no_dropout"]
    tokens = ["docstrings-token_dropout", "docstrings-token_dropout-no_dropout"]
    certified = {"digits-certified": "0.5", "cifar16-certified": "1"}  # radius of SmoothAdv
    text = "accuracy on the worst of 20 copies"
    yield from _compared("robustness", text, ["digits", *few, *tokens, "minilm"], "worst")
    files = ["digits", *noises, *few, SPEED_RUN_FEW, "cifar16-certified", "digits-shortlist/exact-8"]
    yield from _compared("robustness", "accuracy under PGD", files, "attacked")
    text = "accuracy on 5 kinds of corrupted images, noise included"
    yield from _compared("robustness", text, ["digits-cause", *FEW.values(), SPEED_RUN_FEW], "corrupted")
    for file in certified:
        yield _certified(file, "m = 1")
    files = ["digits", *LENGTHS.values(), *RATES.values(), *SIZES.values(), *noises, *few, "cifar16-certified"]
    files += [SPEED_RUN, SPEED_RUN_FEW, *words, *tokens, "minilm"]
    yield from _compared("accuracy", "clean accuracy", files, "clean")
    yield from _compared("accuracy", PERPLEXITY, ["ptb-quarter"], "test_perplexity")
    yield _help_text()
    yield from _rivals("clean accuracy", "clean")
    yield from _rivals("accuracy on the worst of 20 copies", "worst")
    yield from _rivals("accuracy under PGD", "attacked")
    for file, radius in certified.items():
        yield _certified(file, f"SmoothAdv, radius {radius}")
    text = "gradient norm of the loss with Gaussian noise (Theorem 1 is about small noise)"
    files = ["digits", *LENGTHS.values(), SIZES["50"], *noises, "cifar16-certified"]
    yield from _compared("gradient", text, files, "gradient")
    text = "the same with Cutout or CutMix (Theorem 1 does not apply)"
    yield from _compared("gradient", text, few, "gradient")


def _claims_of_the_paper() -> Iterator[Claim]:
    """Yield the paper's claims in the order of its tables."""
    paper, runs = load_paper(), load_runs()
    for data, names in IMAGES.items():
        untested = []
        for row, before, digits in (one for name in names for one in _with_baseline(paper[name])):
            old, new = (one.values["top1"].mean for one in (before, row))
            if (found := measure(runs, row, "test_accuracy", 100)) is UNTESTED:
                untested.append((row.model, format_signed(new - old, digits), new - old))
            else:
                yield Claim("paper", f"{data}, {row.model}: {old:.{digits}f} to {new:.{digits}f} %", found, "cifar-10")
        if untested:
            models, gains = ", ".join(name for name, *_ in untested), sorted(untested, key=lambda one: one[2])
            yield Claim("paper", f"{data}, {models}: {gains[0][1]} to {gains[-1][1]} points")
    for name, title in (("table-ptb", "Penn Treebank"), ("table-wt2", "WikiText-2")):
        row, before, digits = next(_with_baseline(paper[name]))
        found = measure(runs, row, "test_perplexity", lower=True)
        change = f"{before.values['test'].mean:.{digits}f} to {row.values['test'].mean:.{digits}f}"
        text = f"{title}, {row.model}: perplexity {change}"
        yield Claim("paper", text, found, NEVER if found is UNTESTED else "language-models")
    row, before, digits = next(_with_baseline(paper["table-certified"]))
    for radius in ("0.25", "1.0"):
        found = measure(runs, row, f"certified_accuracy_{radius}", 100, m=5, digits=1)
        change = f"{before.values[radius].mean:.{digits}f} to {row.values[radius].mean:.{digits}f} %"
        text = f"certified accuracy at radius {float(radius):g}, best of many models: {change}"
        yield Claim("paper", text, found, "certified-robustness")
    yield Claim("paper", "certified accuracy: above SmoothAdv at every radius")


def _help_text() -> Claim:
    """Return the claim about a text that the paper does not have."""
    runs = load_runs()
    values = {
        m: [r["test_perplexity"] for r in runs["text/awd_lstm-embedding_dropout", m, 1.0].values()] for m in (1, 2)
    }
    gap = welch(values[2], values[1])
    assert gap is not None
    found = Measured("Python's help text, AWD-LSTM, m = 2, 6 epochs", gap, None, lower=True)
    return Claim("accuracy", PERPLEXITY, found, "language-models")


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
) -> Measured:
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
        return UNTESTED
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


def _compared(question: str, text: str, files: Iterable[str], metric: str) -> Iterator[Claim]:
    """Yield the comparisons of MaxUp with m = 1 in files of `maxup compare`, of the norm of the gradient with one m."""
    lower, digits = METRICS[metric].lower_is_better, METRICS[metric].decimals
    for file in (file for file in files if file not in REPEATED):
        found, experiment = compared(file), EXPERIMENTS[file]
        for m in experiment.copies[:1] if metric == "gradient" else experiment.copies:
            row = experiment.row(m)
            gains = found["summary"][metric][row], found["equal_time"][f"m = 1{TIME_OF}{row}"]["gain"][metric]
            at_epochs, at_time = (Difference(g["difference"], g["low"], g["high"], len(found["seeds"])) for g in gains)
            measured = Measured(f"{experiment.name}, m = {m}", at_epochs, at_time, digits, lower)
            yield Claim(question, text, measured, experiment.section)


def _rivals(text: str, metric: str) -> Iterator[Claim]:
    """Yield the comparisons of m = 4 with other methods on digits, which are paired by seed."""
    for name, (file, row) in RIVALS.items():
        gaps = [row_difference("digits-rivals/pgd: m = 4", f"{file}{end}: {row}", metric) for end in ("", "-time")]
        found = Measured(f"digits, MLP, m = 4; {name}", gaps[0], gaps[1], METRICS[metric].decimals)
        yield Claim("others", text, found, "sam-and-pgd-training")


def _certified(file: str, baseline: str) -> Claim:
    """Compare the average certified radius of m = 5 with that of a baseline."""
    found, experiment = result(file), EXPERIMENTS[file]
    ours, theirs = ({run["seed"]: run["radius"] for run in found["runs"][name]} for name in ("m = 5", baseline))
    at_epochs = difference(ours, theirs, paired=found["paired"])
    gain = found["equal_time"][f"{baseline}, time of m = 5"]["gain"]["radius"]
    at_time = Difference(gain["difference"], gain["low"], gain["high"], len(found["seeds"]))
    assert at_epochs is not None
    question, other = ("robustness", "") if baseline == "m = 1" else ("others", f"; {baseline}")
    found = Measured(f"{experiment.name}, m = 5{other}", at_epochs, at_time, 3)
    return Claim(question, "average certified radius", found, experiment.section)

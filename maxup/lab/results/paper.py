"""The numbers of the paper's tables. `paper.yaml` holds them and describes its format."""

from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Value:
    """A number in the paper. Misprints are corrected."""

    mean: float
    std: float | None = None
    printed: float | None = None
    """The number that the paper prints instead of `mean`, if it is a misprint."""
    why: str | None = None
    """Why it is a misprint."""


@dataclass(frozen=True)
class Metric:
    """A metric of a table."""

    title: str
    printed: str | None = None
    """The heading in the paper, if it is not the title."""
    why: str | None = None
    """Why the heading is a misprint."""


@dataclass(frozen=True)
class Row:
    """A model and a training method."""

    model: str
    method: str
    values: dict[str, Value]
    """Value per metric. Metrics that the paper does not give are missing."""
    m: int | None = None
    params: Value | None = None
    flops: Value | None = None
    maxup: bool = False
    baseline: str | None = None
    """Key of the row that a MaxUp row is compared with."""
    epochs: int | None = None
    """Epochs of fine-tuning."""
    dynamic: bool = False
    """Whether perplexities are with dynamic evaluation."""
    recipe: str | None = None
    """Our recipe. None if the row is only quoted."""
    note: str | None = None
    printed: str | None = None
    """Name of the row in the paper, if it is not the method."""
    why: str | None = None
    """Why that name is a misprint."""
    ours: bool = False
    """Whether we added the row; the paper does not have it."""
    grid: list[str] = field(default_factory=list)
    """More recipes. The row is the best of all recipes in each metric."""
    copies: list[int] = field(default_factory=list)
    """For a grid: the values of m to run each recipe with. Empty: the recipe's value."""


@dataclass(frozen=True)
class Misprint:
    """A misprint in the paper's text."""

    tables: list[str]
    printed: str
    corrected: str
    why: str


@dataclass(frozen=True)
class Table:
    """A table of the paper, or of your runs."""

    caption: str
    unit: str
    better: str
    """"higher" or "lower"."""
    metrics: dict[str, Metric]
    rows: dict[str, Row]
    number: int = 0
    """Number in the paper."""
    label: str = ""
    """Label in the LaTeX source."""
    dataset: str = ""
    digits: int = 2
    """Number of printed decimals."""
    down: str = "method"
    """What the printed lines are: a field of `Row`."""
    across: str = "metric"
    """What the printed columns are: a field of `Row`, or "metric"."""
    runs: int | None = None


def load_paper() -> dict[str, Table]:
    """Load the paper's tables by name, in order.

    Example:
        >>> row = load_paper()["table-cifar10"].rows["resnet110-cutout-maxup"]
        >>> row.values["top1"]
        Value(mean=95.41, std=0.08, printed=None, why=None)
        >>> row.baseline, row.recipe
        ('resnet110-cutout', 'cifar10/resnet110-cutout-maxup')
    """
    return {name: read_table(raw) for name, raw in _read()["tables"].items()}


def load_misprints() -> list[Misprint]:
    """Load the misprints in the paper's text. Those in tables are part of values, rows and metrics."""
    return [Misprint(**raw) for raw in _read()["misprints"]]


def table_names() -> list[str]:
    """Return the names of the paper's tables, in order."""
    return list(_read()["tables"])


def read_table(raw: dict[str, Any]) -> Table:
    """Build a table from its YAML."""
    metrics = {str(k): Metric(one) if isinstance(one, str) else Metric(**one) for k, one in raw["metrics"].items()}
    rows = {key: _row(row) for key, row in raw["rows"].items()}
    for key, row in rows.items():
        if row.baseline is not None and row.params is None and row.flops is None:
            rows[key] = replace(row, params=rows[row.baseline].params, flops=rows[row.baseline].flops)
    return Table(**(raw | {"metrics": metrics, "rows": rows}))


def _row(raw: dict[str, Any]) -> Row:
    numbers: dict[str, Any] = {size: _value(raw[size]) for size in ("params", "flops") if size in raw}
    numbers["values"] = {str(metric): _value(value) for metric, value in raw["values"].items()}
    return Row(**(raw | numbers))


def _value(raw: Any) -> Value:
    """94.84, [94.84, 0.11], 44.55M or {printed: ..., corrected: ..., why: ...}."""
    match raw:
        case [mean, std]:
            return Value(_number(mean), _number(std))
        case {"printed": printed, "corrected": corrected, "why": why}:
            return Value(_number(corrected), None, _number(printed), why)
    return Value(_number(raw))


def _number(raw: str | float) -> float:
    return float(raw[:-1]) * {"M": 1e6, "G": 1e9}[raw[-1]] if isinstance(raw, str) else float(raw)


@cache
def _read() -> dict[str, Any]:
    from maxup.lab.recipes.document import parse_yaml

    content: dict[str, Any] = parse_yaml(files("maxup.lab.results").joinpath("paper.yaml").read_text(encoding="utf-8"))
    return content

"""The numbers of the paper's tables. `paper.yaml` holds them and describes its format."""

from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

T = TypeVar("T")


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
    """A table of the paper."""

    number: int
    label: str
    """Label in the LaTeX source."""
    caption: str
    dataset: str
    unit: str
    better: str
    """"higher" or "lower"."""
    digits: int
    """Number of printed decimals."""
    down: str
    """What the printed lines are: a field of `Row`."""
    across: str
    """What the printed columns are: a field of `Row`, or "metric"."""
    metrics: dict[str, Metric]
    rows: dict[str, Row]
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
    return {name: read_table(raw, name) for name, raw in _read()["tables"].items()}


def load_misprints() -> list[Misprint]:
    """Load the misprints in the paper's text. Those in tables are part of values, rows and metrics."""
    return [_build(Misprint, raw, f"slip {i}") for i, raw in enumerate(_read()["slips"])]


def table_names() -> list[str]:
    """Return the names of the paper's tables, in order."""
    return list(_read()["tables"])


def read_table(raw: Any, name: str) -> Table:
    """Build a table from its YAML. `name` is used in error messages."""
    table = _build(Table, raw, name)
    metrics = {
        str(key): _build(Metric, {"title": metric} if isinstance(metric, str) else metric, f"{name}, metric {key}")
        for key, metric in table.metrics.items()
    }
    rows = {key: _row(row, f"{name}, row {key}", metrics) for key, row in table.rows.items()}
    for key, row in rows.items():
        if row.maxup != (row.baseline is not None) or row.baseline not in {None, *rows}:
            raise ValueError(
                f"paper.yaml, {name}, row {key}: maxup is {row.maxup} and baseline is {row.baseline!r}; "
                "a MaxUp row needs `baseline:`, the key of another row; other rows must not have one"
            )
        if row.baseline is not None and row.params is None and row.flops is None:
            rows[key] = replace(row, params=rows[row.baseline].params, flops=rows[row.baseline].flops)
    return replace(table, metrics=metrics, rows=rows)


def _row(raw: Any, where: str, metrics: dict[str, Metric]) -> Row:
    row = _build(Row, raw, where)
    if bool(row.values) == row.ours:
        raise ValueError(f"paper.yaml, {where}: a row must have values, or have ours: true and no values")
    values = {str(metric): _value(value, f"{where}, {metric}") for metric, value in row.values.items()}
    if unknown := sorted(set(values) - set(metrics)):
        raise ValueError(f"paper.yaml, {where}: unknown metric {unknown[0]!r}; known: {', '.join(metrics)}")
    params, flops = (_value(raw[size], f"{where}, {size}") if size in raw else None for size in ("params", "flops"))
    return replace(row, values=values, params=params, flops=flops)


def _value(raw: Any, where: str) -> Value:
    """94.84, [94.84, 0.11], 44.55M or {printed: ..., corrected: ..., why: ...}."""
    if isinstance(raw, list) and len(raw) == 2:
        return Value(_number(raw[0], where), _number(raw[1], where))
    if isinstance(raw, dict):
        if set(raw) != {"printed", "corrected", "why"}:
            raise ValueError(
                f"paper.yaml, {where}: a correction needs printed, corrected and why; got {', '.join(raw)}"
            )
        return Value(_number(raw["corrected"], where), None, _number(raw["printed"], where), raw["why"])
    return Value(_number(raw, where))


def _number(raw: Any, where: str) -> float:
    try:
        if isinstance(raw, str):
            return float(raw[:-1]) * {"M": 1e6, "G": 1e9}[raw[-1:]]
        if isinstance(raw, (int, float)) and not isinstance(raw, bool):
            return float(raw)
    except (KeyError, ValueError):
        pass
    raise ValueError(f"paper.yaml, {where}: {raw!r} is not a number; write 94.84, [94.84, 0.11], 44.55M or 7.85G")


def _build(cls: type[T], raw: Any, where: str) -> T:
    """Build a dataclass from a mapping. Raises ValueError for unknown or missing keys and wrong types."""
    if not isinstance(raw, dict):
        raise ValueError(f"paper.yaml, {where}: {raw!r} is not a mapping")
    known = fields(cls)  # type: ignore[arg-type]
    names = [item.name for item in known]
    if unknown := sorted(set(raw) - set(names), key=str):
        raise ValueError(f"paper.yaml, {where}: unknown key {unknown[0]!r}; known: {', '.join(names)}")
    required = [item.name for item in known if item.default is MISSING and item.default_factory is MISSING]
    if missing := [name for name in required if name not in raw]:
        raise ValueError(f"paper.yaml, {where}: {missing[0]!r} is missing")
    for item in known:
        plain = item.type in (str, int, bool, str | None, int | None)
        if plain and item.name in raw and not isinstance(raw[item.name], item.type):  # type: ignore[arg-type]
            raise ValueError(f"paper.yaml, {where}: {item.name} is {raw[item.name]!r}; add or remove quotes")
    return cls(**raw)


@cache
def _read() -> dict[str, Any]:
    from maxup.lab.recipes.load import parse_yaml

    content = parse_yaml(files("maxup.lab.results").joinpath("paper.yaml").read_text(encoding="utf-8"))
    if set(content) != {"slips", "tables"}:
        raise ValueError(f"paper.yaml has {', '.join(map(str, content))}; it must have slips and tables")
    return dict(content)

"""The paper's numbers, from `paper.yaml`, which says how they are organized."""

from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Value:
    """A number of the paper, corrected where it is a slip."""

    mean: float
    std: float | None = None
    printed: float | None = None
    """What the paper has instead of `mean`, if that is a slip."""
    why: str | None = None
    """Why it is one."""

    @property
    def as_printed(self) -> float:
        """The number on the page."""
        return self.mean if self.printed is None else self.printed


@dataclass(frozen=True)
class Metric:
    """A measured quantity."""

    title: str
    printed: str | None = None
    """The column's heading, if it is not the title."""
    why: str | None = None
    """Why the heading is a slip."""


@dataclass(frozen=True)
class Row:
    """A model trained in one way."""

    model: str
    method: str
    values: dict[str, Value]
    """By metric; those the paper leaves out are absent."""
    m: int | None = None
    params: Value | None = None
    flops: Value | None = None
    maxup: bool = False
    baseline: str | None = None
    """The row that a MaxUp row is compared with."""
    epochs: int | None = None
    """Of a fine-tune."""
    dynamic: bool = False
    """With dynamic evaluation."""
    recipe: str | None = None
    """Ours; None where the row is only quoted."""
    note: str | None = None
    printed: str | None = None
    """The row's name on the page, if it is not the method."""
    why: str | None = None
    """Why that name is a slip."""
    ours: bool = False
    """A row we add, which the paper does not have."""
    grid: list[str] = field(default_factory=list)
    """More recipes: the row is the best of all at each metric."""
    copies: list[int] = field(default_factory=list)
    """Of a grid: the m of every recipe; empty for their own."""


@dataclass(frozen=True)
class Slip:
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
    """In the LaTeX source."""
    caption: str
    dataset: str
    unit: str
    better: str
    """higher or lower."""
    digits: int
    """Decimals printed."""
    down: str
    """What the printed lines are: the name of a field of `Row`."""
    across: str
    """What the printed columns are: the name of a field of `Row`, or metric."""
    metrics: dict[str, Metric]
    rows: dict[str, Row]
    runs: int | None = None


def load_paper() -> dict[str, Table]:
    """The paper's tables by name, in its order.

    Example:
        >>> row = load_paper()["table-cifar10"].rows["resnet110-cutout-maxup"]
        >>> row.values["top1"]
        Value(mean=95.41, std=0.08, printed=None, why=None)
        >>> row.baseline, row.recipe
        ('resnet110-cutout', 'cifar10/resnet110-cutout-maxup')
    """
    return {name: read_table(raw, name) for name, raw in _read()["tables"].items()}


def load_slips() -> list[Slip]:
    """The misprints in the paper's text; those inside a table are with its values, rows and metrics."""
    return [_build(Slip, raw, f"slip {i}") for i, raw in enumerate(_read()["slips"])]


def table_names() -> list[str]:
    """The names of the paper's tables, in its order.

    Example:
        >>> table_names()[:3]
        ['table-resnet50', 'table-imagenet', 'table-cifar10']
    """
    return list(_read()["tables"])


def read_table(raw: Any, name: str) -> Table:
    """A table from its YAML, where `name` is what errors call it."""
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
                "a MaxUp row, and no other, names another row of its table as baseline"
            )
        if row.baseline is not None and row.params is None and row.flops is None:
            rows[key] = replace(row, params=rows[row.baseline].params, flops=rows[row.baseline].flops)
    return replace(table, metrics=metrics, rows=rows)


def _row(raw: Any, where: str, metrics: dict[str, Metric]) -> Row:
    row = _build(Row, raw, where)
    if bool(row.values) == row.ours:
        raise ValueError(f"paper.yaml, {where}: a row has the paper's values, or is ours and has none")
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
            raise ValueError(f"paper.yaml, {where}: a slip has printed, corrected and why, not {', '.join(raw)}")
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
    """A dataclass from a mapping: no key unknown, none missing, no plain value of another type."""
    if not isinstance(raw, dict):
        raise ValueError(f"paper.yaml, {where}: {raw!r} is not a mapping")
    known = fields(cls)  # type: ignore[arg-type]
    if unknown := sorted(set(raw) - {one.name for one in known}, key=str):
        raise ValueError(
            f"paper.yaml, {where}: unknown key {unknown[0]!r}; known: {', '.join(one.name for one in known)}"
        )
    needed = [one.name for one in known if one.default is MISSING and one.default_factory is MISSING]
    if missing := [name for name in needed if name not in raw]:
        raise ValueError(f"paper.yaml, {where}: {missing[0]!r} is missing")
    for one in known:
        plain = one.type in (str, int, bool, str | None, int | None)
        if plain and one.name in raw and not isinstance(raw[one.name], one.type):  # type: ignore[arg-type]
            raise ValueError(f"paper.yaml, {where}: {one.name} is {raw[one.name]!r}; quotes missing, or too many?")
    return cls(**raw)


@cache
def _read() -> dict[str, Any]:
    from maxup.lab.recipes.load import parse_yaml

    content = parse_yaml(files("maxup.lab.results").joinpath("paper.yaml").read_text(encoding="utf-8"))
    if set(content) != {"slips", "tables"}:
        raise ValueError(f"paper.yaml has {', '.join(map(str, content))}; it must have slips and tables")
    return dict(content)

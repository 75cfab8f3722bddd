"""The typed numbers are plausible, and equal the LaTeX source of the paper cell by cell, if it is available.

Set MAXUP_PAPER_TEX to the path of the source.
"""

import dataclasses
import os
import re
from collections import defaultdict
from importlib.resources import files
from pathlib import Path
from typing import get_origin, get_type_hints

import pytest
import yaml

from maxup.lab.results.paper import Row, Value, load_misprints, load_paper, read_table, table_names

WITH_OURS = load_paper()
PAPER = {
    name: dataclasses.replace(table, rows={key: row for key, row in table.rows.items() if not row.ours})
    for name, table in WITH_OURS.items()
}
ROWS = [(name, key) for name, table in PAPER.items() for key in table.rows]
BESIDE = Path(__file__).parents[3].parent / "shared" / "paper" / "maxup.tex"


def as_printed(value: Value) -> float:
    return value.mean if value.printed is None else value.printed


@pytest.fixture(scope="module")
def tex() -> str:
    if place := os.environ.get("MAXUP_PAPER_TEX"):
        return Path(place).read_text(encoding="utf-8")  # an error if it does not exist
    if BESIDE.exists():
        return BESIDE.read_text(encoding="utf-8")
    pytest.skip("needs the paper's LaTeX source: set MAXUP_PAPER_TEX to its path")


# Structure


def test_the_tables_are_the_paper_s_eight():
    assert table_names() == list(WITH_OURS) == [
        "table-resnet50", "table-imagenet", "table-cifar10", "table-cifar100", "table-ablation",
        "table-ptb", "table-wt2", "table-certified",
    ]  # fmt: skip
    assert [table.number for table in PAPER.values()] == list(range(1, 9))
    assert [len(table.rows) for table in PAPER.values()] == [9, 12, 6, 6, 8, 8, 7, 3]
    for table in PAPER.values():
        assert table.better == ("lower" if table.unit == "perplexity" else "higher")
        assert table.across in {"metric", "method", "model"}
        assert table.down in {"method", "model", "m"}
        assert table.runs == (5 if table.dataset.startswith("cifar") and table.number < 8 else None)


@pytest.mark.parametrize(("name", "key"), ROWS)
def test_a_row_is_plausible(name, key):
    table, row = PAPER[name], PAPER[name].rows[key]
    assert row.values
    for value in row.values.values():
        assert (0 < value.mean < 100) if table.unit == "%" else (30 < value.mean < 80)
        assert (value.std is not None) == (table.runs is not None)
        assert value.std is None or 0 < value.std < 0.5
        assert round(value.mean, table.digits) == value.mean
    assert row.params is None or 1e6 < row.params.mean < 1e8
    assert row.flops is None or 1e8 < row.flops.mean < 2e11
    assert row.maxup == ("MaxUp" in row.method)
    if not row.maxup:
        assert row.m == (1 if table.down == "m" else None)
        return
    baseline = table.rows[row.baseline]
    assert not baseline.maxup
    assert baseline.model == row.model
    assert baseline.dynamic == row.dynamic
    assert (row.m or 0) > 1 or name == "table-certified"
    assert (baseline.params, baseline.flops) == (row.params, row.flops)
    for metric, value in row.values.items():  # the paper's claim
        gain = value.mean - baseline.values[metric].mean
        assert gain > 0 if table.better == "higher" else gain < 0


@pytest.mark.parametrize("name", PAPER)
def test_recipes_are_named_by_the_rule(name):
    """<dataset>/<model>-<augmentation>[-maxup], and a MaxUp recipe is its baseline's with -maxup."""
    table = PAPER[name]
    folder = "certify" if name == "table-certified" else table.dataset
    for row in table.rows.values():
        if row.recipe is None:
            assert row.method in {"NAS-RNN", "AWD-LSTM + FRAGE", "AWD-LSTM + MoS"}  # quoted only
            continue
        assert re.fullmatch(rf"{folder}/[a-z0-9_]+-[a-z_]+{'-maxup' if row.maxup else ''}", row.recipe)
        if row.maxup and not table.rows[row.baseline].why:  # a mislabeled row is not the recipe's baseline
            assert row.recipe == table.rows[row.baseline].recipe + "-maxup"
    runs = [(row.recipe, row.m, row.dynamic) for row in table.rows.values() if row.recipe]
    assert len(set(runs)) == len(runs)


def test_the_ablation_is_also_on_cifar10_as_ours():
    ours = {(name, key): row for name, table in WITH_OURS.items() for key, row in table.rows.items() if row.ours}
    ablation = PAPER["table-ablation"].rows
    assert [(name, key) for name, key in ours] == [("table-ablation", f"cifar10-{key}") for key in ablation]
    for (_, key), row in ours.items():
        same = ablation[key.removeprefix("cifar10-")]
        assert (row.model, row.method, row.m) == (f"{same.model} on CIFAR-10", same.method, same.m)
        assert row.recipe == same.recipe.replace("cifar100/", "cifar10/")
        assert row.baseline == (f"cifar10-{same.baseline}" if same.baseline else None)


def test_tables_agree_with_each_other():
    ablation, cifar100 = PAPER["table-ablation"].rows, PAPER["table-cifar100"].rows
    for row in cifar100.values():
        for other in ablation.values():
            if (row.model, row.m or 1) == (other.model, other.m):
                assert (row.values, row.recipe) == (other.values, other.recipe)
    for row in PAPER["table-certified"].rows.values():
        accuracies = [row.values[radius].mean for radius in sorted(row.values, key=float)]
        assert len(accuracies) == 11
        assert accuracies == sorted(accuracies, reverse=True)
    for row in PAPER["table-resnet50"].rows.values():
        assert "top5" not in row.values or row.values["top5"].mean > row.values["top1"].mean


def test_the_known_misprints_are_corrected():
    resnet50, imagenet, ptb = PAPER["table-resnet50"], PAPER["table-imagenet"].rows, PAPER["table-ptb"].rows
    assert [(m.title, m.printed) for m in resnet50.metrics.values()] == [
        ("Top-1 accuracy", "Top-1 error"), ("Top-5 accuracy", "Top-5 error"),
    ]  # fmt: skip
    for row, true, printed in (("cpu", 4.36e6, 7.12e6), ("gpu", 7.12e6, 4.36e6)):
        for suffix in ("", "-maxup"):
            size = imagenet[f"proxylessnet_{row}-cutmix{suffix}"].params
            assert (size.mean, size.printed, as_printed(size)) == (true, printed, printed)
    assert (ptb["awd_lstm-dynamic"].method, ptb["awd_lstm-dynamic"].printed) == ("AWD-LSTM", "ADV-AWD-LSTM")
    assert {one.corrected.split()[0] for one in load_misprints()} >= {
        "85.45",
        "85.5",
        "ResNet-110",
        "929,589",
        "2.5e-4",
    }
    for misprint in load_misprints():
        assert set(misprint.tables) <= set(PAPER)
        assert misprint.printed != misprint.corrected
        assert misprint.why


def test_no_key_is_written_twice():
    """YAML would silently keep the last."""

    def look(node):
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            assert len(set(keys)) == len(keys), keys
        for child in node.value if isinstance(node, yaml.CollectionNode) else ():
            for part in child if isinstance(child, tuple) else (child,):
                look(part)

    look(yaml.compose(files("maxup.lab.results").joinpath("paper.yaml").read_text(encoding="utf-8")))


# Strictness, on a small table


def small(**row) -> dict:
    plain = {"model": "Net-8", "method": "Cut", "values": {"top1": [90.5, 0.1]}, "params": "1.5M"}
    worst = {
        "model": "Net-8",
        "method": "MaxUp+Cut",
        "values": {"top1": 91.0},
        "maxup": True,
        "baseline": "cut",
        "m": 4,
    }
    return {
        "number": 1, "label": "tab:small", "caption": "", "dataset": "d", "unit": "%", "better": "higher", "digits": 1,
        "down": "model", "across": "method", "metrics": {"top1": "Accuracy"},
        "rows": {"cut": plain, "max": worst | row},
    }  # fmt: skip


def test_a_maxup_row_has_its_baseline_s_size():
    assert read_table(small()).rows["max"].params == Value(1.5e6)
    assert read_table(small(params="2M")).rows["max"].params == Value(2e6)


def mistakes(table):
    """What reading a table does not notice: wrong types, unknown metrics, and rows without their baseline or values."""
    for key, row in table.rows.items():
        for part in (table, row, *table.metrics.values(), *row.values.values()):
            for name, kind in get_type_hints(type(part)).items():
                kind = {float: int | float, float | None: int | float | None}.get(kind, kind)
                kind = get_origin(kind) if get_origin(kind) in (dict, list) else kind
                if not isinstance(getattr(part, name), kind):
                    yield f"{key}: {name} is {getattr(part, name)!r}"
        if set(row.values) - set(table.metrics):
            yield f"{key}: a metric is unknown"
        if row.maxup != (row.baseline is not None) or row.baseline not in {None, *table.rows}:
            yield f"{key}: maxup is {row.maxup} and baseline is {row.baseline!r}"
        if bool(row.values) == row.ours:
            yield f"{key}: a row has values, or ours: true and no values"


@pytest.mark.parametrize("table", WITH_OURS.values(), ids=WITH_OURS)
def test_the_file_has_no_mistakes(table):
    assert not list(mistakes(table))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"m": "4"}, "max: m is '4'"),
        ({"method": 2.5}, "max: method is 2.5"),
        ({"baseline": None}, "max: maxup is True and baseline is None"),
        ({"maxup": False}, "max: maxup is False"),
        ({"values": {"top2": 1.0}}, "max: a metric is unknown"),
        ({"values": {}}, "max: a row has values, or ours: true and no values"),
        ({"ours": True}, "max: a row has values, or ours: true and no values"),
    ],
)
def test_a_mistake_in_the_file_is_found(row, message):
    assert next(mistakes(read_table(small(**row)))).startswith(message)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"vlaues": {}}, "unexpected keyword argument 'vlaues'"),
        ({"baseline": "cutt"}, "cutt"),
        ({"values": {"top1": "91.o"}}, "'o'"),
        ({"values": {"top1": [1, 2, 3]}}, "not 'list'"),
        ({"values": {"top1": {"printed": 1, "corrected": 2}}}, "not 'dict'"),
        ({"params": "12Q"}, "Q"),
    ],
)
def test_what_cannot_be_read_raises(row, message):
    with pytest.raises((TypeError, ValueError, KeyError), match=re.escape(message)):
        read_table(small(**row))


def test_unknown_and_missing_keys_raise():
    raw = small()
    with pytest.raises(TypeError, match="unexpected keyword argument 'run'"):
        read_table(raw | {"run": 5})
    del raw["unit"]
    with pytest.raises(TypeError, match="'unit'"):
        read_table(raw)


# Against the source. Both sides become {(with dynamic evaluation, line, column): numbers in the cell}.

SIZES = {"Params": "params", "Model Size": "params", "FLOPs": "flops"}
NUMBER = re.compile(r"(\d+(?:\.\d+)?)([MG]?)(?: ± (\d+\.\d+))?(\*?)")
SMALL = r"""
\begin{table}[t]
    \begin{tabular}{l|c|cc}
        \hline
        Model & Model Size & + Cut (\%) & + \emph{MaxUp}+Cut (\%) \\ \hline
        Net-8\tiny{~\citep{nobody2016net}} & 1.5M & 90.5 $\pm$ 0.1 & ~\bf{91.0} \\
        \hline
    \end{tabular}
    \caption{A table with 3 numbers.}\label{tab:small}
\end{table}
"""


def plain(cell: str) -> str:
    r"""The text of a cell: Net-8\tiny{~\citep{nobody2016net}} is Net-8, and \bf{95.4 $\pm$ 0.1} is 95.4 ± 0.1."""
    cell = re.sub(r"\\citep\{[^}]*\}", "", cell)
    for mark, text in ((r"\pm", "±"), (r"\times", "\N{MULTIPLICATION SIGN}"), (r"\%", "%"), ("~", " ")):
        cell = cell.replace(mark, text)
    cell = re.sub(r"\\(bf|emph|tt|tiny|citet|hline)\b|[{}$^]", "", cell)
    return " ".join(cell.split())


def name_of(text: str) -> str:
    """A line's or column's name without its ornaments: + Cutout (%) is Cutout."""
    return text.removeprefix("+").removesuffix("(%)").strip()


def printed(tex: str, label: str) -> dict:
    """The cells of the table with this label."""
    place = tex.index(rf"\label{{{label}}}")
    table = tex[tex.rindex(r"\begin{table", 0, place) : tex.index(r"\end{table", place)]
    (body,) = re.findall(r"\\begin\{tabular\}\{[^}]*\}(.*?)\\end\{tabular\}", table, re.DOTALL)
    header, *lines = [line for line in (part.split("&") for part in body.split(r"\\")) if plain("".join(line))]
    columns = [SIZES.get(name_of(plain(cell)), name_of(plain(cell))) for cell in header[1:]]
    cells, dynamic = {}, False
    for first, *rest in lines:
        if r"\multicolumn" in first:
            assert not rest
            dynamic = {"w/o dynamic evaluation": False, "+ dynamic evaluation": True}[
                plain(re.sub(r"\\multicolumn\{\d\}\{l\}", "", first))
            ]
            continue
        for column, cell in zip(columns, rest, strict=True):
            key = dynamic, name_of(plain(first)), column
            assert key not in cells
            cells[key] = numbers(plain(cell))
    return cells


def numbers(cell: str) -> tuple:
    """Those of a cell: mean, std, decimals printed and whether a star follows; nothing for a dash."""
    if cell == "-":
        return ()
    found = NUMBER.fullmatch(cell)
    assert found, f"{cell!r} is not understood"
    mean, unit, std, star = found.groups()
    if unit:
        return (float(mean) * {"M": 1e6, "G": 1e9}[unit],)
    return (float(mean), std and float(std), len(mean.partition(".")[2]), bool(star))


def typed(table) -> dict:
    """The cells of the same table by our file."""
    cells = {}
    for row in table.rows.values():
        line = row.dynamic, row.printed or str(getattr(row, table.down))
        for name, metric in table.metrics.items():
            column = (metric.printed or metric.title) if table.across == "metric" else getattr(row, table.across)
            assert (*line, column) not in cells, f"two rows fill {line}, {column}"
            value = row.values.get(name)
            cells[*line, column] = (as_printed(value), value.std, table.digits, row.epochs == 5) if value else ()
        for size in ("params", "flops"):
            if value := getattr(row, size):
                assert cells.setdefault((*line, size), (as_printed(value),)) == (as_printed(value),)
    return cells


@pytest.mark.parametrize("name", PAPER)
def test_every_cell_is_the_paper_s(tex, name):
    assert typed(PAPER[name]) == printed(tex, PAPER[name].label)


def test_there_is_no_other_table(tex):
    assert len(re.findall(r"\\begin\{tabular\}", tex)) == len(PAPER)
    labels = re.findall(r"\\label\{(tab:[^}]*)\}", tex)
    assert [label for label in labels if label != "tab:l2-cifar10"] == [table.label for table in PAPER.values()]


@pytest.mark.parametrize("misprint", load_misprints(), ids=lambda misprint: misprint.corrected)
def test_a_misprint_is_printed_as_we_say(tex, misprint):
    assert " ".join(misprint.printed.split()) in " ".join(tex.split())


# A typo would be caught


def test_the_check_works_on_a_small_table():
    table = read_table(small())
    assert printed(SMALL, "tab:small") == typed(table)
    assert len(list(misprints(table))) == 4  # 90.5, 0.1, 1.5M and 91.0
    for wrong in misprints(table):
        assert printed(SMALL, "tab:small") != typed(wrong)


@pytest.mark.parametrize("name", PAPER)
def test_any_wrong_number_is_caught(tex, name):
    page = printed(tex, PAPER[name].label)
    for wrong in misprints(PAPER[name]):
        assert typed(wrong) != page


@pytest.mark.parametrize("name", PAPER)
def test_a_row_too_few_or_two_columns_swapped_is_caught(tex, name):
    table = PAPER[name]
    page = printed(tex, table.label)
    for key, row in table.rows.items():
        assert typed(with_rows(table, {k: r for k, r in table.rows.items() if k != key})) != page
        if len(row.values) > 1 and len({value.mean for value in row.values.values()}) > 1:
            swapped = dict(zip(row.values, reversed(row.values.values()), strict=True))
            assert typed(with_rows(table, table.rows | {key: dataclasses.replace(row, values=swapped)})) != page


def with_rows(table, rows):
    return dataclasses.replace(table, rows=rows)


def misprints(table):
    """The table again and again, each time with one other number in its last printed digit."""
    shared = defaultdict(list)  # a size printed once stands in two rows
    for key, row in table.rows.items():
        for name, value in row.values.items():
            for part in ("mean", "std"):
                if getattr(value, part) is not None:
                    moved = dataclasses.replace(value, **{part: round(getattr(value, part) + 10**-table.digits, 2)})
                    yield with_rows(table, table.rows | {key: changed(row, "values", row.values | {name: moved})})
        for size in ("params", "flops"):
            if getattr(row, size):
                shared[row.model if table.down == "model" else key, size].append(key)
    for (_, size), keys in shared.items():
        value = getattr(table.rows[keys[0]], size)
        moved = Value(value.mean, None, as_printed(value) + 1e4, "")
        yield with_rows(table, table.rows | {key: changed(table.rows[key], size, moved) for key in keys})


def changed(row: Row, field: str, value) -> Row:
    return dataclasses.replace(row, **{field: value})

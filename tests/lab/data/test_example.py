"""Rows of named columns: tables of pandas, and lists of dicts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from maxup.errors import DataError
from maxup.lab.data import user_data
from maxup.lab.data.stream import Stream
from maxup.lab.data.user_data import from_user

pandas = pytest.importorskip("pandas")

ROWS = [{"width": float(i), "height": 2.0 * i, "x": 3 * i, "label": i % 2} for i in range(10)]
OTHER = [{name: row[name] for name in ("label", "x", "height", "width")} for row in ROWS]
FRAME = pandas.DataFrame(ROWS)
NAMES = ["width", "height", "x"]
MIXED = [a if i % 2 == 0 else b for i, (a, b) in enumerate(zip(ROWS, OTHER, strict=True))]
TABLES = {
    "one list": lambda: (MIXED, MIXED),
    "other order": lambda: (ROWS, OTHER),
    "iterable": lambda: (iter(MIXED), iter(OTHER)),
    "loader": lambda: (ROWS, DataLoader(OTHER, batch_size=3)),
    "frames": lambda: (FRAME[NAMES], FRAME["label"], FRAME[NAMES[::-1]], FRAME["label"]),
    "pairs of frames": lambda: ((FRAME[NAMES], FRAME["label"]), (FRAME[NAMES[::-1]], FRAME["label"])),
    "frame and rows": lambda: ((FRAME[NAMES], FRAME["label"]), OTHER),
    "rows and frame": lambda: (ROWS, (FRAME[NAMES[::-1]], FRAME["label"])),
    "no names": lambda: (ROWS, (FRAME[NAMES].to_numpy(), FRAME["label"])),
    "no names in training": lambda: ((FRAME[NAMES].to_numpy(), FRAME["label"]), MIXED),
}


@pytest.mark.parametrize("memory", [2**31, 0])
@pytest.mark.parametrize("kind", TABLES)
def test_columns_are_matched_by_name(kind, memory, monkeypatch):
    monkeypatch.setattr(user_data, "MEMORY", memory)
    for part in from_user(TABLES[kind](), workers=0):
        part = replace(part, workers=0) if isinstance(part, Stream) else part
        batches = list(part.loader(4, training=False, seed=0, device="cpu"))
        assert torch.cat([x for _, x, _ in batches]).tolist() == [[i, 2 * i, 3 * i] for i in range(10)]
        assert torch.cat([y for *_, y in batches]).tolist() == [0, 1] * 5


@pytest.mark.parametrize("memory", [2**31, 0])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: {"width": 1.0, "height": 1.0, "label": 0}, "column 'x' is missing in some of your data; return"),
        (lambda row: row | {"depth": 1.0}, "column 'depth' is only in some of your data; return the same columns"),
        (lambda row: {"width": 1.0, "depth": 1.0, "x": 1, "label": 0}, "column 'height' is missing in some"),
    ],
)
def test_other_columns_are_an_error(change, message, memory, monkeypatch):
    monkeypatch.setattr(user_data, "MEMORY", memory)
    changed = [*ROWS[:9], change(ROWS[9])]
    for returned in ((changed, ROWS), (ROWS, [changed[9], *ROWS[1:]])):
        with pytest.raises(DataError, match=rf"^{message}.* \(example [09]\)$"):
            from_user(returned, workers=0)
    wrong = pandas.DataFrame(changed[9:]).drop(columns="label")
    with pytest.raises(DataError, match=f"^{message}"):
        from_user((FRAME[NAMES], FRAME["label"], wrong, [0]))


def test_a_warning_names_the_column(capsys):
    from_user([row | {"time": 1.7e9 + 300 * i} for i, row in enumerate(ROWS)])
    assert capsys.readouterr().err.startswith("column 'time' of your data ranges over 2.69e+03 near 1.7e+09, which")


def test_numbers_of_other_types():
    frame = pandas.DataFrame({"width": [1.5, 2.5], "old": [True, False]})
    for returned in (
        (frame, pandas.Series([1, 0], dtype="Int64")),
        [(row, label) for row, label in zip(frame.to_numpy(), np.array([True, False]), strict=True)],
        frame.assign(label=[True, False]).to_dict("records"),
        [{"x": np.float32(w), "image": torch.tensor(o), "y": o} for w, o in ((1.5, True), (2.5, False))],
    ):
        train, _ = from_user(returned)
        assert train.x.tolist() == [[1.5, 1], [2.5, 0]]
        assert train.y.tolist() == [1, 0]

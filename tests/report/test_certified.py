"""The table of TSVs: what stands in it was counted, and the paper's rows stand beside those of the same data."""

import pytest

from maxup.certify.analysis import RADII, certified_accuracy
from maxup.certify.rows import Row
from maxup.report.certified import columns, draw, names, show
from maxup.report.paper import load_paper

CIFAR10 = ["airplane", "automobile", "bird"]


def table(subject="runs/a/seed-0", sigma=0.5, reach=1.0, classes=CIFAR10):
    rows = [Row(i, 0, 0 if i % 4 else -1, reach * i / 40 if i % 4 else 0.0, bool(i % 4), "") for i in range(40)]
    return {"subject": subject, "sigma": sigma, "classes": classes}, rows


def test_every_cell_is_counted():
    one, two = table(), table("runs/b/seed-0", 0.25, 2.0)
    found = dict(columns([one, two]))
    assert list(found)[:4] == ["radius", "a, sigma 0.5", "b, sigma 0.25", "best at each"]
    for i, radius in enumerate([0.0, *RADII]):
        shares = [certified_accuracy(rows, radius) for _, rows in (one, two)]
        for name, share in zip(["a, sigma 0.5", "b, sigma 0.25"], shares, strict=True):
            assert found[name][i] == f"{100 * share.mean:.1f} ± {100 * share.error:.1f}"
        assert found["best at each"][i].startswith(f"{100 * max(s.mean for s in shares):.1f} ")
    assert found["a, sigma 0.5"][-2:] == ["25.0", "40"]


def test_the_paper_s_rows_stand_beside_cifar_10_and_nothing_else():
    found = dict(columns([table()]))
    for row in load_paper()["table-certified"].rows.values():
        (name,) = [n for n in found if n.startswith("paper: ") and row.method.startswith(n.removeprefix("paper: "))]
        assert found[name][1:12] == [f"{row.values[str(radius)].mean:.0f}" for radius in RADII]
    assert not [name for name in dict(columns([table(classes=["0", "1"])])) if name.startswith("paper")]


def test_names_tell_tables_apart():
    assert names([table()]) == ["runs/a/seed-0, sigma 0.5"]
    assert len(set(names([table(), table()]))) == 2


@pytest.mark.parametrize("classes", [CIFAR10, ["0", "1"]])
def test_it_prints_and_draws(tmp_path, capsys, classes):
    tables = [table(classes=classes), table("runs/b/seed-0", reach=2.0, classes=classes)]
    show(tables)
    assert "a, sigma 0.5" in capsys.readouterr().out
    draw(tmp_path / "a.svg", tables)
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.count("certified accuracy") >= 1
    assert ("paper: MaxUp+Gauss" in drawn) == (classes == CIFAR10)

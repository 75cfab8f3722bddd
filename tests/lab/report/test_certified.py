"""The table of TSVs: every cell is a count, and the paper's rows are shown for the same data."""

import pytest
from scipy.stats import ttest_rel

from maxup.lab.certify.analysis import RADII, certified_accuracy
from maxup.lab.certify.tsv import Row
from maxup.lab.report.certified import CIFAR10, columns, differences, draw, names, notes, show
from maxup.lab.report.tables import MINUS
from maxup.lab.results.paper import load_paper


def table(subject="runs/a/seed-0", sigma=0.5, reach=1.0, classes=CIFAR10, **more):
    rows = [Row(i, 0, 0 if i % 4 else -1, reach * i / 40 if i % 4 else 0.0, bool(i % 4), "") for i in range(40)]
    about = {"subject": subject, "file": "a.tsv", "sigma": sigma, "classes": classes, "images": "a", "dtype": "float32",
             "n": 10**9, "alpha": 0.5, "sampling": "fixed", "radii": None, "forward": "eager", "seed": 0}  # fmt: skip
    return about | more, rows


def test_every_cell_is_a_count():
    one, two = table(), table("runs/b/seed-0", 1.0, 2.0)
    found = dict(columns([one, two]))
    assert list(found)[:4] == ["radius", "a, sigma 0.5", "b, sigma 1", "best at each"]
    assert found["radius"] == [
        *(f"{radius:g}" for radius in [0.0, *RADII]),
        "average radius",
        "abstained [%]",
        "images",
    ]
    for i, radius in enumerate([0.0, *RADII]):
        shares = [certified_accuracy(rows, radius) for _, rows in (one, two)]
        for name, share in zip(["a, sigma 0.5", "b, sigma 1"], shares, strict=True):
            assert found[name][i] == f"{100 * share.mean:.1f} ± {100 * share.error:.1f}"
        assert found["best at each"][i].startswith(f"{100 * max(s.mean for s in shares):.1f} ")
    assert found["a, sigma 0.5"][-2:] == ["25.0", "40"]


def test_the_paper_s_rows_are_shown_for_cifar_10_only():
    found = dict(columns([table()]))
    for row in load_paper()["table-certified"].rows.values():
        (name,) = [n for n in found if n.startswith("paper: ") and row.method.startswith(n.removeprefix("paper: "))]
        assert found[name][1:12] == [f"{row.values[str(radius)].mean:.0f}" for radius in RADII]
    assert not [name for name in dict(columns([table(classes=["0", "1"])])) if name.startswith("paper")]


def test_names_of_tables_differ():
    assert names([table()]) == ["runs/a/seed-0"]
    assert names([table(".")]) == ["."]
    assert names([table("/tmp/run")]) == ["/tmp/run"]
    assert names([table("/tmp/one/run"), table("/tmp/two/run")]) == ["one", "two"]
    assert names([table("/"), table("/tmp")]) == ["/", "/tmp"]
    assert names([table(), table(file="b.tsv")]) == ["a.tsv", "b.tsv"]
    assert names([table(file="x/one/c.tsv"), table(file="x/two/c.tsv")]) == ["one", "two"]
    assert names([table(), table(sigma=1)]) == ["seed-0, sigma 0.5", "seed-0, sigma 1"]


def test_differences_are_paired_by_image():
    one, two = table(), table("runs/b/seed-0", reach=2.0)
    two[1].reverse()  # by index, not by position
    ((name, cells),) = differences([one, two])
    assert name == "b"
    for radius, cell in zip([0.0, *RADII], cells, strict=True):
        mine = [100.0 * row.certified(radius) for row in sorted(two[1], key=lambda row: row.idx)]
        theirs = [100.0 * row.certified(radius) for row in one[1]]
        test = ttest_rel(mine, theirs)
        if mine == theirs:
            assert cell == "equal"
            continue
        interval = test.confidence_interval(0.95)
        mean = sum(mine) / 40 - sum(theirs) / 40
        assert cell.replace(MINUS, "-") == f"{mean:+.1f} [{interval[0]:+.1f}, {interval[1]:+.1f}]"
    assert differences([one]) == []
    assert differences([one, table("runs/b/seed-0", images="b")]) == []


def test_a_difference_needs_a_radius_that_both_tables_know_and_reach():
    near, asked = table(n=500, alpha=0.001), table("runs/b/seed-0", sampling="adaptive", radii=[0.5, 1.25])
    ((_, cells),) = differences([near, asked])
    assert [bool(cell) for cell in cells] == [r in ("0", "0.5") for r in dict(columns([near, asked]))["radius"][:6]]


@pytest.mark.parametrize(
    ("other", "why"), [({"images": "b"}, "different data"), ({}, "different images of the same data")]
)
def test_files_with_different_images_have_no_best(other, why):
    about, rows = table("runs/b/seed-0", **other)
    tables = [table(), (about, rows if other else rows[1:])]
    assert "best at each" not in dict(columns(tables))
    assert notes(tables) == [f"No best model and no differences are shown: the files have {why}."]
    assert notes([table(), table("runs/b/seed-0")]) == []


def test_different_settings_are_noted():
    tables = [table(), table("runs/b/seed-0", n=10**8, dtype="bfloat16", alpha=0.1, seed=3)]
    note = "The files differ in n (1000000000; 100000000), alpha (0.5; 0.1), dtype (float32; bfloat16), seed (0; 3)."
    assert notes(tables) == [note]


def test_adaptive_sampling_knows_only_the_requested_radii(tmp_path):
    asked = table("runs/b/seed-0", reach=2.0, sampling="adaptive", radii=[0.3, 0.5])
    found = dict(columns([asked]))
    assert found["radius"] == ["0", "0.3", "0.5", "abstained [%]", "images"]
    found = dict(columns([table(), asked]))
    assert found["radius"][:5] == ["0", "0.25", "0.3", "0.5", "0.75"]
    shown = [bool(cell) for cell in found["b"]]
    assert shown == [label in ("0", "0.3", "0.5", "abstained [%]", "images") for label in found["radius"]]
    assert found["best at each"][1] == found["a"][1]
    assert found["best at each"][3] == found["b"][3]
    draw(tmp_path / "a.svg", [table(), asked])
    assert (tmp_path / "a.svg").read_text().count("LineCollection") > 0  # error bars without a line


def test_unreachable_radii_are_skipped_or_marked():
    near = table(n=500, alpha=0.001, classes=[])  # reaches 1.10
    assert dict(columns([near]))["radius"][-4:] == ["1", "average radius", "abstained [%]", "images"]
    note = "Not shown, because n, alpha and sigma cannot reach them: 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75."
    assert notes([near]) == [note]
    asked = table("runs/b/seed-0", sampling="adaptive", radii=[0.5])
    assert dict(columns([near, asked]))["radius"] == dict(columns([near]))["radius"]
    found = dict(columns([near, table("runs/b/seed-0", 1.0)]))
    assert found["a, sigma 0.5"][4:6] == ["0.0 ± 0.0", "not reachable"]


@pytest.mark.parametrize("classes", [CIFAR10, ["0", "1"]])
def test_it_prints_and_draws(tmp_path, capsys, classes):
    tables = [table(classes=classes), table("runs/b/seed-0", reach=2.0, classes=classes)]
    show(tables)
    out = capsys.readouterr().out
    assert "Certified accuracy [%] by l2 radius, sigma 0.5" in out
    assert "Difference from a in percentage points, paired by image" in out
    draw(tmp_path / "a.svg", tables)
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.count("certified accuracy") >= 1
    assert ("paper: MaxUp+Gauss" in drawn) == (classes == CIFAR10)


def test_an_unfinished_file_is_marked(tmp_path, monkeypatch):
    whole, part = table(asked=40), table("runs/b/seed-0", file="x/b.tsv", asked=65)
    assert notes([part]) == ["x/b.tsv covers 40 of 65 images; run the same command to finish it."]
    assert [columns([one])[1][1][-1] for one in (whole, part)] == ["40", "40 of 65"]
    assert notes([whole]) == []
    saved = []
    monkeypatch.setattr("maxup.lab.report.certified.save_figure", lambda figure, *_, **__: saved.append(figure))
    draw(tmp_path / "a.png", [whole, part])
    assert [text.get_text() for text in saved[0].legends[0].get_texts()][:2] == ["a", "b (40 of 65 images)"]

"""Certificates of a comparison, against `maxup certify` on the same run."""

import json
from pathlib import Path

import pytest

from maxup.cli.main import main
from maxup.lab.certify.tsv import read

WORDS = ["--seeds", "2", "--m", "2", "--objectives", "smoothadv", "--certify", "12", "--certify_n", "200", "--out", "c"]
TINY = ["--epochs", "2", "--data.train_size", "200", "--model.args", "{hidden: [16]}"]


def test_every_run_is_certified_and_smoothadv_is_trained_for_the_time_of_maxup(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "smoke/digits-gaussian-maxup", *WORDS, *TINY]) == 0
    assert "average certified radius, 12 images, 200 copies, mean ± std of 2 seeds" in capsys.readouterr().out
    result = json.loads(Path("c/compare.json").read_text())
    assert result["certification"] == {"images": 12, "n": 200}
    timed = ["m = 1, time of m = 2", "SmoothAdv, radius 0.5, time of m = 2"]
    assert list(result["runs"]) == ["m = 1", "m = 2", "SmoothAdv, radius 0.5", *timed]
    for name in timed:
        record, runs = result["equal_time"][name], result["runs"]
        rival = runs[name.partition(", time of ")[0]]
        ratio = sum(a["seconds"] / b["seconds"] for a, b in zip(runs["m = 2"], rival, strict=True)) / 2  # the median
        assert record["ratio"] == pytest.approx(ratio)
        assert {run["epochs"] for run in runs[name]} == {record["epochs"]} == {max(1, round(2 * ratio))}

    header, rows = read(Path("c/runs/m-2/seed-1/certified-0.5-n-200.tsv"))
    assert (header["sigma"], header["n"]) == (0.5, 200)
    assert [row.idx for row in rows] == [i * 1597 // 12 for i in range(12)]  # evenly spaced over the test images
    run = result["runs"]["m = 2"][1]
    assert run["radius"] == pytest.approx(sum(row.radius for row in rows if row.correct) / 12)
    assert "certified_1" not in run  # 200 copies certify at most 0.5 * Phi^-1(0.001 ** (1 / 200)) = 0.91
    for radius in (0.25, 0.5):
        count = sum(row.correct and row.radius >= radius for row in rows)
        assert run[f"certified_{radius:g}"] == pytest.approx(100 * count / 12)

    capsys.readouterr()
    assert main(["certify", "c/runs/m-2/seed-1", "--n", "200", "--all"]) == 0  # the same noise by image
    everything = {row.idx: row for row in read(Path("c/runs/m-2/seed-1/certified-0.5.tsv"))[1]}
    assert [(row.predict, row.radius) for row in rows] == [
        (everything[row.idx].predict, everything[row.idx].radius) for row in rows
    ]


def test_runs_are_certified_with_another_noise(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--seeds", "2", "--m", "2", "--no_equal_time", "--certify", "5", "--certify_n", "100", "--out", "c"]
    assert main(["compare", "smoke/digits-gaussian-maxup", *words, "--certify_sigma", "0.25", *TINY]) == 0
    result = json.loads(Path("c/compare.json").read_text())
    assert result["certification"] == {"images": 5, "n": 100, "sigma": 0.25}
    assert "average certified radius, noise 0.25, 5 images, 100 copies, mean" in capsys.readouterr().out
    assert main(["certify", "c/runs/m-1/seed-0", "--n", "100", "--sigma", "0.25", "--all"]) == 0
    everything = {row.idx: row for row in read(Path("c/runs/m-1/seed-0/certified-0.25.tsv"))[1]}
    rows = [everything[i * 1597 // 5] for i in range(5)]
    assert result["runs"]["m = 1"][0]["radius"] == pytest.approx(sum(row.radius for row in rows if row.correct) / 5)
    assert main(["compare", "smoke/digits-gaussian-maxup", *words, "--certify_sigma", "0.5", *TINY]) == 0
    assert json.loads(Path("c/compare.json").read_text())["certification"] == {"images": 5, "n": 100}  # the default
    assert main(["compare", "smoke/digits-gaussian-maxup", *words, "--certify_sigma", "0.50000001", *TINY]) == 0
    assert Path("c/runs/m-1/seed-0/certified-0.50000001-n-100.tsv").exists()

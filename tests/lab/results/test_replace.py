"""A result replaces an earlier one with the same settings, and any other one is kept."""

import json

import pytest

from maxup.lab.results.replace import SETTINGS, replace_result

RESULT = {
    **dict.fromkeys(SETTINGS, 1),
    "seeds": list(range(3000)),
    "summary": {"clean": {}},
    "runs": {"m = 1": [{"clean": 50.0, "seconds": 1.0}] * 3000, "m = 2": []},
}


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "compare.json"
    replace_result(file, RESULT, pytest.fail)
    assert file.stat().st_size > 1 << 16  # the limit of smaller files
    return file


def test_a_result_with_the_same_settings_is_replaced(file):
    runs = {name: [{"clean": 60.0}] for name in RESULT["runs"]}
    replace_result(file, RESULT | {"runs": runs, "environment": {"threads": 2}}, pytest.fail)
    assert json.loads(file.read_text())["runs"] == runs
    assert [path.name for path in file.parent.iterdir()] == ["compare.json"]


@pytest.mark.parametrize(
    ("change", "different"),
    [
        *(({name: 2}, name) for name in SETTINGS),
        ({"images": None}, "images"),
        ({"runs": {"m = 1": []}}, "rows"),
        ({"summary": {}}, "metrics"),
        ({"seeds": [0, 1], "runs": {}}, "seeds, rows"),
    ],
)
def test_a_result_with_different_settings_is_kept_with_its_plot(file, change, different):
    first, said = file.read_bytes(), []
    file.with_suffix(".png").write_bytes(b"plot")
    replace_result(file, RESULT | change, said.append)
    assert said == [f"note: {file} was written with different settings ({different}); it is now compare-1.json"]
    assert file.with_stem("compare-1").read_bytes() == first
    assert (file.parent / "compare-1.png").read_bytes() == b"plot"
    assert not file.with_suffix(".png").exists()
    assert json.loads(file.read_text()) == RESULT | change


def test_damaged_results_are_kept(file):
    said = []
    for number, damaged in enumerate(("[", "[]", '{"runs": 3}'), start=1):
        file.write_text(damaged)
        replace_result(file, RESULT, said.append)
        assert said[-1] == f"note: {file} cannot be read; it is now compare-{number}.json"
        assert file.with_stem(f"compare-{number}").read_text() == damaged
    assert json.loads(file.read_text()) == RESULT

"""The code in the README and the docs runs, their links work, and their numbers are those in results/."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.tables import PAGES, ROOT, fill
from tests.oracles import torchvision_v2

MARKDOWN = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = {"extending.md", "trainers.md"}  # test_extending.py and test_trainers.py run them
BLOCKS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in MARKDOWN
    if page.name not in ELSEWHERE
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]
EXTRAS = ("torchvision", "kornia", "timm", "albumentations", "transformers", "pytorch_lightning")


def run_block(code):
    """Run a block as if it were a file; return the names that it defines."""
    extras = [name for name in EXTRAS if re.search(rf"^\s*(from|import) {name}\b", code, re.MULTILINE)]
    if extras and find_spec("torchvision"):
        torchvision_v2()  # the others import it, and its wheel may need operators declared first
    for name in extras:
        pytest.importorskip(name)
    names = {"__name__": "__main__"}
    exec(compile(code, "block.py", "exec"), names)
    return names


@pytest.mark.parametrize("code", [block for block in BLOCKS if not block.id.startswith("tasks")])
def test_code_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_block(code)
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}


@pytest.mark.parametrize("code", [block for block in BLOCKS if block.id.startswith("tasks")])
def test_tasks_train_on_the_worst_copy(code):
    """Every example produces gradients, its copies differ, and the training loss is the scored loss."""
    names = run_block(code)
    assert all(p.grad is not None for p in names["model"].parameters() if p.requires_grad)
    y = names.get("y", names.get("labels"))
    report = names["objective"].run(names["model"], names["x"], y).report
    assert report.gap > 0
    assert sum(report.wins) == len(next(iter(names["x"].values())) if isinstance(names["x"], dict) else names["x"])
    assert report.replay_error < 1e-5


def test_there_is_code_to_run():
    assert len(BLOCKS) > 25


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_numbers_are_those_of_the_results(page):
    assert fill(page.read_text()) == page.read_text(), "run: python -m benchmarks.tables"


def test_a_misspelled_table_is_an_error():
    with pytest.raises(ValueError, match="<!-- digits-lenght --> is not a table"):
        fill("<!-- digits-lenght -->old<!-- end -->")


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(#[^)]*)?\)", page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert anchor[1:] in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in headings}, anchor


def test_readme_is_short_and_its_table_shows_measured_numbers():
    """Every result in the README is in a generated table of the docs, or a difference in results/*.json."""
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 123
    generated = "".join(
        block
        for page in PAGES
        for block in re.findall(r"<!-- (?!end)[\w-]+ -->(.*?)<!-- end -->", page.read_text(), re.DOTALL)
    )
    for name in ("digits-cause", "docstrings-token_dropout"):
        found = json.loads((ROOT / "results" / f"{name}.json").read_text())["summary"].values()
        generated += " ".join(f"{row.get('difference', 0):+.2f}" for metric in found for row in metric.values())
    generated, readme = (text.replace("\N{MINUS SIGN}", "-") for text in (generated, readme))
    table = [line.split(" | ") for line in readme.splitlines() if line.count("|") == 7 and "---" not in line]
    assert len(table) == 11
    section = readme.partition("## Results")[2].partition("\n## ")[0]
    sentences = [line for line in section.splitlines() if "|" not in line]
    for text in (" ".join(row[1:]) for row in [*table[1:], ["", *sentences]]):
        for number in re.findall(r"[^\s\[\d]?\d+\.\d+", text):  # with its sign
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", generated), number


@pytest.mark.parametrize(("device", "name"), [("cpu", "CPU"), ("cuda", "GPU")])
def test_readme_has_the_measured_cost_of_a_step(device, name):
    ratio = json.loads((ROOT / "results" / f"overhead-{device}.json").read_text())["step_ratio"]["step, m = 4"]
    assert f"{ratio:.2f} times ({name})" in " ".join((ROOT / "README.md").read_text().split())


def run(*command, cwd):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *map(str, command)], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_demo(tmp_path):
    """Run the command of `make demo` with fewer seeds and epochs."""
    command = re.search(r"\.venv/bin/python (-m maxup compare .*)", (ROOT / "Makefile").read_text())[1].split()
    printed = run(*command, "--seeds", 2, "--epochs", 1, cwd=tmp_path)
    assert "m = 1, time of m = 4" in printed
    assert "95 % interval" in printed
    assert (tmp_path / "out" / "compare.json").exists()
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_plain_loop(tmp_path):
    printed = run(ROOT / "examples" / "plain_loop.py", "--epochs", 3, cwd=tmp_path)
    assert float(re.findall(r"accuracy ([\d.]+)", printed)[-1]) > 70


def test_certify_one_image(tmp_path):
    printed = run(ROOT / "examples" / "certify_one_image.py", cwd=tmp_path)
    prediction, radius = re.search(r"predicted (\d), certified for l2 perturbations below ([\d.]+)", printed).groups()
    assert float(radius) > 0.1
    assert f"predicted {prediction}" in printed.splitlines()[1]


@pytest.mark.slow
def test_certification_benchmarks_run_and_write(tmp_path):
    quick = ["--network", "resnet20", "--out", tmp_path]
    run("-m", "benchmarks.certify", "speed", *quick, "--n", 100, "--batch", 50, "--images", 1, "--usual_images", 1,
        "--seconds", 0, cwd=ROOT)  # fmt: skip
    run("-m", "benchmarks.certify", "epochs", *quick, "--count", 16, "--batch_size", 8, "--steps", 1, "--rounds", 1,
        cwd=ROOT)  # fmt: skip
    ways = json.loads((tmp_path / "certify_speed-cpu.json").read_text())["ways"]
    assert {"fixed, float32", "adaptive, bfloat16", "usual loop, float32", "bare network, float32"} <= set(ways)
    ratio = json.loads((tmp_path / "certify_epochs-cpu.json").read_text())["ratio"]
    assert ratio["Gaussian"] == 1


@pytest.mark.slow
def test_benchmarks_run_and_write(tmp_path):
    run("-m", "benchmarks.overhead", "--batch", 4, "--rounds", 1, "--out", tmp_path, cwd=ROOT)
    run("-m", "benchmarks.memory", "--batch", 2, "--out", tmp_path, cwd=ROOT)
    small = ["--scale", 0.02, "--columns", 2, "--length", 5, "--rounds", 1, "--steps", 1]
    run("-m", "benchmarks.language", *small, "--out", tmp_path, cwd=ROOT)
    assert {p.name.split("-")[0] for p in Path(tmp_path).iterdir()} == {"overhead", "memory", "language"}

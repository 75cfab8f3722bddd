"""`maxup reproduce`: a queue of runs that is killed ends like one that was never interrupted."""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from maxup.cli.main import main
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
TABLE = "recipes: [small.yaml, small-maxup.yaml]\n"
SMALL = "base: digits/mlp-gaussian{}\ndata: {{train_size: 200}}\nmodel: {{args: {{hidden: [32]}}}}\nepochs: {}\n"
LOG = Path("runs", "small", "seed-0-budget-0.75", "train.log")


def start(folder, *, rate="0.1", table=TABLE, epochs=16):
    (folder / "table.yaml").write_text(table)
    (folder / "small.yaml").write_text(SMALL.format("", epochs) + f"optim: {{lr: {rate}}}\n")
    (folder / "small-maxup.yaml").write_text(SMALL.format("-maxup", epochs))
    command = [sys.executable, "-m", "maxup", "reproduce", "table.yaml", "--seeds", "1", "--budget", "0.75"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [*command, "--trackers", "none"],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out
    assert "Traceback" not in out
    return out


def results(folder):
    """The results without times."""
    found = {}
    for path in sorted((folder / "results" / "runs").rglob("*.json")):
        found[path.relative_to(folder).as_posix()] = json.loads(path.read_text()) | {
            "seconds": None,
            "training_seconds": None,
            "environment": None,
        }
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    finish(start(folder))
    found = results(folder)
    assert sorted(found) == [
        "results/runs/small-maxup/seed-0-budget-0.75.json", "results/runs/small/seed-0-budget-0.75.json",
    ]  # fmt: skip
    assert all(run["recipe"]["epochs"] == run["last"]["epoch"] == 12 for run in found.values())
    return folder, found


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill(process, with_children):
    """Kill the queue, or the queue and its runs at once."""
    with suppress(OSError):
        for pid in children(process.pid) if with_children else []:
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.communicate()


def reached(log, epoch, process):
    """Whether a run has come so far, or all have ended."""
    return process.poll() is not None or (log.exists() and f"epoch {epoch}/" in log.read_text())


def killed_until_done(folder, whole, kills, seed):
    rng = random.Random(seed)
    for i in range(kills):
        process = start(folder)
        log = folder / (LOG if i < kills / 2 else str(LOG).replace("small", "small-maxup"))
        until(partial(reached, log, rng.randint(1, 11), process))
        kill(process, with_children=i % 2 == 0)
    finish(start(folder))
    assert results(folder) == whole[1]
    out = finish(start(folder))
    assert "2 runs, 2 done before, 0 to do" in out


@pytest.mark.slow
def test_a_killed_queue_ends_as_one_never_interrupted(tmp_path, whole):
    killed_until_done(tmp_path, whole, kills=1, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_killed_queue_ends_as_one_never_interrupted_every_time(tmp_path, whole, seed):
    killed_until_done(tmp_path, whole, kills=4, seed=seed)


@pytest.mark.slow
def test_interrupted_politely_it_saves(tmp_path):
    process = start(tmp_path, epochs=1_000_000)  # more than it can do before it is asked
    log = tmp_path / LOG
    until(lambda: log.exists() and "epoch 1/" in log.read_text(), process)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, out
    assert "the same command resumes" in out
    assert "Traceback" not in out + log.read_text()
    assert "the same command resumes" in log.read_text()


def test_a_failing_job_is_reported_with_its_last_lines(tmp_path):
    started = start(tmp_path, rate="1.0e+8", table="recipes: [small.yaml]\n")
    out, _ = started.communicate(timeout=PATIENCE)
    assert started.returncode == 1
    assert "small/seed-0-budget-0.75 failed with exit code 1" in out
    assert "the loss became" in out
    assert "Traceback" not in out
    assert not results(tmp_path)


def test_dry_run_prints_the_queue_and_trains_nothing(tmp_path, monkeypatch, capsys, whole):
    monkeypatch.chdir(whole[0])
    assert (
        main(["reproduce", "table.yaml", "--seeds", "2", "--budget", "0.75", "--dry_run", "--out", str(tmp_path)]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [(line.split()[0], line.split("epochs")[1].strip()) for line in lines] == [
        ("small/seed-0-budget-0.75", "done"), ("small-maxup/seed-0-budget-0.75", "done"),
        ("small/seed-1-budget-0.75", "to do"), ("small-maxup/seed-1-budget-0.75", "to do"),
    ]  # fmt: skip
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["table-x"], 1), (["nowhere.yaml"], 1), ([], 2), (["table-ptb", "--seeds", "0"], 2),
        (["table-ptb", "--seeds", "x"], 2), (["table-ptb", "--budget", "0"], 2), (["table-ptb", "--budget", "nan"], 2),
        (["table-ptb", "--budget", "1.5"], 2), (["table-ptb", "--wrong"], 2),
    ],
)  # fmt: skip
def test_a_wrong_call_gets_one_message(options, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        found = main(["reproduce", *options])
    except SystemExit as exit:
        found = exit.code
    assert found == code
    assert "maxup reproduce: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_help_has_examples_and_a_dry_run_needs_no_torch(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    assert "--budget 0.3" in capsys.readouterr().out
    code = (
        "import sys; from maxup.cli.main import main; main(['reproduce', 'table-ptb', '--dry-run']); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


def test_a_table_without_any_recipe_yet_is_a_failure(tmp_path, monkeypatch, capsys):
    from maxup.lab.experiments import jobs

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs, "list_recipes", list)
    assert main(["reproduce", "table-cifar10"]) == 1
    err = capsys.readouterr().err
    assert "none of the recipes of" in err
    assert "cifar10/wrn28_10-cutout-maxup" in err
    assert err.count("\n") == 1
    assert main(["reproduce", "table-cifar10", "--dry_run"]) == 0


def test_missing_data_are_reported_once_and_nothing_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MAXUP_DATA", raising=False)
    assert main(["reproduce", "table-cifar10", "--seeds", "2"]) == 1
    found = capsys.readouterr()
    assert found.err.startswith("runs on cifar10 are skipped: cifar10 is not in any of: data")
    assert found.err.count("\n") == 1
    assert "0 to do" in found.out
    assert list(tmp_path.iterdir()) == []


def test_missing_data_do_not_stop_the_others_which_import_nothing_from_the_current_folder(tmp_path):
    """The command itself does not: it is a script in another folder."""
    script, here = tmp_path / "bin" / "maxup", tmp_path / "here"
    script.parent.mkdir()
    here.mkdir()
    script.write_text("import sys\nfrom maxup.cli.main import main\nsys.exit(main())\n")
    for name in ("socket", "yaml", "random", "PIL", "sklearn"):
        (here / f"{name}.py").write_text(f"open('ran-{name}', 'w').close()\n")
    (here / "small.yaml").write_text(SMALL.format("", 1))
    (here / "table.yaml").write_text("recipes: [cifar10/resnet110-cutout, small.yaml]\n")
    words = ["reproduce", "table.yaml", "--seeds", "1", "--budget", "0.01", "--trackers", "none"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    env.pop("PYTHONSAFEPATH", None)
    done = subprocess.run([sys.executable, script, *words], cwd=here, env=env, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "runs on cifar10 are skipped" in done.stdout + done.stderr
    assert list(results(here)) == ["results/runs/small/seed-0.json"]
    assert not list(here.glob("ran-*"))

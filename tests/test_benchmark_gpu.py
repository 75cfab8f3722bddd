"""`python -m benchmarks.gpu` runs every command, lets them time their steps in turn, and continues where it stopped."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu, networks
from maxup.lab.bench.settings import NAMES
from maxup.lab.storage.locks import locked
from tests.waiting import until

QUICK = "maxup bench mlp --device cpu --m 2 --variants maxup --batch_size 4 --input 1,4,4 --rounds 1 --train_steps 0"
WRAPPER = """import pathlib, sys, time
from benchmarks import gpu
from maxup.lab.bench import timing
gpu.COMMANDS = {commands!r}
interleaved = timing.interleaved
def timed(*args, **kwargs):
    print("tests passed:", pathlib.Path({passed!r}).exists(), file=sys.stderr)
    start = time.monotonic()
    found = interleaved(*args, **kwargs)
    time.sleep(0.5)
    print("timed from", start, "to", time.monotonic(), file=sys.stderr)
    return found
timing.interleaved = timed
gpu.main()
"""


STOPPED = """import os, runpy, sys, time
from benchmarks import gpu

def child(name, out):
    code = "import os, time; open({log!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(600)"
    return gpu._start(out / name, [sys.executable, "-c", code])

gpu.COMMANDS = {{"a": "", "b": ""}}
gpu._start_child = child
gpu.stop_with_children()
gpu.main()
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the script with other commands. Children use them, too, and log when they time their steps."""

    def run(commands, *argv):
        wrapper = tmp_path / "wrapper.py"
        wrapper.write_text(WRAPPER.format(commands=commands, passed=str(tmp_path / "passed")))

        def start_child(name, out):
            return gpu._start(out / name, [sys.executable, str(wrapper), "--out", str(out), "--child", name])

        monkeypatch.setenv("MAXUP_COMMIT", "0" * 40)
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        monkeypatch.setattr(gpu, "COMMANDS", commands)
        monkeypatch.setattr(gpu, "_start_child", start_child)
        monkeypatch.setattr("sys.argv", ["gpu", "--out", str(tmp_path), *argv])
        gpu.main()

    return run


def timed(folder):
    """When a command timed its steps, by its log."""
    (line,) = [line for line in (folder / "log.txt").read_text().splitlines() if line.startswith("timed from")]
    return [float(word) for word in line.split()[2::2]]


def test_commands_time_in_turn_once_and_failures_are_named(run, tmp_path, capfd):
    commands = {"a": QUICK, "broken": "maxup bench no_such_network --device cpu", "b": QUICK}
    with pytest.raises(SystemExit, match=r"^failed: broken; see log\.txt in their folders$"):
        run(commands)
    found = json.loads((tmp_path / "a" / "bench.json").read_text())
    assert [row["name"] for row in found["variants"]] == ["standard", "maxup"]
    assert found["environment"]["command"] == f"{QUICK} --out {tmp_path / 'a'}"
    assert timed(tmp_path / "a")[1] < timed(tmp_path / "b")[0]
    assert "no_such_network" in (tmp_path / "broken" / "log.txt").read_text()
    assert "finished before" not in capfd.readouterr().out
    with pytest.raises(SystemExit, match=r"^failed: broken"):
        run(commands)
    assert capfd.readouterr().out.count("finished before") == 2


def test_time_ends(run):
    with pytest.raises(SystemExit, match="stopped in a, because the time is over; run the same command again"):
        run({"a": QUICK}, "--seconds", "0.001")


SLOW_TESTS = """import pathlib, sys, time
ready, passed = map(pathlib.Path, sys.argv[1:])
end = time.monotonic() + 120
while not ready.exists():
    assert time.monotonic() < end, "no network was prepared meanwhile"
    time.sleep(0.05)
time.sleep(0.5)
passed.touch()
"""


def test_tests_run_while_networks_compile_and_end_before_anything_is_timed(run, tmp_path, monkeypatch):
    files = str(tmp_path / "a" / "ready"), str(tmp_path / "passed")
    monkeypatch.setattr(gpu, "TESTS", shlex.join([sys.executable, "-c", SLOW_TESTS, *files]))
    run({"a": QUICK}, "--tests")
    assert "tests passed: True" in (tmp_path / "a" / "log.txt").read_text()


def test_a_command_that_does_not_wait_is_a_failure(run):
    """Its steps were timed beside other commands."""
    with pytest.raises(SystemExit, match=r"^failed: a"):
        run({"a": "benchmarks.docstrings"})  # only defines functions


@pytest.mark.parametrize("commit", ["0" * 40 + "+", None])
def test_results_of_a_dirty_tree_are_measured_again(tmp_path, commit):
    (tmp_path / gpu.DONE).write_text(str(commit))
    assert not gpu._is_finished(tmp_path, commit)
    (tmp_path / gpu.DONE).write_text("0" * 40)
    assert gpu._is_finished(tmp_path, "0" * 40)
    assert not gpu._is_finished(tmp_path, "1" * 40)


def test_data_are_named_before_anything_runs(run, monkeypatch):
    monkeypatch.delenv("MAXUP_DATA", raising=False)
    with pytest.raises(SystemExit, match=r"MAXUP_DATA is not set; .* leave b out of --only"):
        run({"a": QUICK, "b": "benchmarks.fast_modes --data $MAXUP_DATA"})


def test_a_second_process_waits_for_the_first(run, tmp_path):
    with locked(tmp_path), pytest.raises(SystemExit, match="is in use by process"):
        run({"a": QUICK})


def test_children_end_with_a_parent_that_is_stopped(tmp_path):
    """SIGTERM ends a command that times its steps, and one that waits for its turn."""
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(STOPPED.format(log=str(tmp_path / "pids")))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    parent = subprocess.Popen([sys.executable, str(wrapper), "--out", str(tmp_path / "out")], env=env)
    pids = tmp_path / "pids"
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    parent.terminate()
    assert parent.wait() == 1
    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("name", [name for name, command in gpu.COMMANDS.items() if "networks:" in command])
def test_networks_and_variants_exist(name):
    words = shlex.split(gpu.COMMANDS[name])
    assert callable(getattr(networks, words[2].partition(":")[2]))
    variants = words[words.index("--variants") + 1 : words.index("--rounds")]
    assert set(variants) <= set(NAMES)

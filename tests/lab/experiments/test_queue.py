"""A queue of real processes: after any kill, no job is lost or done twice."""

import fcntl
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from maxup.lab.experiments.queue import LOCK, LOG, Task, last_lines, run_queue, visible_devices
from tests.waiting import PATIENCE, until, until_said

ROOT = Path(__file__).parents[3]
QUEUE = """
import sys
from pathlib import Path
from maxup.errors import InterruptedQueueError
from maxup.lab.experiments.queue import Task, run_queue

def task(folder):
    script = "while [ -e ../hold ]; do sleep 0.02; done; sleep 0.1; echo x >> count; cp count result"
    return Task(folder.name, ["sh", "-c", f"cd {folder} && {script}"], folder, (folder / "result").exists)

try:
    run_queue([task(Path(sys.argv[1], f"job-{i}")) for i in range(6)], [None, None], poll=0.01)
except InterruptedQueueError as error:
    sys.exit(str(error))
"""


def shell(folder, name, script):
    (folder / name).mkdir(parents=True, exist_ok=True)
    return Task(name, ["sh", "-c", f"cd {folder / name} && {script}"], folder / name, (folder / name / "result").exists)


def run(tasks, devices=(None,)):
    lines = []
    return run_queue(tasks, devices, say=lines.append, poll=0.01), lines


def test_a_failing_job_does_not_stop_the_others(tmp_path):
    scripts = ["touch result", "echo first; echo >&2 why; exit 3", "kill -9 $$", "true", "touch result"]
    failures, lines = run([shell(tmp_path, f"job-{i}", script) for i, script in enumerate(scripts)])
    assert [failure.name for failure in failures] == ["job-1", "job-2", "job-3"]
    assert "exit code 3" in failures[0].why
    assert failures[0].last_lines == ["first", "why"]
    assert "SIGKILL" in failures[1].why
    assert "without a result" in failures[2].why
    assert (tmp_path / "job-4" / "result").exists()
    assert lines[-1].startswith("[5/5] job-4: done")


def test_a_missing_command_and_an_invalid_folder_are_failures(tmp_path):
    (tmp_path / "file").write_text("")
    tasks = [
        Task("a", ["/nowhere/command"], tmp_path / "a", lambda: False),
        Task("b", ["true"], tmp_path / "file" / "b", lambda: False),
        shell(tmp_path, "c", "touch result"),
    ]
    assert [failure.name for failure in run(tasks)[0]] == ["a", "b"]


def test_devices_run_one_job_each_in_parallel(tmp_path):
    """Jobs 0 and 1 wait for each other, then 2 and 3: no pair could end on one device."""
    busy = f"{tmp_path}/busy-$CUDA_VISIBLE_DEVICES"
    meet = "touch here; timeout {} sh -c 'until [ -e ../job-{}/here ]; do sleep 0.02; done'"
    script = f"mkdir {busy} && {meet} && rmdir {busy} && echo $CUDA_VISIBLE_DEVICES > result"
    tasks = [shell(tmp_path, f"job-{i}", script.format(PATIENCE, i ^ 1)) for i in range(4)]
    failures, _ = run(tasks, ("3", "7"))
    assert not failures  # mkdir fails if a device has two jobs
    used = sorted((tmp_path / f"job-{i}" / "result").read_text().strip() for i in range(4))
    assert used == ["3", "3", "7", "7"]


def test_a_failure_has_the_last_lines_of_the_last_attempt(tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / LOG).write_text("old\n")
    failures, _ = run([shell(tmp_path, "job", "echo new; exit 1")])
    assert failures[0].last_lines == ["new"]
    assert last_lines(tmp_path / "job" / LOG) == ["old", "new"]
    assert last_lines(tmp_path / "nowhere") == []


def start(folder):
    command = [sys.executable, "-u", "-c", QUEUE, str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("seed", range(3))
def test_a_queue_killed_at_random_moments_does_every_job_exactly_once(tmp_path, seed):
    rng = random.Random(seed)
    for _ in range(4):
        process = start(tmp_path)
        for _ in range(rng.randint(1, 4)):
            process.stdout.readline()
        time.sleep(rng.uniform(0, 0.1))  # at any moment after that; the queue may have ended
        process.kill()
        process.communicate()
    last = start(tmp_path)
    out, _ = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, out
    assert [(tmp_path / f"job-{i}" / "count").read_text() for i in range(6)] == ["x\n"] * 6


def test_a_queue_waits_for_jobs_of_a_killed_one(tmp_path):
    (tmp_path / "hold").touch()
    process = start(tmp_path)
    until_said(process, "job-1: started")
    process.kill()
    process.communicate()
    again = start(tmp_path)
    until_said(again, "job-0: another process is working on it")
    (tmp_path / "hold").unlink()
    out, _ = again.communicate(timeout=PATIENCE)
    assert "job-0: already done" in out
    assert (tmp_path / "job-0" / "count").read_text() == "x\n"


def test_two_queues_are_busy_from_the_start(tmp_path):
    """The second queue starts jobs while the first holds its own, and each job runs once."""
    (tmp_path / "hold").touch()
    queues = [start(tmp_path), start(tmp_path)]
    # Each queue has two workers. No job can end before all four run.
    said = [until_said(queue, "started") for queue in queues]
    said = [text + until_said(queue, "started") for queue, text in zip(queues, said, strict=True)]
    (tmp_path / "hold").unlink()
    for i, queue in enumerate(queues):
        out, _ = queue.communicate(timeout=PATIENCE)
        assert queue.returncode == 0, out
        said[i] += out
    started = [set(re.findall(r"^(job-\d): started", text, re.MULTILINE)) for text in said]
    assert len(started[0]) + len(started[1]) == len(started[0] | started[1]) == 6
    assert [(tmp_path / f"job-{i}" / "count").read_text() for i in range(6)] == ["x\n"] * 6


def test_a_skipped_job_is_taken_when_its_holder_dies(tmp_path):
    """The holder of job 0 ends without a result, so this queue, which skipped job 0 first, runs it last."""
    (tmp_path / "a").mkdir()
    with (tmp_path / "a" / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        order = f"echo $(basename $PWD) >> {tmp_path}/order; touch result"
        tasks = [shell(tmp_path, "a", order), shell(tmp_path, "b", order), shell(tmp_path, "c", order)]
        lines = []

        def say(line):
            lines.append(line)
            if "c: done" in line:
                fcntl.flock(lock, fcntl.LOCK_UN)

        assert run_queue(tasks, [None], say=say, poll=0.01) == []
    assert (tmp_path / "order").read_text().split() == ["b", "c", "a"]
    assert lines.count("a: another process is working on it") == 1


def test_two_queues_share_the_work(tmp_path):
    for process in [start(tmp_path), start(tmp_path)]:
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, out
    assert [(tmp_path / f"job-{i}" / "count").read_text() for i in range(6)] == ["x\n"] * 6


JOB = """
import signal, sys, time
asked = []
signal.signal(signal.SIGINT, lambda *_: asked.append(1))
open("ready", "w").close()
while not asked:
    time.sleep(0.01)
time.sleep(0.2)
with open("asked", "w") as file:
    file.write(str(len(asked)))
sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_forwarded_once_and_no_job_is_started(tmp_path, number):
    (tmp_path / "job.py").write_text(JOB)
    script = """
import sys
from pathlib import Path
from maxup.errors import InterruptedQueueError
from maxup.lab.experiments.queue import Task, run_queue
try:
    run_queue([Task(n, [sys.executable, "job.py"], Path(n), lambda: False) for n in "ab"], [None], poll=0.01)
except InterruptedQueueError as error:
    sys.exit(str(error))
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until((tmp_path / "ready").exists, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "the same command resumes" in err
    assert "Traceback" not in err
    assert (tmp_path / "asked").read_text() == "1"
    assert not Path(tmp_path / "b").exists(), out


def test_visible_devices_lists_every_gpu(monkeypatch):
    for count, named, expected in ((0, None, [None]), (2, None, ["0", "1"]), (2, "4,6", ["4", "6"]), (0, "", [None])):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if named is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert visible_devices() == expected

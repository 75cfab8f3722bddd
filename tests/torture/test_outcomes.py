"""Zeros count only if every kind of failure would be seen."""

import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

from tests.torture import faults
from tests.torture.mutations import Payload
from tests.torture.outcomes import classify, one_sentence, run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


def say(text, status=1):
    print(text, file=sys.stderr)
    return status


def test_fine_refused_and_silent(tmp_path):
    assert classify(run(tmp_path, lambda: 0)) == "fine"
    assert classify(run(tmp_path, lambda: 0), same=False) == "silent change"
    assert classify(run(tmp_path, lambda: say("maxup train: no"))) == "refused"


@pytest.mark.parametrize(
    "text", ["", "maxup train: \x1b[31m", "maxup train: a\nb", "Traceback (most recent call last)\n"]
)
def test_what_is_no_sentence(text, tmp_path):
    ended = run(tmp_path, lambda: say(text))
    assert not one_sentence(ended)
    assert classify(ended) == "traceback"


def test_tracebacks_crashes_and_memory(tmp_path):
    assert classify(run(tmp_path, lambda: 1 // 0)) == "traceback"
    assert classify(run(tmp_path, lambda: os.kill(os.getpid(), signal.SIGUSR1) or 0)) == "traceback"
    assert classify(run(tmp_path, lambda: len(bytearray(1 << 36)) and 0)) == "traceback"


def test_hangs(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert classify(run(tmp_path, lambda: len(open("pipe").read()), patience=0.2)) == "hang"  # noqa: SIM115

    def deaf():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)

    assert classify(run(tmp_path, deaf, patience=0.2), long=True) == "hang"
    assert classify(run(tmp_path, lambda: time.sleep(60), patience=0.2), long=True) == "fine"


@pytest.mark.parametrize(
    "action",
    [
        lambda: pickle.loads(pickle.dumps(Payload())) or 0,
        lambda: os.system("true"),
        lambda: subprocess.run(["true"]).returncode,
        lambda: os.mkdir("ran") or 0,
    ],
)
def test_code_executed(action, tmp_path):
    assert classify(run(tmp_path, action)) == "code executed"
    assert classify(run(tmp_path, lambda: 0)) == "fine"  # the marker is gone


def write(folder, point, act):
    count = faults.at(folder, point, act)
    (folder / "a").write_bytes(b"12345678")
    (folder / "a").rename(folder / "b")
    assert (folder / "b").read_bytes() == b"12345678"
    print(count())
    return 0


def test_faults_come_at_every_operation(tmp_path):
    operations = int(run(tmp_path, lambda: write(tmp_path, -1, faults.kill)).out)
    assert operations == 5  # open, write, rename, open, read
    left = []
    for point in range(operations):
        for path in tmp_path.iterdir():
            path.unlink()
        assert run(tmp_path, lambda point=point: write(tmp_path, point, faults.kill)).status == -signal.SIGKILL
        left.append({path.name: path.read_bytes() for path in tmp_path.iterdir()})
    assert left == [{}, {"a": b"1234"}, {"a": b"12345678"}, {"b": b"12345678"}, {"b": b"12345678"}]
    ended = run(tmp_path, lambda: write(tmp_path, 1, faults.fail(28)))
    assert "No space left on device" in ended.err

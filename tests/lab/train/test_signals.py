"""Signals: the first one stops a run between steps, the second one at once. The death of another process: a message."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from torch import nn
from torch.distributed import DistNetworkError

from maxup.errors import InterruptedRunError, RunError
from maxup.lab.storage.checkpoint import latest
from maxup.lab.train.signals import report_lost_peers, stop_on_signal
from tests.lab.train.test_loop import train
from tests.lab.train.test_resume_exact import fingerprint
from tests.waiting import PATIENCE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_once_is_a_question_and_twice_is_now(number):
    before = signal.getsignal(number)
    with stop_on_signal() as should_stop:
        assert not should_stop()
        signal.raise_signal(number)
        assert should_stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_under_torchrun_a_scheduler_asks_twice(monkeypatch):
    """SLURM signals every process of a job, and torchrun passes the signal that it got on to its workers."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    with stop_on_signal() as should_stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert should_stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_closed_terminal_is_a_question_however_often_it_is_asked():
    before = signal.getsignal(signal.SIGHUP)
    with stop_on_signal() as should_stop:
        assert not should_stop()
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert should_stop()
    assert signal.getsignal(signal.SIGHUP) is before


def test_under_nohup_a_closed_terminal_is_none_of_its_business():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal() as should_stop:
            signal.raise_signal(signal.SIGHUP)
            assert not should_stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_whose_terminal_is_closed_saves(tmp_path):
    """A real terminal, where progress is shown: what cannot be written there must not keep it from saving."""
    mine, its = os.openpty()
    command = ["train", "digits/mlp-gaussian", "--epochs", "100000", "--save_every", "600", "--trackers", "none"]
    process = subprocess.Popen(
        [sys.executable, "-m", "maxup", *command, "--out", str(tmp_path)],
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(its)
    try:
        shown = b""
        while b"epoch 3/" not in shown:
            shown += os.read(mine, 10_000)
        os.close(mine)
        process.wait(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130  # asked to stop, which comes after saving: not the signal's, nor a failure's
    step, state = latest(tmp_path / "checkpoints", print)
    assert step == state["step"] >= 20  # two epochs of ten steps were over


NET = {
    "model": {"name": "conv", "args": {"width": 4, "dropout": 0.3}},
    "augment": [{"name": "crop_flip", "padding": 1}],
}
LONG = {
    "maxup": {"objective": {"name": "maxup", "m": 40, "warmup": 0}, "optim": {"accumulate": 2, "ema": 0.9}},
    "SAM": {"objective": {"name": "maxup", "m": 40, "warmup": 0}, "optim": {"sam": 0.05}},
    "adversarial": {"objective": {"name": "adversarial", "steps": 40}},
}


COUNTING = "ignore:.*the forward pass changed variable 'calls'"


@pytest.mark.filterwarnings(COUNTING)
@pytest.mark.parametrize("name", LONG)
def test_a_long_step_is_dropped_between_copies_and_done_again(tmp_path, monkeypatch, name):
    """Never half applied: what resumes ends bit-identical to a run that was never interrupted."""
    changes = NET | LONG[name] | {"epochs": 1}
    train(tmp_path / "whole", changes, save_every=0)
    calls, forward = [], nn.Linear.forward

    def counted(layer, x):
        calls.append(len(x))
        if len(calls) == 100:  # of 41 a step
            signal.raise_signal(signal.SIGTERM)
        return forward(layer, x)

    with monkeypatch.context() as patch:
        patch.setattr("maxup.lab.train.signals.PATIENCE", 0.0)
        patch.setattr(nn.Linear, "forward", counted)
        with pytest.raises(
            InterruptedRunError, match="in the middle of a long step, which is abandoned; the same command"
        ):
            train(tmp_path / "run", changes, save_every=0)
    assert len(calls) == 100
    assert latest(tmp_path / "run" / "checkpoints", print)[0] == 2
    train(tmp_path / "run", changes, save_every=0)
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")


@pytest.mark.filterwarnings(COUNTING)
def test_a_short_step_ends_and_is_saved(tmp_path, monkeypatch):
    calls, forward = [], nn.Linear.forward

    def counted(layer, x):
        calls.append(len(x))
        if len(calls) == 60:
            signal.raise_signal(signal.SIGTERM)
        return forward(layer, x)

    monkeypatch.setattr("maxup.lab.train.signals.PATIENCE", 1e9)
    monkeypatch.setattr(nn.Linear, "forward", counted)
    with pytest.raises(InterruptedRunError, match=r"stopped at step 2 of 4 and saved in .*; the same command resumes"):
        train(tmp_path, NET | {"objective": {"name": "maxup", "m": 40, "warmup": 0}, "epochs": 1})
    assert len(calls) == 82


GLOO = RuntimeError("[/gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:1234")


@pytest.mark.parametrize(
    ("processes", "error", "changed"),
    [
        (2, GLOO, True),
        (2, DistNetworkError("The client socket has failed"), True),
        (1, GLOO, False),
        (2, RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (2, ValueError("gloo"), False),
        (2, RunError("the loss became nan; gloo"), False),
    ],
)
def test_the_error_after_another_process_died_is_a_message(processes, error, changed):
    with pytest.raises((RuntimeError, ValueError)) as caught, report_lost_peers(processes, Path("run")):
        raise error
    if not changed:
        assert caught.value is error
    else:
        assert isinstance(caught.value, RunError)
        assert str(error) in str(caught.value)

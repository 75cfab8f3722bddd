"""Wait for a condition, and act at a chosen moment, independent of the machine's speed. Leave a group of processes."""

import itertools
import os
import sys
import threading
import time
from typing import NoReturn

from torch import distributed

PATIENCE = 600  # seconds; only a failing test waits this long


def until(condition, process=None):
    """Wait until a condition holds. Fail if the process ends before."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "the condition did not hold in time"
        if process is not None and process.poll() is not None:
            assert condition(), process.communicate()[0]
        time.sleep(0.01)


def until_said(process, text):
    """Read a process's output up to the line with the text, and return it. Fail if the process ends before."""
    output, timer = "", threading.Timer(PATIENCE, process.kill)
    timer.start()
    try:
        while text not in output:
            line = process.stdout.readline()
            assert line, f"{text!r} is missing in:\n{output}"
            output += line
    finally:
        timer.cancel()
    return output


def at_call(owner, name, number, act):
    """Call `act` just before call number `number` of a function, counted from 1."""
    calls, original = itertools.count(1), getattr(owner, name)

    def call(*args, **kwargs):
        if next(calls) == number:
            act()
        return original(*args, **kwargs)

    setattr(owner, name, call)


def maxup_after(setup, *arguments):
    """Return a maxup command line that runs Python code first, such as a call of `at_call`."""
    code = f"{setup}\nimport sys\nfrom maxup.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", code, *map(str, arguments)]


def leave_group() -> NoReturn:
    """End a process that used gloo, without the exit handlers of Python.

    Torch may abort while Python exits, if threads of gloo still release tensors (pytorch/pytorch#190489).
    `destroy_process_group` does not end these threads.
    """
    if distributed.is_initialized():
        distributed.destroy_process_group()
    os._exit(0)

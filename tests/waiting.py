"""Wait for what must come, and act at a chosen moment, however fast or busy the machine is."""

import itertools
import sys
import threading
import time

PATIENCE = 600  # seconds; only a test that fails waits that long


def until(condition, process=None):
    """Wait until a condition holds; fail if the process ends before that."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        if process is not None and process.poll() is not None:
            assert condition(), process.communicate()[0]
        time.sleep(0.01)


def until_said(process, text):
    """Read a process's output up to the line that has the text, and return it; fail if the process ends before that."""
    said, timer = "", threading.Timer(PATIENCE, process.kill)
    timer.start()
    try:
        while text not in said:
            line = process.stdout.readline()
            assert line, f"{text!r} was not said:\n{said}"
            said += line
    finally:
        timer.cancel()
    return said


def at_call(owner, name, number, act):
    """Let something happen just before a function is called for the given time, counted from 1."""
    calls, original = itertools.count(1), getattr(owner, name)

    def call(*args, **kwargs):
        if next(calls) == number:
            act()
        return original(*args, **kwargs)

    setattr(owner, name, call)


def maxup_after(setup, *arguments):
    """The maxup command in a process that runs Python code first, such as a call of `at_call`."""
    code = f"{setup}\nimport sys\nfrom maxup.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", code, *map(str, arguments)]

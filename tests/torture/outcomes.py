"""Run one case in a forked child, look at it from outside, and say what it came to."""

import os
import re
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn

from maxup.cli.main import main

KINDS = ("fine", "refused", "traceback", "hang", "silent change", "code executed")
FAILURES = KINDS[2:]  # must be 0
PATIENCE = 30  # seconds; a case takes a fraction of one
MEMORY = 4 << 30  # bytes a case may allocate
PAYLOAD = "ran"  # the folder that a payload makes where it runs
PROGRAMS = ("git", "uname", Path(sys.executable).name)  # that the command itself starts


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    status: int
    """Exit status, or minus the signal that ended it."""
    out: str
    err: str
    hung: bool
    stopped: bool
    """It took long, and SIGTERM ended it."""
    ran: bool
    """It ran code that came from a file."""


def command(place: Path, *words: Any, **options: Any) -> Ended:
    """Run `maxup WORDS` in a folder."""
    return run(place, lambda: main([str(word) for word in words]), **options)


def run(place: Path, action: Callable[[], int], patience: float = PATIENCE) -> Ended:
    """Run an action in a child, in a folder, with bounded time and memory."""
    with TemporaryFile() as out, TemporaryFile() as err:
        ended, alive = os.pipe()  # the latter closes when the child ends
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _be_the_child(place, action, out, err)
        os.close(alive)
        stopped = hung = False
        if not select.select([ended], [], [], patience)[0]:
            stopped = True
            os.kill(child, signal.SIGTERM)
            hung = not select.select([ended], [], [], patience)[0]
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # it, if it hangs, and whatever it started
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(ended)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    marker = place / PAYLOAD
    ran = marker.exists() or "code executed: " in texts[1]
    if marker.is_dir():
        marker.rmdir()
    return Ended(status, *texts, hung=hung, stopped=stopped, ran=ran)


def classify(ended: Ended, *, same: bool = True, long: bool = False) -> str:
    """The kind of an outcome.

    Args:
        ended: How the child ended.
        same: Whether what it accepted means what it meant before, or was named.
        long: Whether a case may take long, if SIGTERM ends it.
    """
    if ended.ran:
        return "code executed"
    if ended.hung or (ended.stopped and not long):
        return "hang"
    if ended.stopped and (ended.status == -signal.SIGTERM or one_sentence(ended)):
        return "fine"
    if ended.status == 0:
        return "fine" if same else "silent change"
    return "refused" if one_sentence(ended) else "traceback"


def one_sentence(ended: Ended) -> bool:
    """Whether a child that failed said why, in a printable line, without a traceback; warnings may stand above it."""
    lines = ended.err.strip().split("\n") if ended.err.strip() else [""]
    return (
        ended.status in (1, 2, 130)
        and "Traceback (most recent call last)" not in ended.err
        and (len(lines) == 1 or re.match(r"maxup( \w+)?: \S", lines[-1]) is not None)
        and all(line.isprintable() for line in lines)
        and lines != [""]
    )


def _be_the_child(place: Path, action: Callable[[], int], out: IO[bytes], err: IO[bytes]) -> NoReturn:
    status = 70
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        os.chdir(place)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        sys.addaudithook(_watch)
        status = action()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _watch(event: str, args: tuple[Any, ...]) -> None:
    """Tell of every program that is started, and of every class that a pickle asks for."""
    if event == "subprocess.Popen":
        words = args[1] if isinstance(args[1], list | tuple) else [args[1]]
        if Path(os.fsdecode(words[0])).name in PROGRAMS:
            return
    elif event not in ("os.system", "os.exec", "os.spawn", "os.posix_spawn", "pickle.find_class"):
        return
    os.write(2, f"code executed: {event} {args!r:.200}\n".encode())

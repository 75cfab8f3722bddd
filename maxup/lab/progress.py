"""Show the progress of a long job, and format metrics as text."""

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from maxup.lab.output import make_console, say

HIDDEN = ("epoch", "skipped_images")  # counts among the metrics of a run; other messages have them


class Progress:
    """A progress bar with loss, speed and time left. If stdout is not a terminal, it prints a line now and then.

    Args:
        done: Steps that were done before the run was resumed.
        quiet: Show nothing. Set on all ranks but the first.
        every: Seconds between lines, if stdout is not a terminal.
    """

    def __init__(self, total: int, done: int = 0, *, quiet: bool = False, every: float = 10.0) -> None:
        self.total, self.done, self.quiet, self.every = total, done, quiet, every
        self.start, self.first, self.last = time.monotonic(), done, 0.0
        self.bar: Any = None
        if not quiet and sys.stdout.isatty():
            from rich.progress import Progress

            self.bar = Progress(console=make_console())
            self.task = self.bar.add_task("", total=total, completed=done)
            self._draw(done, ["training"])

    def __enter__(self) -> "Progress":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar:
            if error[:1] == (None,):  # show 100 % even if the last steps were not shown
                self._draw(self.total, ["done"])
            self.bar.stop()

    def due(self) -> bool:
        """Whether it is time for an update. Check this before reading a loss, which synchronizes the GPU."""
        now = time.monotonic()
        return not self.quiet and now - self.last >= (0.2 if self.bar else self.every)

    def show(self, done: int, text: str, examples: int, unit: str = "examples") -> None:
        """Show metrics as `text`, the steps done, and the speed in `unit`s per second, given the examples per step."""
        now = time.monotonic()
        self.last, self.done = now, done
        speed = (done - self.first) * examples / max(now - self.start, 1e-9)
        left = (self.total - done) * (now - self.start) / max(done - self.first, 1)
        line = f"{text}  {speed:,.0f} {unit}/s"
        if self.bar:
            self._draw(done, line.split("  "))
        else:
            self.say(f"{line}  {100 * done / self.total:.0f} %  {timedelta(seconds=round(left))} left")

    def _draw(self, done: int, words: list[str]) -> None:
        """Draw the percentage, the time left, as many words as fit, and a bar if there is room."""
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

        room = self.bar.console.width - len("100 % 00:00:00 ")
        while len(words) > 1 and len("  ".join(words)) > room:
            words = words[:-1]
        line = "  ".join(words)
        width = min(40, room - len(line) - 1)
        self.bar.columns = (
            TextColumn("{task.description}", markup=False),
            *([BarColumn(width)] if width >= 5 else []),
            TextColumn("{task.percentage:.0f} %"),
            TimeRemainingColumn(),
        )
        self.bar.update(self.task, completed=done, description=line)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self.quiet:
            return
        if self.bar:
            self.bar.console.print(line)
        else:
            say(line, flush=True)


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Format metrics, without those in `HIDDEN`.

    Example:
        >>> format_metrics({"test_loss": 0.25, "test_accuracy": 0.915, "dynamic_lr": 7e-5})
        'test loss 0.2500  test accuracy 91.50 %  dynamic lr 7e-05'
    """
    shown = {name: format_metric(name, value) for name, value in metrics.items() if name not in HIDDEN}
    return "  ".join(f"{name.replace('_', ' ')} {text}" for name, text in shown.items())


def format_metric(name: str, value: float) -> str:
    """Format the value of a metric.

    Example:
        >>> format_metric("test_perplexity", 68.526), format_metric("test_perplexity", 1e30)
        ('68.53', '1e+30')
    """
    if name.endswith("accuracy"):
        return f"{100 * value:.2f} %"
    if name.endswith("perplexity"):
        return f"{value:,.2f}" if value < 1e6 else f"{value:.3g}"
    return f"{value:g}" if 0 < abs(value) < 0.001 else f"{value:.4f}"

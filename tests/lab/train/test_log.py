import io
import json
import os
import pickle
import re
from contextlib import suppress
from pathlib import Path

import pytest

from maxup.errors import RunError
from maxup.lab.progress import Progress
from maxup.lab.train.log import Metrics, read_records


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    metrics.write(step=1, loss=0.5)
    size = metrics.flush()
    metrics.write(step=2, loss=float("nan"))
    metrics.file.close()
    with path.open("a") as file:
        file.write('{"step": 3, "lo')  # a line cut off by a kill
    again = Metrics(path, size)
    again.write(step=2, loss=float("inf"))
    again.file.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "loss": 0.5},
        {"step": 2, "loss": "inf"},
    ]


def test_a_file_that_was_truncated_ends_with_a_whole_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    metrics = Metrics(path, 1000)
    metrics.write(step=3, loss=float("-inf"), text="-inf")
    metrics.file.close()
    assert read_records(path) == [{"step": 1}, {"step": 2}, {"step": 3, "loss": float("-inf"), "text": "-inf"}]


@pytest.mark.parametrize("content", [b"{", b"[]\n", b'{"step": "1"}\n', b"\x80\n", b"[" * 100_000 + b"\n"])
def test_a_line_that_is_not_a_record_gets_a_message(tmp_path, content):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + content)
    with pytest.raises(ValueError, match="has an invalid line; remove the file"):
        read_records(tmp_path / "metrics.jsonl")


def test_rubbish_in_its_place_is_refused_and_left_as_it_is(tmp_path):
    path, rubbish = tmp_path / "metrics.jsonl", pickle.dumps(["\n" * 30, bytes(range(256))])
    path.write_bytes(rubbish)
    with pytest.raises(ValueError, match="has an invalid line; remove the file to resume"):
        Metrics(path, 200)
    assert path.read_bytes() == rubbish


class Terminal(io.StringIO):
    def isatty(self):
        return True


def drawn(monkeypatch, width, *, failure=None):
    """What the bar leaves on a terminal: its lines, without the codes that move the cursor."""
    for name, value in {"COLUMNS": str(width), "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    shown = []
    with suppress(InterruptedError), Progress(600) as progress:
        progress.show(516, "epoch 52/60  loss 0.1234  test accuracy 97.84 %", 128)
        progress.bar.refresh()
        shown.append(_last(terminal))
        if failure:
            raise failure
    return [*shown, _last(terminal)]


def _last(terminal):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).rstrip("\n").replace("\r", "\n").splitlines()[-1]


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (120, r"epoch 52/60  loss 0\.1234  test accuracy 97\.84 %  [\d,]+ examples/s ━[━╸╺ ]+"),
        (80, r"epoch 52/60  loss 0\.1234  test accuracy 97\.84 %( ━[━╸╺ ]+)?"),
        (50, r"epoch 52/60  loss 0\.1234 ━[━╸╺ ]+"),
        (28, r"epoch 52/60"),
    ],
)
def test_percentage_and_time_left_are_whole_at_every_width(monkeypatch, width, words):
    during, after = drawn(monkeypatch, width)
    assert re.fullmatch(words + r" +86 % [-\d]+:[-\d]{2}(:[-\d]{2})?", during.strip())
    assert re.fullmatch(r"done (━+ )?100 % 0:00:00", after.strip())
    assert max(len(during), len(after)) <= width


def test_a_bar_that_was_interrupted_stays_where_it_is(monkeypatch):
    assert " 86 % " in drawn(monkeypatch, 80, failure=InterruptedError())[-1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_gets_a_clear_message(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(step=1)
    size = metrics.flush()
    metrics.file.close()
    metrics.file = Path("/dev/full").open("a")  # noqa: SIM115
    metrics.write(step=2)
    with pytest.raises(
        RunError, match=r"metrics\.jsonl: No space left on device; the checkpoints are safe: free some space"
    ):
        metrics.flush()
    with pytest.raises(RunError, match="No space left on device"):
        metrics.write(step=3, much="x" * 1_000_000)
    metrics.close()  # nor a second error, which would hide the first
    assert (tmp_path / "metrics.jsonl").stat().st_size == size


def test_plain_lines_where_there_is_no_terminal(capsys):
    with Progress(100, 50, every=0) as progress:
        assert progress.due()
        progress.show(75, "loss 0.5", 10)
    out = capsys.readouterr().out
    assert out.startswith("loss 0.5")
    assert "examples/s  75 %" in out
    assert "left" in out


def test_quiet_says_nothing(capsys):
    with Progress(10, quiet=True) as progress:
        assert not progress.due()
        progress.say("hello")
    assert capsys.readouterr().out == ""


def test_a_file_without_end_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.touch()
    os.truncate(path, 1 << 40)
    for read in (read_records, Metrics):
        with pytest.raises(ValueError, match=r"^metrics.jsonl has the wrong size, 1099511627776 bytes$"):
            read(path)

import json
from pathlib import Path

import pytest

from maxup.engine.log import Metrics, Progress, read_records
from maxup.engine.stop import RunError


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


def test_a_file_that_was_shortened_ends_with_a_whole_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    metrics = Metrics(path, 1000)
    metrics.write(step=3, loss=float("-inf"))
    metrics.file.close()
    assert read_records(path) == [{"step": 1}, {"step": 2}, {"step": 3, "loss": float("-inf")}]


@pytest.mark.parametrize("content", [b"{", b"[]\n", b'{"step": "1"}\n', b"\x80\n", b"[" * 100_000 + b"\n"])
def test_a_line_that_is_no_record_gets_a_sentence(tmp_path, content):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + content)
    with pytest.raises(ValueError, match="has a line that is no record; remove it"):
        read_records(tmp_path / "metrics.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_gets_a_sentence_that_says_what_stays(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(step=1)
    size = metrics.flush()
    metrics.file.close()
    metrics.file = Path("/dev/full").open("a")  # noqa: SIM115
    metrics.write(step=2)
    with pytest.raises(RunError, match=r"metrics\.jsonl: No space left on device; what is saved stays: make room"):
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

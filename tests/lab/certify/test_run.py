"""Certifying a data set equals `certify_many` per image, also after an interruption, and the header says how."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

from maxup.errors import CertificateError
from maxup.lab.certify import run, tsv
from maxup.lab.certify.run import Settings, certify, describe, make_smooth
from maxup.lab.certify.target import Target
from maxup.lab.data import load_data

SETTINGS = Settings(sigma=0.5, n0=20, n=200, batch_size=100)
CPU = torch.device("cpu")


class Stopping(nn.Sequential):
    """A network that raises KeyboardInterrupt once, after `left` passes."""

    left = -1

    def forward(self, x):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().forward(x)


@pytest.fixture
def target():
    torch.manual_seed(0)
    images, _ = load_data("digits")
    return Target("net", Stopping(nn.Flatten(), nn.Linear(64, 10)).eval(), images)


def lines(path):
    """The rows without the time, which may differ, and the hash."""
    return [line.split("\t")[:5] for line in path.read_text().splitlines()[1:]]


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, adaptive=True, radii=(0.1, 0.25))])
def test_rows_equal_those_of_the_smoothed_classifier(target, tmp_path, settings):
    chosen = list(range(0, 400, 20))
    found = certify(target, settings, chosen, tmp_path / "a.tsv", say=lambda _: None)
    smooth = make_smooth(target, settings, CPU)
    how = {"indices": chosen, "adaptive": settings.adaptive, "radii": settings.radii}
    wanted = smooth.certify_many(target.pixels(chosen), 20, 200, 0.001, 100, **how)
    for row, certificate in zip(found, wanted, strict=True):
        assert (row.predict, row.label) == (certificate.predict, int(target.images.y[row.idx]))
        assert row.radius == pytest.approx(certificate.radius, abs=1e-6)
        assert row.samples == (certificate.samples if settings.adaptive else None)


def test_an_interrupted_and_resumed_file_is_the_same(target, tmp_path):
    chosen = list(range(40))
    certify(target, SETTINGS, chosen, tmp_path / "whole.tsv", say=lambda _: None)
    target.model.left = 50  # in the second group of images
    with pytest.raises(KeyboardInterrupt):
        certify(target, SETTINGS, chosen, tmp_path / "cut.tsv", say=lambda _: None)
    assert len(tsv.read(tmp_path / "cut.tsv")[1]) == 16
    certify(target, SETTINGS, chosen, tmp_path / "cut.tsv", say=lambda _: None)
    assert lines(tmp_path / "cut.tsv") == lines(tmp_path / "whole.tsv")


def test_rows_of_another_machine_that_do_not_arrive_are_missed(target, tmp_path, monkeypatch):
    """Rank 0 of two, whose other machine writes to a folder of its own."""
    monkeypatch.setattr(run, "_processes", lambda: nullcontext((0, 2, lambda: None)))
    monkeypatch.setattr(run, "_from_rank_0", lambda value, world: value)
    with pytest.raises(CertificateError, match=r"a.tsv lacks 4 images .* a folder that all machines share"):
        certify(target, SETTINGS, list(range(8)), tmp_path / "a.tsv", say=lambda _: None)
    assert [row.idx for row in tsv.read(tmp_path / "a.tsv")[1]] == [0, 2, 4, 6]


def test_the_header_records_the_settings(target):
    about = describe(target, replace(SETTINGS, dtype="bfloat16", adaptive=True, seed=3), CPU)
    expected = {
        "subject": "net", "sigma": 0.5, "n0": 20, "n": 200, "alpha": 0.001, "dtype": "bfloat16", "forward": "eager",
        "sampling": "adaptive", "seed": 3,
    }  # fmt: skip
    assert {key: about[key] for key in expected} == expected
    assert set(tsv.SAME) <= set(about)


def test_labels_of_a_file_are_checked_against_the_data(target, tmp_path):
    """Also if the header names the same images."""
    path, chosen = tmp_path / "a.tsv", list(range(8))
    about, found = describe(target, SETTINGS, CPU), certify(target, SETTINGS, chosen, path, say=lambda _: None)
    path.unlink()
    tsv.begin(path, about)
    wrong = replace(found[3], label=(found[3].label + 1) % 10, predict=-1, radius=0.0, correct=False)
    tsv.append(path, [*found[:3], wrong, *found[4:]], samples=False)
    before = path.read_bytes()
    with pytest.raises(CertificateError, match="line 6: the image or the label is not in the data"):
        certify(target, SETTINGS, chosen, path, say=lambda _: None)
    assert path.read_bytes() == before


def test_temporary_files_of_killed_processes_are_removed(target, tmp_path):
    (tmp_path / f".tmp-{2**22 + 1}-a.tsv").write_text("half")  # no such process can be alive
    kept = [".tmp-mine", f".tmp-{2**22 + 1}-thesis", f".tmp-{2**22 + 1}-b.tsv"]  # files of other programs
    for name in kept:
        (tmp_path / name).write_text("kept")
    certify(target, SETTINGS, [0], tmp_path / "a.tsv", say=lambda _: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "a.tsv"])

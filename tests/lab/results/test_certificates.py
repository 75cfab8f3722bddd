"""What is written into a run.json, and what is not."""

import json

import pytest

from maxup.lab.certify.run import Settings
from maxup.lab.certify.tsv import Row
from maxup.lab.results.certificates import write_certified_metrics

SETTINGS = Settings(sigma=0.5, n=1000)
ROWS = [Row(i, 1, 1, 0.6 if i < 10 else 0.2, True, "0:00:00") for i in range(20)]
RUN = {"recipe": {}, "seed": 0, "last": {"test_accuracy": 0.9}, "seconds": 1.0, "environment": {}, "steps": 30}


@pytest.fixture
def path(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    return tmp_path / "run.json"


def test_accuracies_and_the_number_of_images_are_recorded(path):
    assert write_certified_metrics(path, ROWS, SETTINGS, trained=0.5, images=20, step=30) is None
    run = json.loads(path.read_text())
    assert (run["last"]["certified_accuracy_0.5"], run["last"]["test_accuracy"]) == (0.5, 0.9)
    assert (run["certified"]["images"], run["certified"]["n"]) == (20, 1000)


@pytest.mark.parametrize("step", [20, 40, None])
def test_certificates_of_another_step_are_not_recorded(path, step):
    before = path.read_bytes()
    message = write_certified_metrics(path, ROWS, SETTINGS, trained=0.5, images=20, step=step)
    assert message == f"{path} is not updated: it has step 30, but the certificates are for step {step}."
    assert path.read_bytes() == before


def test_a_subset_of_the_images_is_not_recorded(path):
    before = path.read_bytes()
    assert "Reports require: every 20th image (without --max) or --all" in str(
        write_certified_metrics(path, ROWS[:-1], SETTINGS, trained=0.5, images=20, step=30)
    )
    assert path.read_bytes() == before

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from maxup.errors import RunError
from maxup.lab.data import user_data
from maxup.lab.experiments import compare as module
from maxup.lab.experiments.certification import Certification
from maxup.lab.experiments.compare import Attack, Measurement, compare, run_once
from maxup.lab.recipes.load import recipe_from
from maxup.lab.results.comparison import CORRUPTED
from maxup.lab.robustness.corruptions import CORRUPTIONS
from maxup.lab.robustness.measure import measure
from maxup.lab.train.runs import open_run
from tests.lab.data.fake import write_folders
from tests.lab.train.test_loop import RECIPE

QUICK = Measurement(Attack(0.1, steps=1))


def test_the_time_of_a_run_is_without_compiling(tmp_path):
    recipe = recipe_from(RECIPE | {"epochs": 1})
    run_once(recipe, tmp_path, QUICK)
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(record | {"training_seconds": 10.0, "compile_seconds": 4.0}))
    assert run_once(recipe, tmp_path, QUICK)[0]["seconds"] == 6
    del record["compile_seconds"]  # as an older version wrote it
    (tmp_path / "run.json").write_text(json.dumps(record | {"training_seconds": 10.0}))
    assert run_once(recipe, tmp_path, QUICK)[0]["seconds"] == 10


@pytest.mark.parametrize(
    ("said", "test_set", "paired"),
    [({}, True, False), ({}, False, True), ({"validation": 0.2}, True, True), ({"train_size": 20}, True, True)],
)
def test_differences_are_paired_if_the_seed_selects_the_training_examples(
    said, test_set, paired, tmp_path, monkeypatch
):
    x, y = torch.arange(120.0).view(60, 2), torch.arange(60) % 3
    values = iter([50.0, 60.0, 70.0, 81.0, 60.0, 73.0])  # of m = 1 and m = 2 for each seed
    monkeypatch.setattr(module, "run_once", lambda *args, **options: ({"clean": next(values), "seconds": 1.0}, {}))
    result = compare(
        recipe_from(RECIPE | {"data": {"train_size": None} | said}), tmp_path, seeds=3, ms=[2], objectives=[],
        measurement=QUICK, equal_time=False, say=lambda line: None,
        data_from=lambda: (x, y, x, y) if test_set else (x, y),
    )  # fmt: skip
    assert result["paired"] == paired
    row = result["summary"]["clean"]["m = 2"]
    assert row["difference"] == pytest.approx(34 / 3)
    assert (row["low"] > 0) == paired  # the seeds differ by more than the rows


def test_measured_on_some_images_and_the_clean_accuracy_on_all(tmp_path):
    """Accuracies are those of an independent evaluation of the same run."""
    recipe = recipe_from(RECIPE | {"epochs": 2})
    found, _ = run_once(recipe, tmp_path, replace(QUICK, robustness=True, images=40))
    record = json.loads((tmp_path / "run.json").read_text())
    assert found["clean"] == pytest.approx(100 * record["last"]["test_accuracy"])
    run = open_run(tmp_path, "last")
    total = len(run.task.test)
    chosen = run.task.test.subset([i * total // 40 for i in range(40)])
    logits = run.model(run.task.prepare(chosen.x)).detach()
    loss = torch.nn.functional.cross_entropy(logits, chosen.y)
    assert found["nll"] == pytest.approx(float(loss), rel=1e-5)
    robust = measure(run, images=40, quiet=True)
    assert found["corrupted"] == pytest.approx(100 * robust["corrupted"]["accuracy"])
    kinds = {name.removeprefix("corrupted_") for name in found if name.startswith("corrupted_")}
    assert kinds == set(CORRUPTED) == set(CORRUPTIONS)
    assert sum(found[f"corrupted_{kind}"] for kind in kinds) / 5 == pytest.approx(found["corrupted"])
    assert found["ece"] == pytest.approx(robust["clean"]["ece"])
    right = round(found["attacked"] * 40 / 100)
    assert 0 < right < 40
    assert found["attacked"] == pytest.approx(100 * right / 40), "not measured on 40 images"
    plain = set(run_once(recipe, tmp_path, QUICK)[0])
    assert plain == {"seed", "epochs", "clean", "worst", "attacked", "gradient", "seconds"}


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.rand(60, 2), r"robustness is measured on images, but the examples have shape \(2,\)"),
        (torch.randn(60, 1, 4, 4), r"robustness needs pixels in \[0, 1\], but some are outside"),
    ],
)
def test_robustness_of_other_examples_fails_before_training(tmp_path, x, message):
    recipe = recipe_from(RECIPE | {"data": {"train_size": None}})
    options = {"seeds": 2, "ms": [2], "objectives": [], "measurement": replace(QUICK, robustness=True)}
    with pytest.raises(RunError, match=message):
        compare(recipe, tmp_path, **options, data_from=lambda: (x, torch.arange(60) % 3))
    assert not list(tmp_path.iterdir())


IN_MEMORY = "has no test images in memory to certify on; give images with --data or --data_from"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("floats", r"<lambda> has pixels from -1 to 2, but certification needs pixels in \[0, 1\]; scale them"),
        ("stream", f"<lambda> {IN_MEMORY}"),
        ("folder", f"^imagefolder {IN_MEMORY}"),
    ],
)
def test_images_that_cannot_be_certified_fail_before_training(data, message, tmp_path, monkeypatch):
    settings, options = {"train_size": None, "workers": 0}, {}
    if data == "folder":
        settings |= {"name": "imagefolder", "root": str(write_folders(tmp_path / "images")), "size": 8}
    else:
        x = torch.linspace(-1, 2, 60)[:, None, None, None].expand(60, 1, 4, 4).contiguous()
        rows = [(image.clamp(0, 1), i % 3) for i, image in enumerate(x)]
        options["data_from"] = (lambda: (x, torch.arange(60) % 3) * 2) if data == "floats" else lambda: rows
    if data == "stream":
        monkeypatch.setattr(user_data, "MEMORY", 0)
    noise = {"perturb": [{"name": "gaussian", "sigma": 0.5}], "model": {"name": "mlp", "normalize": True}}
    options |= {"seeds": 2, "ms": [2], "objectives": [], "measurement": replace(QUICK, certification=Certification(5))}
    with pytest.raises(RunError, match=message):
        compare(recipe_from(noise | {"data": settings, "epochs": 1}), tmp_path / "c", **options)
    assert not (tmp_path / "c").exists()


def test_a_shortlist_of_token_ids_fails_before_training(tmp_path):
    tokens = torch.randint(9, (60, 6))
    recipe = recipe_from(
        {"perturb": [{"name": "token_dropout", "p": 0.2, "mask_id": 0}], "objective": {"name": "maxup", "shortlist": 2}}
    )
    options = {"seeds": 2, "ms": [8], "objectives": [], "measurement": QUICK}
    with pytest.raises(RunError, match=r"objective\.shortlist needs images or numbers"):
        compare(
            recipe, tmp_path, **options, data_from=lambda: (tokens, torch.arange(60) % 3),
            model_from=lambda shape, num_classes: nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(18, 3)),
        )  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_one_slow_run_does_not_change_equal_time(tmp_path, monkeypatch):
    seconds = iter([1.0, 2.0, 1.0, 90.0, 1.0, 2.2, *[2.0] * 3])  # m = 1 and m = 2 for each seed, then equal time
    monkeypatch.setattr(module, "run_once", lambda *args, **options: ({"clean": 50.0, "seconds": next(seconds)}, {}))
    options = {"seeds": 3, "ms": [2], "objectives": [], "measurement": QUICK, "say": lambda line: None}
    result = compare(recipe_from(RECIPE), tmp_path, **options)
    assert result["equal_time"]["m = 1, time of m = 2"]["ratio"] == pytest.approx(2.2)

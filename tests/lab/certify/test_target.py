import json

import pytest
import torch
from torch import nn

from maxup.cli.main import main
from maxup.errors import DataError, RunError
from maxup.lab.certify.target import digest, load_target, probe_logits, target_from_module
from maxup.lab.data import load_data
from maxup.lab.models.normalize import Normalized
from maxup.lab.recipes.load import parse_recipe
from maxup.lab.train.loop import train
from maxup.lab.train.runs import open_run
from tests.lab.data.fake import write_cifar10


def make(folder, recipe="smoke/digits-gaussian", *more):
    return train(parse_recipe(recipe, ["--epochs", "1", "--model.args.hidden", "[8]", *more]), folder, quiet=True)


def test_a_run_and_its_export_have_the_same_network_and_images(tmp_path):
    make(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "model")]) == 0
    run, exported = load_target(tmp_path / "run"), load_target(tmp_path / "model")
    assert run.sigma == exported.sigma == 0.5
    assert digest(run.model, run.images) == digest(exported.model, exported.images)
    x = run.pixels([3, 5])
    assert 0 <= x.min() <= x.max() <= 1
    opened = open_run(tmp_path / "run")
    assert torch.equal(run.model(x), opened.model(opened.task.prepare(opened.task.test.x[[3, 5]])))


def test_moved_images_are_found_with_root(tmp_path):
    write_cifar10(tmp_path / "before", n=4)
    words = ["--data.root", str(tmp_path / "before"), "--data.train_size", "12", "--model.name", "conv"]
    make(tmp_path / "run", "digits/mlp-gaussian", "--data.name", "cifar10", *words, "--model.args", "{width: 2}")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "model")]) == 0
    (tmp_path / "before").rename(tmp_path / "now")
    for name in ("run", "model"):
        with pytest.raises(DataError, match=r"cifar10 is not in any of: .*before"):
            load_target(tmp_path / name)
        assert len(load_target(tmp_path / name, root=str(tmp_path / "now")).images) == 4


def test_a_network_trained_on_normalized_images_takes_pixels(tmp_path):
    make(tmp_path / "run", "digits/mlp-gaussian")
    target, run = load_target(tmp_path / "run"), open_run(tmp_path / "run")
    assert target.sigma is None  # its noise was not on pixels
    torch.testing.assert_close(target.model(target.pixels([7])), run.model(run.task.prepare(run.task.test.x[[7]])))


def test_digest_depends_on_weights_structure_and_images():
    images, _ = load_data("digits")
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    network, _ = digest(model, images)
    assert digest(nn.Sequential(model), images)[0] != network
    assert digest(model, images.subset([1, 2])) == (network, digest(nn.ReLU(), images.subset([1, 2]))[1])
    model.weight.data[0, 0] += 1e-6
    assert digest(model, images)[0] != network


def test_probe_logits_depend_on_the_forward_pass():
    class Net(nn.Linear):
        def forward(self, x):
            return nn.functional.dropout(super().forward(self.prepare(x).flatten(1)), 0.1, training=True)

    torch.manual_seed(0)
    (images, _), model, cpu = load_data("digits"), Net(64, 10), torch.device("cpu")
    Net.prepare = staticmethod(lambda x: x)
    before, weights = probe_logits(model, images, cpu), digest(model, images)
    assert len(before) == 20
    assert probe_logits(model, images, cpu) == before
    Net.prepare = staticmethod(lambda x: 2 * x - 1)
    assert probe_logits(model, images, cpu) != before
    assert digest(model, images) == weights


def test_a_module_must_be_an_nn_module():
    with pytest.raises(RunError, match=r"mine:net returned an int; it must return a torch\.nn\.Module"):
        target_from_module("mine:net", lambda: 3, load_data("digits"), "digits")


def test_the_recipe_of_an_export_is_checked_before_it_is_parsed(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    train(parse_recipe("digits/mlp-gaussian", ["--epochs", "1", "--data.train_size", "50"]), folder, quiet=True)
    assert main(["export", str(folder), str(tmp_path / "model")]) == 0
    path = tmp_path / "model/config.json"
    config = json.loads(path.read_text())
    config["recipe"]["optim"]["milestones"] = [0.5] * 101
    path.write_text(json.dumps(config))
    monkeypatch.setattr("jsonargparse.ArgumentParser.parse_object", lambda *_: pytest.fail("the parser was called"))
    with pytest.raises(RunError, match=r"^the recipe in \S+config\.json is invalid: optim\.milestones has 101 values"):
        load_target(tmp_path / "model", "last")


def test_certificates_of_version_0_1_stay_valid():
    """Their digest has the class by its old name."""

    class Normalised(Normalized):
        pass

    images = load_data("digits")[0]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    mean, std = images.mean, images.std
    assert digest(Normalized(model, mean, std), images) == digest(Normalised(model, mean, std), images)

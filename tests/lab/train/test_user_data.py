"""Training on a user's data set: a streamed run resumes exactly, and rows and tokens train."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from maxup.errors import RecipeError, RunError
from maxup.lab.certify.target import load_target, target_from_module
from maxup.lab.data import user_data
from maxup.lab.data.user_data import from_user
from maxup.lab.recipes.load import recipe_from
from maxup.lab.report.contact_sheet import copies_of_run
from maxup.lab.tasks.vision import Vision
from maxup.lab.train.runs import open_run
from tests.lab.train.test_loop import train
from tests.lab.train.test_resume_exact import fingerprint


class Shifted(Dataset):
    """Random shifts of random images, which depend on the global generator."""

    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.y = torch.arange(60) % 3
        self.x = torch.randint(60, (60, 1, 6, 6), generator=g, dtype=torch.uint8)

    def __len__(self):
        return 60

    def __getitem__(self, i):
        return self.x[i].roll(int(torch.randint(6, ())), -1), self.y[i]


class StoppedError(Exception):
    pass


RECIPE = {
    "data": {"train_size": None, "workers": 1},
    "model": {"name": "mlp", "args": {"hidden": [8]}},
    "perturb": [{"name": "gaussian", "sigma": 0.1}],
    "objective": {"name": "maxup", "m": 2, "warmup": 0},
    "batch_size": 8,
    "epochs": 2,
}


@pytest.mark.slow
def test_a_stopped_run_on_streamed_data_ends_as_one_that_was_never_stopped(tmp_path, monkeypatch):
    train(tmp_path / "whole", RECIPE, save_every=0, data_from=Shifted)
    calls, step = [], Vision.step

    def stopping(task, model, batch):
        calls.append(1)
        if len(calls) == 9:  # of 12: in the second epoch
            raise StoppedError
        return step(task, model, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Vision, "step", stopping)
        with pytest.raises(StoppedError):
            train(tmp_path / "run", RECIPE, save_every=0, data_from=Shifted)
    train(tmp_path / "run", RECIPE, save_every=0, data_from=Shifted)
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")


@pytest.mark.parametrize("kind", [list, iter])
def test_streamed_data_train_as_data_in_memory(kind, tmp_path, monkeypatch):
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(40, 2, 4, 4, generator=g), torch.arange(40) % 2
    examples = [(x[i], int(y[i])) for i in range(40)]
    train(tmp_path / "memory", RECIPE, data_from=lambda: (kind(examples[:32]), kind(examples[32:])))
    monkeypatch.setattr(user_data, "MEMORY", 1000)
    train(tmp_path / "stream", RECIPE, data_from=lambda: (kind(examples[:32]), kind(examples[32:])))
    assert fingerprint(tmp_path / "memory") == fingerprint(tmp_path / "stream")


def rows():
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) * 50 + 200
    return x, (x[:, 0] > x[:, 1]).long()


def tokens():
    x = torch.randint(9, (200, 4), generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 4).long()


def net(shape, num_classes):
    return nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(6 * shape[0], num_classes))


def test_rows_and_tokens_train(tmp_path):
    assert train(tmp_path / "rows", RECIPE | {"epochs": 5}, data_from=rows)["last"]["test_accuracy"] > 0.85
    words = RECIPE | {"perturb": [{"name": "embedding_dropout", "p": 0.1}], "model": {"args": {}}, "epochs": 5}
    assert train(tmp_path / "words", words, data_from=tokens, model_from=net)["last"]["test_accuracy"] > 0.9
    with pytest.raises(RecipeError, match="your data are token ids, but mlp takes images or rows of numbers"):
        train(tmp_path / "none", words, data_from=tokens)
    with pytest.raises(RecipeError, match=r"model.normalize is for images, but your examples have shape \(3,\)"):
        train(tmp_path / "none", RECIPE | {"model": {"name": "mlp", "normalize": True}}, data_from=rows)


@pytest.mark.parametrize("changed", [0, 1, 2, None])
@pytest.mark.parametrize("memory", [2**31, 1000])
def test_the_digest_covers_all_parts(changed, memory, monkeypatch):
    monkeypatch.setattr(user_data, "MEMORY", memory)

    def data(changed=None):
        x = [x + (part == changed) for part, x in enumerate(torch.arange(60.0).view(3, 10, 2))]
        return tuple([(row, i % 2) for i, row in enumerate(rows)] for rows in x)

    recipe, device = recipe_from(RECIPE | {"data": {"train_size": None, "workers": 0}}), torch.device("cpu")
    before, after = (Vision(recipe, device, data_from=lambda part=part: data(part)) for part in (None, changed))
    old = before.identity | {"data": before.train.digest}  # as recorded by old runs
    recorded = {"data_from": after.identity["data_from"]}
    if changed is None:
        after.check_identity(before.identity | recorded, "run")
    else:
        with pytest.raises(RunError, match="run was trained with other data than --data_from"):
            after.check_identity(before.identity | recorded, "run")
    if changed == 0:
        with pytest.raises(RunError, match="run was trained with other data than --data_from"):
            after.check_identity(old | recorded, "run")
    else:
        after.check_identity(old | recorded, "run")


def test_only_images_are_shown_and_certified(tmp_path):
    train(tmp_path / "rows", RECIPE | {"epochs": 1}, data_from=rows)
    with pytest.raises(RunError, match=r"examples of shape \(3,\) cannot be shown as images"):
        copies_of_run(open_run(tmp_path / "rows", data_from=rows), 2, batch=0, images=2)
    with pytest.raises(RunError, match=r"has examples of shape \(3,\), but only images can be certified"):
        load_target(tmp_path / "rows", data_from=rows)

    def floats(scale=1.0):
        x = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        return scale * x, torch.arange(60) % 3

    train(tmp_path / "floats", RECIPE | {"epochs": 1}, data_from=floats)
    target = load_target(tmp_path / "floats", data_from=floats)
    x = target.images.x[:2]
    assert torch.equal(target.model.mean.flatten(), torch.tensor(target.images.mean))  # of pixels, not of bytes
    assert 0.4 < float(target.model.mean) < 0.6
    assert torch.allclose(target.model(x), target.model.model(target.images.normalize(x)), atol=1e-5)
    with pytest.raises(RunError, match=r"has pixels from .* to 2, but certification needs pixels in \[0, 1\]"):
        target_from_module("mine:net", lambda: nn.Flatten(), from_user(floats(2.0)), "mine:data")

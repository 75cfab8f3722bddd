import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from maxup.errors import ModelError
from maxup.lab.models import create_model
from maxup.lab.models.weights import load_weights
from maxup.lab.recipes.load import recipe_from
from maxup.lab.train.loop import train
from tests.lab.data.fake import Reduce, hostile

SHAPE = (1, 8, 8)


def net(num_classes=10, width=4):
    return create_model("conv", shape=SHAPE, num_classes=num_classes, width=width)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.fixture
def source():
    model = net()
    model(torch.rand(4, *SHAPE))  # so that the statistics are not the initial ones
    return model


WAYS = {
    "safetensors": lambda state, path: save_file(state, path.with_suffix(".safetensors")),
    "state dict": lambda state, path: torch.save(state, path),
    "old format": lambda state, path: torch.save(state, path, _use_new_zipfile_serialization=False),
    "checkpoint": lambda state, path: torch.save({"epoch": 3, "arch": "net", "state_dict": state}, path),
    "wrapped": lambda state, path: torch.save({"model": {f"module.{k}": v for k, v in state.items()}}, path),
    "without counters": lambda state, path: torch.save(
        {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}, path
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_usual_file_is_read(tmp_path, source, way):
    WAYS[way](source.state_dict(), tmp_path / "weights.pth")
    model = net()
    load_weights(model, next(tmp_path.iterdir()))
    if way == "without counters":
        model[1].num_batches_tracked += 1
        model[4].num_batches_tracked += 1
        model[7].num_batches_tracked += 1
    assert same(model, source)


def test_half_precision_weights_are_converted(tmp_path, source):
    save_file({k: v.half() for k, v in source.state_dict().items()}, tmp_path / "half.safetensors")
    model = net()
    load_weights(model, tmp_path / "half.safetensors")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model[0].weight, source[0].weight.half().float())


def test_another_number_of_classes(tmp_path, source):
    torch.save(source.state_dict(), tmp_path / "ten.pt")
    model = net(num_classes=3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ModelError, match=r"has 10 classes but the data has 3; .*model\.new_head"):
        load_weights(model, tmp_path / "ten.pt")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    load_weights(model, tmp_path / "ten.pt", new_head=True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name] if name.startswith("12.") else source.state_dict()[name]), name


def test_another_network(tmp_path, source):
    state = source.state_dict()
    torch.save({k: v for k, v in state.items() if not k.startswith(("0.", "1.", "3."))}, tmp_path / "less.pt")
    torch.save(state | {"more": torch.zeros(1)}, tmp_path / "more.pt")
    torch.save(net(width=8).state_dict(), tmp_path / "wide.pt")
    for name, message in (
        ("less", r"missing: 0\.weight, 1\.weight, 1\.bias and 3 more"),
        ("more", "unexpected: more"),
        ("wide", r"its 0\.weight has shape \(8, 1, 3, 3\), not \(4, 1, 3, 3\)"),
    ):
        for new_head in (False, True):
            model = net()
            before = {k: v.clone() for k, v in model.state_dict().items()}
            with pytest.raises(ModelError, match=message):
                load_weights(model, tmp_path / f"{name}.pt", new_head=new_head)
            assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_the_folder_of_a_run_gets_the_command_that_exports_it(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ModelError, match="run is the folder of a run; write its model with maxup export, and give"):
        load_weights(net(), tmp_path / "run")


def test_files_without_weights(tmp_path):
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"a": 1}, tmp_path / "number.pt")
    torch.save({}, tmp_path / "nothing.pt")
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "text.safetensors").write_text("hello")
    short = tmp_path / "short.pt"
    torch.save(net().state_dict(), short)
    short.write_bytes(short.read_bytes()[:3000])
    for path in [*tmp_path.iterdir(), tmp_path / "nowhere.pt", tmp_path]:
        with pytest.raises(ModelError) as caught:
            load_weights(net(), path)
        assert path.name in str(caught.value)
        assert "\n" not in str(caught.value)


def test_malicious_pickles_run_nothing(tmp_path):
    import os

    marker = tmp_path / "ran"
    attacks = dict(hostile(marker))
    for name, content in attacks.items():
        (tmp_path / "attack.pt").write_bytes(content)
        with pytest.raises(ModelError, match=r"attack\.pt"):
            load_weights(net(), tmp_path / "attack.pt")
        assert not marker.exists(), name
    for attack in (Reduce(os.system, f"touch {marker}"), {"state_dict": Reduce(eval, f"open({str(marker)!r}, 'w')")}):
        torch.save(attack, tmp_path / "attack.pt", pickle_module=pickle)
        with pytest.raises(
            ModelError, match="holds objects other than tensors, or is damaged; nothing in it was executed"
        ):
            load_weights(net(), tmp_path / "attack.pt")
        assert not marker.exists()


def test_a_recipe_starts_with_the_weights(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    save_file({k: v.clone() for k, v in model.state_dict().items()}, tmp_path / "w.safetensors")
    recipe = {
        "data": {"name": "digits", "train_size": 500},
        "model": {"name": "mlp", "args": {"hidden": []}, "weights": str(tmp_path / "w.safetensors")},
        "perturb": [{"name": "gaussian", "sigma": 0.1}],
        "optim": {"lr": 0.0},
        "epochs": 1,
    }
    train(recipe_from(recipe), tmp_path / "run", quiet=True)
    from maxup.lab.train.runs import open_run

    (tmp_path / "w.safetensors").unlink()  # a finished run does not need it
    assert same(open_run(tmp_path / "run").model, model)

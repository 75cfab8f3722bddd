"""`maxup export` and `maxup.load`: the same model on the other side."""

import sys
from importlib.util import find_spec

import pytest
import torch

import maxup
from maxup.cli.main import main
from maxup.lab.train.runs import open_run
from tests.cli.runs import WORDS, make


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    record = make(folder / "run")
    assert main(["export", str(folder / "run"), str(folder / "model")]) == 0
    return folder, record


def test_the_model_comes_back(exported):
    folder, record = exported
    opened, loaded = open_run(folder / "run"), maxup.load(folder / "model")
    x = opened.task.test.normalize(opened.task.test.x[:64])
    assert not loaded.training
    assert torch.equal(loaded(x), opened.model(x))
    assert loaded.config["metrics"] == record["last"]
    assert loaded.config["classes"] == list("0123456789")
    assert (loaded.config["shape"], loaded.config["top"], loaded.config["mean"]) == ([1, 8, 8], 16, [0.0])
    assert (loaded.config["format"], loaded.config["version"]) == ("maxup-model", 1)


def test_the_config_suffices_to_classify_bytes(exported):
    folder, record = exported
    loaded, test = maxup.load(folder / "model"), open_run(folder / "run").task.test
    c = loaded.config
    with torch.no_grad():
        x = (test.x / c["top"] - torch.tensor(c["mean"]).view(-1, 1, 1)) / torch.tensor(c["std"]).view(-1, 1, 1)
        accuracy = float((loaded(x).argmax(1) == test.y).double().mean())
    assert accuracy == pytest.approx(record["last"]["test_accuracy"])


@pytest.mark.parametrize("normalize", ["true", "false"])
def test_a_recipe_that_normalizes_can_start_from_it(normalize, tmp_path, monkeypatch):
    """Exported with the normalization inside, which it keeps, or without, so that the recipe adds it."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "run", "--model.normalize", normalize, "--data.mean", "[0.25]", "--data.std", "[0.5]")
    assert main(["export", "run", "model"]) == 0
    words = [*WORDS, "--model.normalize", "true", "--model.weights", "model/model.safetensors"]
    words += ["--data.mean", "[0.125]", "--optim.lr", "0", "--out", "again"]
    assert main(["train", "digits/mlp-gaussian-maxup", *words]) == 0
    first, again = (open_run(tmp_path / name).model for name in ("run", "again"))
    assert float(again.mean) == (0.25 if normalize == "true" else 0.125)
    inside = first.model if normalize == "true" else first
    for name, weight in inside.named_parameters():
        assert torch.equal(weight, again.model.get_parameter(name)), name


def test_an_exported_run_is_fine_tuned_on_other_classes(exported, tmp_path, monkeypatch, capsys):
    """With a new last layer, and the frozen layers bit for bit those of the export."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "parity", raising=False)
    (tmp_path / "parity.py").write_text(
        "from sklearn.datasets import load_digits\n"
        "def data():\n"
        "    d = load_digits()\n"
        "    x, y = d.images.astype('uint8')[:, None], d.target % 2\n"
        "    return x[:300], y[:300], x[300:], y[300:]\n"
    )
    model, _ = exported
    layers = sorted({name.partition(".")[0] for name in maxup.load(model / "model").state_dict()}, key=int)
    *layers, head = layers
    words = [*WORDS, "--epochs", "1", "--data.train_size", "null", "--data_from", "parity:data", "--trackers", "none"]
    words += ["--optim.ema", "null", "--model.weights", str(model / "model"), "--out", "tuned"]
    assert main(["train", "digits/mlp-gaussian-maxup", *words]) == 1
    assert "has 10 classes but the data has 2" in capsys.readouterr().err
    words += ["--model.new_head", "true", "--model.freeze", f"[{', '.join(repr(n) for n in layers)}]"]
    assert main(["train", "digits/mlp-gaussian-maxup", *words]) == 0
    assert main(["export", "tuned", "model", "--trust"]) == 0
    before, after = maxup.load(model / "model").state_dict(), maxup.load("model").state_dict()
    assert after[f"{head}.weight"].shape[0] == 2
    assert set(before) == set(after)
    for name in before:
        assert name.startswith(f"{head}.") or torch.equal(before[name], after[name]), name
    assert main(["train", "digits/mlp-gaussian-maxup", *words, "--model.freeze", "[x]", "--restart"]) == 1
    assert "model.freeze: layer 'x' is unknown" in capsys.readouterr().err


def test_the_card_has_the_numbers_of_the_record(exported):
    folder, record = exported
    card = (folder / "model" / "README.md").read_text()
    for name in ("test", "validation"):
        assert f"| {name} accuracy | {100 * record['last'][f'{name}_accuracy']:.2f} % |" in card
    assert f"from step {record['steps']}, with seed 0. The metrics are from epoch 3." in card
    assert record["environment"]["versions"]["torch"] in card


def test_onnx_is_written_beside_the_weights_or_the_package_is_named(exported, tmp_path, monkeypatch, capsys):
    folder, _ = exported
    here = all(find_spec(name) for name in ("onnx", "onnxscript"))
    assert main(["export", str(folder / "run"), str(tmp_path / "model"), "--onnx"]) == (0 if here else 1)
    if here:
        names = sorted(path.name for path in (tmp_path / "model").iterdir())
        assert names == ["README.md", "config.json", "model.onnx", "model.safetensors"]
    else:
        assert "--onnx needs packages that are not installed (onnx" in capsys.readouterr().err
        assert not (tmp_path / "model").exists()


def test_it_does_not_overwrite(exported, capsys):
    folder, _ = exported
    assert main(["export", str(folder / "run"), str(folder / "model")]) == 1
    assert "not an empty folder" in capsys.readouterr().err

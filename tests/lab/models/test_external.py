import sys

import pytest
import torch

from maxup.dropout import drop_probability
from maxup.errors import ModelError
from maxup.lab.models import create_model, list_models


def test_names_with_a_pattern():
    assert "timm/resnet50" in list_models("timm/resnet*")
    names = list_models("pytorchcv/proxylessnas_*")
    assert {f"pytorchcv/proxylessnas_{kind}" for kind in ("cpu", "gpu", "mobile14")} < set(names)
    assert all(name.startswith("pytorchcv/proxylessnas_") for name in names)
    assert not any("/" in name for name in list_models())


@pytest.mark.parametrize(("name", "size"), [("timm/resnet18", 64), ("pytorchcv/proxylessnas_cpu", 224)])
def test_built_for_our_classes_and_channels(name, size):
    model = create_model(name, shape=(1, size, size), num_classes=7).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 1, size, size)).shape == (1, 7)


def test_regularizers_of_table_1():
    for argument in ("drop_rate", "drop_path_rate", "drop_block_rate"):
        model = create_model("timm/resnet50", shape=(3, 64, 64), num_classes=10, **{argument: 0.5})
        for block in model.layer4:
            torch.nn.init.ones_(block.bn3.weight)  # initially 0, so dropping it would change nothing
        x = torch.randn(2, 3, 64, 64)
        assert not torch.equal(model(x), model(x))  # dropout is active in training
        model.eval()
        assert torch.equal(model(x), model(x))
        assert max(map(drop_probability, model.modules())) == pytest.approx(0.5)  # a CUDA graph would not rewind it
    assert max(map(drop_probability, create_model("timm/resnet18", shape=(3, 8, 8), num_classes=2).modules())) == 0


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("timm/resnet5O", {}, "'timm/resnet5O' is unknown; did you mean 'timm/resnet50'?"),
        ("timm/hf-hub:someone/net", {}, "is unknown"),
        ("timm/local-dir:/tmp", {}, "is unknown"),
        ("pytorchcv/proxylesnas_cpu", {}, "did you mean 'pytorchcv/proxylessnas_cpu'"),
        ("timm/resnet18.nonsense", {}, "timm/resnet18.nonsense cannot be built"),
        (
            "timm/resnet18",
            {"checkpoint_path": "/tmp/x"},
            "does not take the argument 'checkpoint_path' in a recipe; it takes",
        ),
        ("timm/resnet18", {"pretrained_cfg": {}}, "does not take the argument 'pretrained_cfg'"),
        ("pytorchcv/proxylessnas_cpu", {"root": "/tmp"}, "does not take the argument 'root' in a recipe"),
        ("timm/vgg11", {"drop_block_rate": 0.1}, "timm/vgg11 cannot be built with {'drop_block_rate': 0.1}"),
    ],
)
def test_a_model_that_cannot_be_built_is_an_error(name, args, message):
    with pytest.raises(ModelError) as caught:
        create_model(name, shape=(3, 64, 64), num_classes=10, **args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_that_cannot_be_downloaded_are_an_error(monkeypatch):
    import pytorchcv.models.common.model_store as store
    import timm

    def unreachable(*args, **options):
        raise ConnectionError("no\nroute")

    monkeypatch.setattr(store, "get_model_file", unreachable)
    monkeypatch.setattr(timm, "create_model", unreachable)
    for name in ("timm/resnet18", "pytorchcv/proxylessnas_cpu"):
        with pytest.raises(ModelError, match=rf"{name} \(ConnectionError: no route\).*model\.weights"):
            create_model(name, shape=(3, 64, 64), num_classes=10, pretrained=True)
    with pytest.raises(ValueError, match="mlp has no published weights"):
        create_model("mlp", shape=(1, 8, 8), num_classes=10, pretrained=True)


@pytest.mark.parametrize("classes", [1000, 10])
def test_published_weights_of_pytorchcv_are_read_by_us(monkeypatch, tmp_path, classes):
    """With another number of classes, the last layer is new."""
    import pytorchcv.models.common.model_store as store

    theirs = create_model("pytorchcv/proxylessnas_cpu", shape=(3, 224, 224), num_classes=1000)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    monkeypatch.setattr(store, "get_model_file", lambda name: str(tmp_path / "theirs.pth"))
    ours = create_model("pytorchcv/proxylessnas_cpu", shape=(3, 224, 224), num_classes=classes, pretrained=True)
    for name, tensor in theirs.state_dict().items():
        assert (name.startswith("output.") and classes == 10) or torch.equal(ours.state_dict()[name], tensor)
    assert ours.output.out_features == classes


def test_a_missing_extra_is_an_error(monkeypatch):
    for module in ("timm", "pytorchcv.model_provider"):
        monkeypatch.setitem(sys.modules, module, None)
    for name, extra in (("timm/resnet50", "timm"), ("pytorchcv/proxylessnas_cpu", "imagenet")):
        with pytest.raises(ModelError, match=rf"need the {extra} extra: in the clone, pip install .* '.\[{extra}\]'"):
            create_model(name, shape=(3, 64, 64), num_classes=10)

"""An ONNX file computes what the network computes, for any batch size."""

import sys

import pytest
import torch

from maxup.errors import LoadError
from maxup.lab.models import create_model
from maxup.lab.models.normalize import Normalized
from maxup.lab.models.onnx import check_onnx, save_onnx


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (1, 8, 8)),
        ("conv", (1, 8, 8)),
        ("resnet20", (3, 32, 32)),
        ("preact_resnet20", (3, 32, 32)),
        ("wrn16_4", (3, 32, 32)),
        ("speednet", (3, 32, 32)),
    ],
)
def test_the_file_computes_the_same(tmp_path, name, shape):
    onnx = pytest.importorskip("onnx", reason="needs onnx and onnxscript")
    pytest.importorskip("onnxscript", reason="needs onnx and onnxscript")
    from onnx.reference import ReferenceEvaluator

    model = Normalized(create_model(name, shape=shape, num_classes=7), [0.1] * shape[0], [0.5] * shape[0]).eval()
    save_onnx(tmp_path / "model.onnx", model, shape)
    onnx.checker.check_model(tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]  # the weights are inside
    evaluator = ReferenceEvaluator(str(tmp_path / "model.onnx"))
    for batch in (1, 3):
        x = torch.rand(batch, *shape)
        (found,) = evaluator.run(None, {"images": x.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(found), model(x), rtol=1e-4, atol=1e-5)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("maxup.lab.models.onnx.find_spec", lambda name: None if name == "onnxscript" else sys)
    with pytest.raises(LoadError, match=r"not installed \(onnxscript\): pip install 'maxup\[onnx\]'$"):
        check_onnx()

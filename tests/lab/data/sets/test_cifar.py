"""Small files written by hand, the real ones against Python's unpickler, and malicious ones in place of each file."""

import math
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxup.errors import DataError
from maxup.lab.data.sets.cifar import load_cifar10, load_cifar100
from maxup.lab.recipes.load import parse_recipe
from maxup.lab.train.loop import train as train_recipe
from tests.lab.data.fake import hostile, py2, real, write_cifar10, write_cifar100

FILES10 = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"]
FILES100 = ["train", "test", "meta"]


def python3(protocol, keys):
    """Write files as Python 3 does."""

    def dump(content):
        new = {keys(k): v.numpy() if isinstance(v, torch.Tensor) else v for k, v in content.items()}
        return pickle.dumps(new, protocol=protocol)

    return dump


DUMPS = {"python2": py2} | {f"python3-{p}": python3(p, str) for p in (2, 3, 4)} | {"bytes": python3(4, str.encode)}


@pytest.mark.parametrize("dump", DUMPS.values(), ids=DUMPS)
def test_cifar10(tmp_path, dump):
    x, y, x_test, y_test = write_cifar10(tmp_path / "cifar-10-batches-py", dump=dump)
    train, test = load_cifar10(tmp_path)
    assert torch.equal(train.x, x)
    assert torch.equal(train.y, y)
    assert torch.equal(test.x, x_test)
    assert torch.equal(test.y, y_test)
    assert train.classes == test.classes == tuple(f"class {c}" for c in range(10))
    assert (train.mean, train.top) == ((0.491, 0.482, 0.447), 255)


@pytest.mark.parametrize("dump", DUMPS.values(), ids=DUMPS)
def test_cifar100(tmp_path, dump):
    x, y, x_test, y_test = write_cifar100(tmp_path, dump=dump)  # in root itself
    train, test = load_cifar100(tmp_path)
    assert torch.equal(train.x, x)
    assert torch.equal(train.y, y)
    assert torch.equal(test.x, x_test)
    assert torch.equal(test.y, y_test)
    assert len(train.classes) == 100


@pytest.mark.parametrize("file", FILES10)
@pytest.mark.parametrize("attack", ["system-2", "eval-4", "nested-in-a-list", "numpy-runstring"])
def test_malicious_files_of_cifar10(tmp_path, file, attack):
    marker = tmp_path / "marker"
    write_cifar10(tmp_path, n=1)
    (tmp_path / file).write_bytes(hostile(marker)[attack])
    with pytest.raises(DataError, match=file):
        load_cifar10(tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize("file", FILES100)
def test_malicious_files_of_cifar100(tmp_path, file):
    marker = tmp_path / "marker"
    write_cifar100(tmp_path)
    for attack in hostile(marker).values():
        (tmp_path / file).write_bytes(attack)
        with pytest.raises(DataError, match=file):
            load_cifar100(tmp_path)
        assert not marker.exists()


DATA = torch.zeros(2, 3072, dtype=torch.uint8)
WRONG = {
    "a list": (b"].", "has a list, not a dict"),
    "no data": (py2({"fine_labels": [0, 1]}), "NoneType as 'data'"),
    "data in a list": (py2({"fine_labels": [0, 1], "data": [1, 2]}), "list as 'data'"),
    "narrow data": (py2({"fine_labels": [0, 1], "data": DATA[:, :4]}), "2 x 4 bytes"),
    "no image": (py2({"fine_labels": [], "data": DATA[:0]}), "0 x 3072 bytes"),
    "floats": (pickle.dumps({"fine_labels": [0], "data": np.zeros((1, 3072))}, 2), "a call that is not allowed"),
    "fortran": (
        pickle.dumps({"fine_labels": [0, 1], "data": np.asfortranarray(np.zeros((2, 3072), "u1"))}, 2),
        "not rows of bytes",
    ),
    "a wide character": (
        py2({"fine_labels": [0, 1], "data": DATA}).replace(
            b"T\x00\x18\x00\x00" + bytes(6144), b"X\x01\x18\x00\x00" + bytes(6143) + "ā".encode()
        ),
        "not bytes as 'data'",
    ),
    "no labels": (py2({"labels": [0, 1], "data": DATA}), "as 'fine_labels'"),
    "a label too many": (py2({"fine_labels": [0, 1, 2], "data": DATA}), "3 labels for 2 images"),
    "a label too large": (py2({"fine_labels": [0, 100], "data": DATA}), "0 to 99"),
    "a label that is a string": (py2({"fine_labels": [0, "one"], "data": DATA}), "0 to 99"),
}


@pytest.mark.parametrize(("content", "message"), WRONG.values(), ids=WRONG)
def test_wrong_content_is_an_error(tmp_path, content, message):
    write_cifar100(tmp_path)
    (tmp_path / "train").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load_cifar100(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "train"))


def test_wrong_class_names(tmp_path):
    write_cifar100(tmp_path)
    for names in (["a"] * 99, [0] * 100, "a" * 100):
        (tmp_path / "meta").write_bytes(py2({"fine_label_names": names}))
        with pytest.raises(DataError, match=r"meta has no list of 100 names"):
            load_cifar100(tmp_path)


@settings(max_examples=60)
@given(st.data())
def test_damaged_files_give_images_or_an_error(data):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_cifar100(folder, n=1)
        file = folder / data.draw(st.sampled_from(FILES100))
        content = bytearray(file.read_bytes())
        plain = [i for i in range(len(content)) if i < 200 or i > len(content) - 20]  # less of the pixels
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.sampled_from(plain))] = data.draw(st.integers(0, 255))
        file.write_bytes(content)
        message = ""
        try:
            train, _ = load_cifar100(folder)
        except DataError as error:
            message = str(error)
        assert message.startswith(str(file)) if message else train.x.shape == (1, 3, 32, 32)


@pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
def test_real_cifar10(data_root):
    train, test = real("cifar10", data_root)
    assert train.y.bincount().tolist() == [5000] * 10
    assert test.y.bincount().tolist() == [1000] * 10
    assert train.classes[int(train.y[0])] == "frog"
    assert test.classes[int(test.y[0])] == "cat"
    counts = [train.x[:, c].flatten().bincount(minlength=256).double() for c in range(3)]  # how often each byte comes
    levels = torch.arange(256).double() / 255
    means = [float((n * levels).sum() / n.sum()) for n in counts]
    stds = [math.sqrt(float((n * (levels - m).square()).sum() / n.sum())) for n, m in zip(counts, means, strict=True)]
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
    assert stds == pytest.approx([0.2470, 0.2435, 0.2616], abs=5e-5)
    assert means == pytest.approx(train.mean, abs=1e-3)
    assert stds == pytest.approx(train.std, abs=1e-3)
    for folder in (data_root, data_root / "cifar-10-batches-py"):
        if (folder / "test_batch").exists():
            theirs = pickle.loads((folder / "test_batch").read_bytes(), encoding="latin1")  # ours, so trusted
            assert np.array_equal(theirs["data"].reshape(-1, 3, 32, 32), test.x.numpy())
            assert theirs["labels"] == test.y.tolist()


@pytest.mark.slow
def test_a_small_network_learns_from_real_images(data_root, tmp_path):
    real("cifar10", data_root)
    words = ["--data.root", str(data_root), "--data.train_size", "5000", "--model.name", "conv", "--model.args",
                "{width: 16}", "--epochs", "2", "--batch_size", "50", "--precision", "no"]  # fmt: skip
    result = train_recipe(parse_recipe("cifar10/resnet110-cutout-maxup", words), tmp_path, quiet=True)
    assert result["last"]["test_accuracy"] > 0.3


def test_real_cifar100_or_a_part_of_it(data_root):
    train, test = real("cifar100", data_root)
    assert 1000 < len(train) <= 50_000
    assert 900 < len(test) <= 10_000
    assert [train.classes[c] for c in train.y[:3].tolist()] == ["cattle", "dinosaur", "apple"]
    assert test.classes[int(test.y[0])] == "mountain"
    assert len(train.y.unique()) == 100

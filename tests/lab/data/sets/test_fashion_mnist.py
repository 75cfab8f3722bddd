"""Files written byte by byte, damaged ones, and the real ones if they are installed."""

import gzip
import tracemalloc

import pytest
import torch

from maxup.errors import DataError
from maxup.lab.data.sets.fashion_mnist import load_fashion_mnist, read_idx
from tests.lab.data.fake import hostile, idx, real, write_fashion_mnist

FILES = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
PIXELS = bytes(2 * 28 * 28)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("folder", ["", "fashion-mnist", "FashionMNIST/raw"])
def test_reads_what_was_written(tmp_path, folder, zipped):
    x, y, x_test, y_test = write_fashion_mnist(tmp_path / folder, zipped)
    train, test = load_fashion_mnist(tmp_path)
    assert torch.equal(train.x, x)
    assert torch.equal(train.y, y)
    assert torch.equal(test.x, x_test)
    assert torch.equal(test.y, y_test)
    assert train.classes[9] == "Ankle boot"


def test_an_idx_file_by_hand(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"\x00\x00\x08\x03\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x03\x01\x02\x03\x04\x05\x06")
    assert read_idx(file, (2, 3)).tolist() == [[[1, 2, 3], [4, 5, 6]]]


IMAGES = {
    "empty": (b"", "starts with nothing"),
    "labels": (idx(b"\x00\x01", 2), "starts with 00 00 08 01"),
    "floats": (b"\x00\x00\x0d\x03" + idx(PIXELS, 2, 28, 28)[4:], "starts with 00 00 0d 03"),
    "half a header": (idx(b"", 2, 28), "starts with 00 00 08 02"),
    "a cut header": (idx(PIXELS, 2, 28, 28)[:14], "in its header"),
    "none": (idx(b"", 0, 28, 28), "N from 1 to 60000"),
    "another size": (idx(bytes(2 * 4), 2, 2, 2), r"\(2, 2, 2\) in its header, but Fashion-MNIST has \(N, 28, 28\)"),
    "too many": (idx(PIXELS, 60_001, 28, 28), "N from 1 to 60000"),
    "huge": (idx(PIXELS, *[2**32 - 1] * 3), "in its header"),
    "cut": (idx(PIXELS[:-1], 2, 28, 28), "should have 1568 bytes of data but has only 1567"),
    "trailing": (idx(PIXELS + b"\x00", 2, 28, 28), "should have 1568 bytes of data but has more"),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(("content", "message"), IMAGES.values(), ids=IMAGES)
def test_wrong_images_are_an_error(tmp_path, content, message, zipped):
    write_fashion_mnist(tmp_path, zipped)
    file = tmp_path / f"t10k-images-idx3-ubyte{'.gz' if zipped else ''}"
    file.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(DataError, match=message) as caught:
        load_fashion_mnist(tmp_path)
    assert str(caught.value).startswith(str(file))


LABELS = {
    "one too few": (idx(bytes(5), 5), "5 labels for 6 images in train-images-idx3-ubyte.gz"),
    "too large": (idx(bytes(5) + b"\x0a", 6), "has the label 10"),
}


@pytest.mark.parametrize(("content", "message"), LABELS.values(), ids=LABELS)
def test_wrong_labels_are_an_error(tmp_path, content, message):
    write_fashion_mnist(tmp_path)
    file = tmp_path / "train-labels-idx1-ubyte.gz"
    file.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=message) as caught:
        load_fashion_mnist(tmp_path)
    assert str(caught.value).startswith(str(file))


def test_damaged_gzip_is_an_error(tmp_path):
    good = gzip.compress(idx(bytes(range(6)), 6))
    bad = [good[:end] for end in range(len(good))]  # cut anywhere, the sum at the end included
    bad += [good + b"rubbish", idx(bytes(6), 6), good[:-8] + bytes(8), good[:12] + b"\xff\xff" + good[14:]]
    write_fashion_mnist(tmp_path)
    file = tmp_path / "train-labels-idx1-ubyte.gz"
    for content in bad:
        file.write_bytes(content)
        with pytest.raises(DataError) as caught:
            load_fashion_mnist(tmp_path)
        assert str(caught.value).startswith(str(file))


def test_a_zip_bomb_does_not_fill_the_memory(tmp_path):
    file = tmp_path / "train-labels-idx1-ubyte.gz"
    file.write_bytes(gzip.compress(idx(bytes(2**27), 6)))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="has more"):
            read_idx(file)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("file", FILES)
def test_a_pickle_in_place_of_each_file_does_nothing(tmp_path, file):
    marker = tmp_path / "marker"
    write_fashion_mnist(tmp_path)
    for content in (hostile(marker)["system-2"], gzip.compress(hostile(marker)["system-2"])):
        (tmp_path / file).write_bytes(content)
        with pytest.raises(DataError, match=file):
            load_fashion_mnist(tmp_path)
        assert not marker.exists()


def test_real_fashion_mnist(data_root):
    train, test = real("fashion_mnist", data_root)
    assert train.y.bincount().tolist() == [6000] * 10
    assert test.y.bincount().tolist() == [1000] * 10
    assert train.classes[int(train.y[0])] == "Ankle boot"
    pixels = train.x[:, :, ::2, ::2].double() / 255
    assert abs(float(pixels.mean()) - train.mean[0]) < 5e-3
    assert abs(float(pixels.std()) - train.std[0]) < 5e-3

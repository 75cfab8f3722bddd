"""--data_from with the real package `datasets`: every kind of data set has the examples that it was made from."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from maxup.cli.main import main
from maxup.errors import DataError
from maxup.lab.data import user_data
from maxup.lab.data.images import Images
from maxup.lab.data.stream import Stream
from maxup.lab.data.user_data import from_user
from maxup.lab.data.user_text import from_user_text
from tests.lab.data.fake import write_folders

datasets = pytest.importorskip("datasets")

NAMES = ["ant", "bee", "cat"]
X = torch.randint(256, (30, 3, 6, 5), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
Y = torch.arange(30) % 3
LABEL = datasets.ClassLabel(names=NAMES)


def pictures(rows=range(30), label=LABEL):
    images = [Image.fromarray(X[i].permute(1, 2, 0).numpy()) for i in rows]
    features = datasets.Features({"image": datasets.Image(), "label": label})
    return datasets.Dataset.from_dict({"image": images, "label": [int(Y[i]) for i in rows]}, features=features)


def array3d(x=X, dtype="uint8"):
    features = datasets.Features({"image": datasets.Array3D(tuple(x.shape[1:]), dtype), "label": LABEL})
    return datasets.Dataset.from_dict({"image": x.numpy(), "label": Y.tolist()}, features=features)


def decoded(batch):
    """A transform for `with_transform`."""
    return {"pixel_values": [np.array(image).transpose(2, 0, 1) for image in batch["image"]], "label": batch["label"]}


def noisy(batch):
    """A random transform."""
    rows = decoded(batch)
    return rows | {"pixel_values": [x + torch.rand(1).numpy() for x in rows["pixel_values"]]}


def generate():
    for x, y in zip(X, Y.tolist(), strict=True):
        yield {"img": Image.fromarray(x.permute(1, 2, 0).numpy()), "label": NAMES[y]}


SAME = {
    "images": pictures,
    "names": lambda: datasets.Dataset.from_list(list(generate())),
    "Array3D": array3d,
    "Array3D as numpy": lambda: array3d().with_format("numpy"),
    "Array3D as torch": lambda: array3d().with_format("torch"),
    "iterable": lambda: pictures().to_iterable_dataset(num_shards=3),
    "generator": lambda: datasets.IterableDataset.from_generator(generate),
    "with_transform": lambda: pictures().with_transform(decoded),
    "one part": lambda: datasets.DatasetDict(train=pictures()),
    "loader": lambda: torch.utils.data.DataLoader(array3d().with_format("torch"), 7),
    "loader of an iterable": lambda: torch.utils.data.DataLoader(
        array3d().with_format("torch").to_iterable_dataset(num_shards=2), 7, num_workers=2
    ),
}


@pytest.mark.parametrize("kind", SAME)
def test_every_kind_has_the_same_examples(kind):
    train, test = from_user(SAME[kind]())
    assert test is None
    assert isinstance(train, Images)
    assert torch.equal(train.x, X)
    assert torch.equal(train.y, Y)
    assert train.classes == (("0", "1", "2") if kind == "loader of an iterable" else tuple(NAMES))


def test_floats_with_seven_channels():
    x = torch.randn(30, 7, 4, 5)
    train, _ = from_user(array3d(x, "float32"))
    assert train.dtype == torch.float32
    assert torch.equal(train.x, x)


SPLITS = {
    "DatasetDict": lambda d: datasets.DatasetDict(train=d.select(range(20)), test=d.select(range(20, 30))),
    "train_test_split": lambda d: d.train_test_split(10, shuffle=False),
    "tuple": lambda d: (d.select(range(20)), d.select(range(20, 30))),
    "iterables": lambda d: datasets.IterableDatasetDict(
        train=d.select(range(20)).to_iterable_dataset(), test=d.select(range(20, 30)).to_iterable_dataset()
    ),
}


@pytest.mark.parametrize("kind", SPLITS)
def test_two_parts_are_train_and_test(kind):
    train, test = from_user(SPLITS[kind](pictures()))
    assert torch.equal(train.x, X[:20])
    assert torch.equal(test.x, X[20:])
    assert torch.equal(test.y, Y[20:])


def test_a_list_of_splits_as_load_dataset_returns_it(tmp_path):
    pictures().to_parquet(tmp_path / "all.parquet")
    files, options = str(tmp_path / "all.parquet"), {"cache_dir": str(tmp_path / "cache")}
    parts = datasets.load_dataset("parquet", data_files=files, split=["train[:20]", "train[20:]"], **options)
    assert isinstance(parts, list)
    train, test = from_user(parts)
    assert torch.equal(train.x, X[:20])
    assert torch.equal(test.x, X[20:])
    assert train.classes == tuple(NAMES)


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_stream_a_large_data_set_from_disk(workers, tmp_path):
    pictures().save_to_disk(tmp_path / "saved")
    stream, _ = from_user(datasets.load_from_disk(tmp_path / "saved"), workers=workers)
    assert isinstance(stream, Stream)
    assert (stream.augmented, stream.classes) == (False, tuple(NAMES))
    assert stream.y.tolist() == Y.tolist()
    batches = list(stream.loader(7, training=False, seed=0, device="cpu"))
    assert torch.equal(torch.cat([x for _, x, _ in batches]), X)
    assert torch.equal(torch.cat([y for _, _, y in batches]), Y)


def test_a_random_transform_is_streamed_with_the_seed():
    stream, _ = from_user(pictures().with_transform(noisy), workers=0)
    assert isinstance(stream, Stream)
    assert stream.augmented
    (rows, first, labels), (_, again, _) = (
        next(iter(stream.loader(30, training=True, seed=0, device="cpu"))) for _ in range(2)
    )
    assert torch.equal(first, again)
    assert torch.equal(labels, Y[rows])
    noise = first - X[rows].float()
    assert (noise - noise[:, :1, :1, :1]).abs().max() < 1e-4  # one number per image
    assert len(noise[:, 0, 0, 0].unique()) == 30


def test_rows_and_token_ids():
    table = {"width": [float(i) for i in range(6)], "height": [2 * i for i in range(6)], "label": [0, 1] * 3}
    train, _ = from_user(datasets.Dataset.from_dict(table))
    assert train.x.tolist() == [[i, 2 * i] for i in range(6)]
    tokens = [[i, i + 1, 0] for i in range(6)]
    columns = {"text": ["a"] * 6, "input_ids": tokens, "attention_mask": [[1, 1, 0]] * 6, "label": [0, 1] * 3}
    train, _ = from_user(datasets.Dataset.from_dict(columns))
    assert train.x.tolist() == tokens
    assert train.x.dtype == torch.int64


def test_a_csv_file(tmp_path):
    (tmp_path / "table.csv").write_text("w,h,label\n" + "".join(f"{i}.5,{i},{'ab'[i % 2]}\n" for i in range(10)))
    options = {"data_files": str(tmp_path / "table.csv"), "cache_dir": str(tmp_path / "cache")}
    for streaming in (False, True):
        train, _ = from_user(datasets.load_dataset("csv", **options, streaming=streaming))
        assert train.x.tolist() == [[i + 0.5, i] for i in range(10)]
        assert train.classes == ("a", "b")
        assert train.y.tolist() == [0, 1] * 5


@pytest.mark.parametrize("iterable", [False, True])
def test_a_corpus(iterable):
    lines = datasets.Dataset.from_dict({"text": ["The cat sat .", "", "A dog !"] * 20})
    text = from_user_text(lines.to_iterable_dataset() if iterable else lines)
    words = ["the", "cat", "sat", ".", "<eos>", "a", "dog", "!", "<eos>"] * 20
    assert [text.words[i] for part in (text.train, text.validation, text.test) for i in part] == words
    parts = datasets.DatasetDict(train=lines, validation=lines.select(range(3)), test=lines.select(range(6)))
    text = from_user_text(parts)
    assert [len(part) for part in (text.train, text.validation, text.test)] == [180, 9, 18]


def rows_with(column, value, row=7):
    columns = {"width": [0.5] * 10, "label": [0, 1] * 5}
    columns[column][row] = value
    return datasets.Dataset.from_dict(columns)


def modes():
    images = [Image.new("L" if i == 2 else "RGB", (5, 6)) for i in range(4)]
    return datasets.Dataset.from_list([{"image": image, "label": i % 2} for i, image in enumerate(images)])


MISTAKES = {
    "a missing number": (
        lambda: rows_with("width", None),
        r"column 'width' of your data has no value \(None\); fill it, or leave the example out \(example 7\)",
    ),
    "a missing label": (
        lambda: rows_with("label", None),
        r"the label of an example is None; it must be one integer class or a name \(example 7\)",
    ),
    "modes": (
        modes,
        r"example 2 of your data has shape \(1, 6, 5\), but the first one has \(3, 6, 5\); return images with equal "
        r'numbers of channels, for example image\.convert\("RGB"\)',
    ),
    "hidden labels": (
        lambda: (rows_with("label", 1), datasets.Dataset.from_dict({"width": [0.5] * 3, "label": [-1] * 3})),
        "your test labels are all negative, as in a test set whose labels are not public; return a labeled part "
        "instead, or number the classes from 0",
    ),
    "text": (
        lambda: datasets.Dataset.from_dict({"text": ["a"], "label": [0]}),
        r"column 'text' of your data is a str; convert it to a number, or tokenize it and call the token ids "
        r"input_ids \(example 0\)",
    ),
    "no label": (
        lambda: pictures().remove_columns("label"),
        r"your data have the columns image, but none of label, labels, .*; rename the column with the labels "
        r"\(example 0\)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake):
    make, message = MISTAKES[mistake]
    with pytest.raises(DataError, match=f"^{message}$"):
        from_user(make())


def test_the_command_trains_on_a_folder_that_datasets_reads(tmp_path, monkeypatch, capsys):
    """`load_dataset("imagefolder")` names the classes. The command splits them, and eval finds the same images."""
    write_folders(tmp_path / "all", train=10, size=(12, 10))
    (tmp_path / "mine.py").write_text(
        "import datasets\n\n\ndef data():\n"
        f"    return datasets.load_dataset('imagefolder', data_dir={str(tmp_path / 'all' / 'train')!r}, "
        f"cache_dir={str(tmp_path / 'cache')!r})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(user_data, "MEMORY", 2000)  # larger data are streamed
    command = ["train", "digits/mlp-gaussian-maxup", "--data_from", "mine:data", "--data.train_size", "null"]
    assert main([*command, "--epochs", "1", "--data.workers", "2", "--trackers", "none", "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["eval", "run", "--trust", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["test"]["count"] == 6  # 20 % of 10 images of 3 classes
    assert main(["export", "run", "model", "--trust"]) == 0
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert Counter(config["classes"]) == Counter(["cat", "dog", "emu"])

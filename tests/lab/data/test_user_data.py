"""Everything that --data_from may return gives the same examples as reading it by hand."""

import itertools
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from maxup.errors import DataError
from maxup.lab.data import user_data
from maxup.lab.data.decode import read_rgb, to_bytes
from maxup.lab.data.images import Images
from maxup.lab.data.user_data import from_user
from tests.waiting import PATIENCE, until_said

ROOT = Path(__file__).parents[3]
G = torch.Generator().manual_seed(0)
X = torch.randint(256, (30, 3, 6, 5), generator=G, dtype=torch.uint8)
Y = torch.arange(30) % 3
SPLIT = ((0, 20), (20, 30))


class Map(Dataset):
    def __init__(self, x=X, y=Y, transform=torch.clone):
        self.x, self.y, self.transform = x, y, transform

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.transform(self.x[i]), self.y[i]


class Attributes(Map):
    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)


class Endless(Dataset):
    """Never raises IndexError."""

    def __getitem__(self, i):
        return X[0], 0


class EndlessIterable(IterableDataset):
    def __iter__(self):
        return ((X[i % 30], int(Y[i % 30])) for i in itertools.count())


class Iterable(IterableDataset):
    def __iter__(self):
        return zip(X, Y.tolist(), strict=True)


class ClassLabel:
    names = ("ant", "bee", "cat")


class HuggingFace:
    """The interface of `datasets.Dataset`: rows are dicts, columns are read by name, and there is no base class."""

    def __init__(self, rows=range(30), column="image"):
        self.rows, self.column = list(rows), column
        self.column_names, self.features = [column, "label"], {column: object(), "label": ClassLabel()}
        self.read = 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, key):
        if isinstance(key, str):
            assert key == "label"
            return [int(Y[i]) for i in self.rows]
        self.read += 1
        i = self.rows[key]
        return {self.column: Image.fromarray(X[i].permute(1, 2, 0).numpy()), "label": int(Y[i])}


def collate_fn(items):
    return {"x": torch.stack([x for x, _ in items]), "y": torch.tensor([int(y) for _, y in items])}


SAME = {
    "arrays": lambda: (X, Y),
    "numpy": lambda: (X.numpy(), Y.numpy()),
    "lists": lambda: [X.numpy(), Y.tolist()],
    "map": Map,
    "tensors": lambda: TensorDataset(X, Y),
    "list of examples": lambda: [(x, int(y)) for x, y in zip(X, Y, strict=True)],
    "lists of examples": lambda: [[x, y] for x, y in zip(X, Y, strict=True)],
    "mirrored": lambda: [(x.numpy()[::-1, ::-1].copy()[::-1, ::-1], int(y)) for x, y in zip(X, Y, strict=True)],
    "dicts": lambda: [{"image": x.numpy(), "label": y} for x, y in zip(X, Y, strict=True)],
    "iterable": Iterable,
    "generator": lambda: zip(X, Y, strict=True),
    "loader": lambda: DataLoader(Map(), batch_size=7, shuffle=True),
    "loader without batches": lambda: DataLoader(Map(), batch_size=None),
    "loader with batch sampler": lambda: DataLoader(Map(), batch_sampler=BatchSampler(RandomSampler(Y), 7, False)),
    "loader of an iterable": lambda: DataLoader(Iterable(), batch_size=7),
    "loader with workers": lambda: DataLoader(Iterable(), batch_size=7, num_workers=2, drop_last=True),
    "loader with collate_fn": lambda: DataLoader(Map(), batch_size=7, collate_fn=collate_fn),
    "Hugging Face": HuggingFace,
    "features": lambda: Attributes(features=X),
    "features of numpy": lambda: Attributes(features=X.numpy()),
    "features in a list": lambda: Attributes(features=["label", "width"]),
    "names in an array": lambda: Attributes(classes=np.array(["ant", "bee", "cat"])),
}


@pytest.mark.parametrize("kind", SAME)
def test_every_kind_has_the_same_examples(kind):
    train, test = from_user(SAME[kind]())
    assert test is None
    assert isinstance(train, Images)
    assert torch.equal(train.x, X)
    assert torch.equal(train.y, Y)
    assert train.classes == (("ant", "bee", "cat") if "Hugging" in kind or "names" in kind else ("0", "1", "2"))
    pixels = X.double() / 255
    assert train.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert torch.allclose(train.normalize(X).mean((0, 2, 3)), torch.zeros(3), atol=1e-5)


@pytest.mark.parametrize(
    "pair",
    [
        lambda: (X[:20], Y[:20], X[20:], Y[20:]),
        lambda: ((X[:20], Y[:20]), (X[20:], Y[20:])),
        lambda: (Subset(Map(), range(20)), Subset(Map(), range(20, 30))),
        lambda: [Subset(Map(), range(20)), Subset(Map(), range(20, 30))],  # random_split returns a list
        lambda: {"train": HuggingFace(range(20)), "test": HuggingFace(range(20, 30))},
        lambda: {"train": HuggingFace(range(20)), "validation": HuggingFace(range(20, 30))},
        lambda: (
            DataLoader(Map(), sampler=SubsetRandomSampler(range(20))),
            DataLoader(Map(), sampler=SubsetRandomSampler(range(20, 30))),
        ),
        lambda: tuple(
            DataLoader(Map(), batch_sampler=BatchSampler(SubsetRandomSampler(rows), 5, False))
            for rows in (range(20), range(20, 30))
        ),
        lambda: ((X[:20].tolist(), Y[:20].tolist()), (X[20:].tolist(), Y[20:].tolist())),
        lambda: tuple([[x.tolist(), y] for x, y in zip(X, Y.tolist(), strict=True)][a:b] for a, b in SPLIT),
    ],
)
def test_a_pair_is_train_and_test(pair):
    train, test = from_user(pair())
    assert torch.equal(train.x, X[:20])
    assert torch.equal(test.x, X[20:])
    assert torch.equal(test.y, Y[20:])
    assert (test.mean, test.std, test.classes) == (train.mean, train.std, train.classes)


def test_three_parts_are_train_validation_and_test():
    parts = [Subset(Map(), rows) for rows in (range(20), range(20, 26), range(26, 30))]
    for returned in (tuple(parts), parts, dict(zip(("train", "val", "test"), parts, strict=True))):
        train, validation, test = from_user(returned)
        assert [len(part) for part in (train, validation, test)] == [20, 6, 4]
        assert torch.equal(validation.x, X[20:26])


class Named(Map):
    """Numbers the classes of its examples in the order of `classes`, as torchvision's ImageFolder does."""

    def __init__(self, animals, classes, strings=False):
        super().__init__(X[: len(animals)], [a if strings else classes.index(a) for a in animals])
        if not strings:
            self.classes = list(classes)


ANIMALS = ["ant", "bee", "cat", "cat"]
NAMED = {
    "data set": lambda: Named(ANIMALS, ["ant", "bee", "cat"]),
    "other order": lambda: Named(ANIMALS, ["cat", "bee", "ant"]),
    "Subset": lambda: Subset(Named(ANIMALS, ["ant", "bee", "cat"]), range(4)),
    "parts": lambda: ConcatDataset([Subset(Named(ANIMALS, ["cat", "bee", "ant"]), rows) for rows in ([0, 1], [2, 3])]),
    "loader": lambda: DataLoader(Named(ANIMALS, ["ant", "bee", "cat"])),
    "labels": lambda: Named(ANIMALS, None, strings=True),
    "arrays": lambda: (X[:4], ANIMALS),
}


@pytest.mark.parametrize("memory", [2**31, 100])
@pytest.mark.parametrize("kind", NAMED)
def test_classes_of_test_data_are_matched_by_name(kind, memory, monkeypatch):
    """A test set without a bee numbers the cat 1, as in the test folder of an ImageFolder."""
    monkeypatch.setattr(user_data, "MEMORY", memory)
    for returned in (Named(["cat", "ant"], ["ant", "cat"]), Named(["cat", "ant"], None, strings=True)):
        train, validation, test = from_user((NAMED[kind](), returned, NAMED[kind]()), workers=0)
        assert validation.classes == train.classes
        assert validation.y.tolist() == [train.y[2], train.y[0]]
        assert test.y.tolist() == train.y.tolist()


@pytest.mark.parametrize("memory", [2**31, 100])
def test_names_and_numbers_of_classes_do_not_mix(memory, monkeypatch):
    monkeypatch.setattr(user_data, "MEMORY", memory)
    numbered, message = TensorDataset(X[:4], Y[:4]), r"^your {} data have names of classes, but your {} data have only"
    for named in (NAMED["data set"](), NAMED["labels"](), NAMED["arrays"]()):
        with pytest.raises(DataError, match=message.format("training", "test")):
            from_user((named, numbered), workers=0)
        with pytest.raises(DataError, match=message.format("test", "training")):
            from_user((numbered, named), workers=0)
    with pytest.raises(DataError, match=message.format("training", "test")):
        from_user((X[:4], ANIMALS, X[:4], Y[:4]))
    with pytest.raises(DataError, match=r"^your test data have classes without a training example: dog; add"):
        from_user((NAMED["data set"](), Named(["dog"], ["dog"])), workers=0)


def test_float_images_rows_and_tokens():
    g = torch.Generator().manual_seed(0)
    images, rows = torch.rand(30, 7, 6, 5, generator=g), torch.randn(30, 4, generator=g, dtype=torch.double) * 3 + 5
    tokens = torch.randint(50, (30, 9), generator=g, dtype=torch.int32)
    for x, shape, dtype in (
        (images, (7, 6, 5), torch.float32),
        (images[:, 0], (1, 6, 5), torch.float32),
        (rows, (4,), torch.float32),
        (tokens, (9,), torch.int64),
        (X[:, 0, 0], (5,), torch.float32),
    ):
        for returned in ((x, Y), TensorDataset(x, Y)):
            train, _ = from_user(returned)
            assert (train.shape, train.dtype) == (shape, dtype)
            expected = x.double().reshape(30, *shape)
            if dtype == torch.float32:
                dims = [d for d in range(expected.ndim) if d != 1]
                expected = (expected - expected.mean(dims, keepdim=True)) / expected.std(dims, keepdim=True)
            assert torch.allclose(train.normalize(train.x).double(), expected, atol=1e-4)


def test_images_of_16_bits_are_scaled_as_those_of_a_folder(tmp_path):
    wide = np.arange(0, 65536, 8192, dtype=np.uint16).reshape(2, 4)
    for image in (Image.fromarray(wide), Image.fromarray(wide.astype(np.int32))):
        image.save(tmp_path / "image.tiff")
        train, _ = from_user([(image, 0), (image, 1)])
        assert train.x[0].tolist() == [(wide // 257).tolist()] * 3
        assert torch.equal(train.x[0], to_bytes(read_rgb(tmp_path / "image.tiff")))
    clear = Image.new("RGBA", (4, 3), (10, 20, 30, 0))
    assert from_user([(clear, 0), (clear, 1)])[0].x[0, :, 0, 0].tolist() == [10, 20, 30]


def test_rows_of_named_columns_and_classes():
    table = [{"width": float(i), "height": i * 2, "label": "odd" if i % 2 else "even"} for i in range(10)]
    train, _ = from_user(table)
    assert train.x.tolist() == [[i, 2 * i] for i in range(10)]
    assert train.classes == ("even", "odd")
    assert train.y.tolist() == [0, 1] * 5
    train, _ = from_user((np.random.default_rng(0).normal(size=(4, 2)), ["b", "a", "b", "a"]))
    assert train.y.tolist() == [1, 0, 1, 0]


class Frame:
    """The interface of a table or a column of pandas that numpy reads."""

    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def __array__(self, dtype=None, copy=None):
        return self.values


def test_tables_and_columns_of_other_packages_are_arrays():
    x = np.array([[1.0, 3.0], [2.0, 2.0], [4.0, 1.0]])
    train, _ = from_user((Frame(x), Frame(np.array(["b", "a", "b"], dtype=object))))
    assert train.x.tolist() == x.tolist()
    assert train.y.tolist() == [1, 0, 1]


class Fails(Map):
    def __getitem__(self, i):
        return super().__getitem__(i) if i < 25 else {}[i]


class Grows(Map):
    def __getitem__(self, i):
        return (self.x[i], 0) if i < 25 else (self.x[i, :, :4], 0)


class Part(Map):
    """Returns `item` as example 7."""

    def __init__(self, item):
        super().__init__(X.float())
        self.item = item

    def __getitem__(self, i):
        return self.item if i == 7 else super().__getitem__(i)


class Empty(Map):
    def __len__(self):
        return 0


class Negative(Map):
    def __len__(self):
        return -1


class Indices(RandomSampler):
    """Draws with replacement, as ImbalancedDatasetSampler of torchsampler."""

    def __init__(self, source):
        super().__init__(source, replacement=True)
        self.indices = range(len(source))


class FailingIterable(IterableDataset):
    def __iter__(self):
        yield X[0], 0
        raise KeyError("x")


MISTAKES = {
    "a negative length": (Negative, "^len.. of your Negative raised ValueError: .*; fix its __len__$"),
    "a failing loader": (
        lambda: DataLoader(FailingIterable()),
        r"^your FailingIterable raised KeyError: 'x' \(test_user_data.py, line \d+\); fix it$",
    ),
    "replacement": (
        lambda: DataLoader(Map(), sampler=RandomSampler(Y, replacement=True)),
        "your DataLoader has a RandomSampler, but",
    ),
    "nothing": (lambda: None, r"your data is a NoneType; return \(x, y\)"),
    "a string": (lambda: "photos", "your data is a str; return"),
    "an array": (lambda: X, "your data is a Tensor; return"),
    "an endless Dataset": (Endless, "your Endless has no length; define __len__"),
    "two endless Datasets": (lambda: (Endless(), Endless()), "your Endless has no length; define __len__"),
    "an endless iterable": (EndlessIterable, "your EndlessIterable did not end after 100 examples"),
    "an endless loader": (
        lambda: DataLoader(EndlessIterable()),
        "^your EndlessIterable did not end after 100 examples",
    ),
    "an endless iterator": (itertools.count, "an example of your data is an int; it must be a pair"),
    "empty": (Empty, "your Empty is empty"),
    "an empty loader": (lambda: DataLoader(Empty(), collate_fn=collate_fn), "^your Empty is empty"),
    "an empty iterator": (lambda: iter(()), "is empty; return at least one example"),
    "an error": (
        lambda: Subset(Fails(), range(29, 30)),
        r"your data set raised KeyError: 29 for example 0 \(test_user_data.py, line \d+\)",
    ),
    "an error in a stream": (Fails, "your data set raised KeyError: 2[5-9] for example 2[5-9]"),
    "shapes": (lambda: iter([(X[0], 0), (X[0, :, :4], 1)]), r"example 1 of your data has shape \(3, 4, 5\), but"),
    "types": (lambda: iter([(X[0], 0), (X[0].float(), 1)]), "example 1 of your data is torch.float32, but the first"),
    "float labels": (lambda: [(X[0], 0.5)], "the label of an example is a float; it must be one integer class"),
    "one-hot labels": (lambda: [(X[0], torch.eye(3)[0])], r"the label of an example is a Tensor of shape \(3,\)"),
    "no label": (lambda: [{"image": X[0]}], "your data have the columns image, but none of label, labels"),
    "text": (lambda: [{"text": "hi", "label": 0}], "column 'text' of your data is a str; convert it to a number"),
    "a path": (lambda: [("a.jpg", 0)], "the input of an example is a str, .*open an image with PIL.Image.open, or"),
    "no item": (lambda: Part(None), r"an example of your data is None; it must be a pair .* \(example 7\)$"),
    "no input": (lambda: Part((None, 0)), r"the input of an example is None, .* return one of them \(example 7\)$"),
    "NaN": (lambda: Part((X[0] * torch.nan, 0)), r"NaN or infinite values; replace or remove them \(example 7\)$"),
    "an iterable with NaN": (
        lambda: iter([(X[0].float(), 0), (X[1] * torch.nan, 1)]),
        r"NaN or infinite values; replace or remove them \(example 1\)$",
    ),
    "a row without a number": (
        lambda: [{"width": 1.0 if i != 3 else None, "label": i % 2} for i in range(9)],
        r"column 'width' of your data has no value \(None\); fill it, or leave the example out \(example 3\)$",
    ),
    "channels": (
        lambda: [(Image.new("RGB", (4, 3)), 0), (Image.new("L", (4, 3)), 1)],
        r"example 1 of your data has shape \(1, 3, 4\), .* equal numbers of channels, for example image.convert",
    ),
    "float pixels": (lambda: [(Image.new("F", (4, 3)), 0)], r"has float pixels \(mode F\), .*return a float array"),
    "an array in a column": (
        lambda: [{"width": torch.ones(2), "label": 0}],
        r"column 'width' of your data is a Tensor of shape \(2,\); call the input one of image, img",
    ),
    "triples": (lambda: [(X[0], 0, 1)], "an example of your data is a tuple of 3; it must be a pair"),
    "two names": (
        lambda: {"train": Map(), "val": Map(), "valid": Map()},
        "^your data have valid and val, which mean the same part; return one of them$",
    ),
    "names": (lambda: {"a": Map()}, "your data are a dict with a; call its parts train and test"),
    "sampler": (
        lambda: DataLoader(Map(), sampler=WeightedRandomSampler([1.0] * 30, 30)),
        "your DataLoader has a WeightedRandomSampler, but the recipe sets the order",
    ),
    "short sampler": (
        lambda: DataLoader(Map(), sampler=RandomSampler(Y, num_samples=5)),
        "your DataLoader has a RandomSampler, but",
    ),
    "weights in a batch sampler": (
        lambda: DataLoader(Map(), batch_sampler=BatchSampler(WeightedRandomSampler([1.0] * 30, 30), 5, False)),
        "your DataLoader has a WeightedRandomSampler, but",
    ),
    "short batch sampler": (
        lambda: DataLoader(Map(), batch_sampler=BatchSampler(SequentialSampler(range(20)), 5, False)),
        "your DataLoader has a SequentialSampler, but",
    ),
    "a custom batch sampler": (
        lambda: DataLoader(Map(), batch_sampler=[[0, 1], [2, 3]]),
        "your DataLoader has a list, but",
    ),
    "a sampler with indices": (
        lambda: DataLoader(Map(), sampler=Indices(Y)),
        "your DataLoader has an Indices, but",
    ),
    "channels last": (lambda: Map(X.permute(0, 2, 3, 1)), r"shape \(N, 6, 5, 3\), which looks like \(N, H, W, C\)"),
    "test classes": (lambda: (Subset(Map(), [0, 3]), Map()), "your test data have classes without a training example"),
    "a lambda": (
        lambda: Map(transform=lambda x: x),
        "your data set cannot be sent to worker processes .*set data.workers to 0",
    ),
}


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake):
    make, message = MISTAKES[mistake]
    with pytest.raises(DataError, match=message) as caught:
        from_user(make(), workers=1 if mistake == "a lambda" else 0)
    assert "\n" not in str(caught.value)


def test_an_error_in_a_worker_is_one_sentence(monkeypatch):
    monkeypatch.setattr(user_data, "MEMORY", 1000)
    stream = replace(from_user(Map(), workers=0)[0], source=Grows(), workers=2)
    loader = stream.loader(8, training=False, seed=0, device="cpu")
    with pytest.raises(DataError, match=r"^example 2[5-9] of your data has shape \(3, 4, 5\), but the fir") as caught:
        list(loader)
    assert "\n" not in str(caught.value)


def test_sigterm_ends_a_function_that_never_returns(tmp_path):
    (tmp_path / "mine.py").write_text("def data():\n    print('started', flush=True)\n    while True:\n        pass\n")
    command = [
        sys.executable,
        "-m",
        "maxup",
        "train",
        "digits/mlp-gaussian",
        "--data_from",
        "mine:data",
        "--out",
        "run",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until_said(process, "started")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGTERM
    assert not (tmp_path / "run").exists()

"""Streamed data: batches depend on the seed, the epoch and the index alone, and have the data set's own labels."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from maxup.errors import DataError
from maxup.lab.data.stream import Stream
from maxup.lab.data.user_data import from_user
from tests.lab.data.test_user_data import NAMED, SAME, HuggingFace, Map, Named, X, Y


def flip(x):
    return x.flip(-1) if torch.rand(()) < 0.5 else x


def brighter(x):
    return (x // 2 + random.randrange(9) + np.random.randint(9)).to(torch.uint8)


OWN = torch.Generator()


def noisy(x):
    """Draws from a generator that nobody seeds."""
    return (x // 2 + torch.randint(9, (), generator=OWN)).to(torch.uint8)


def rarely_noisy(x):
    return noisy(x) if torch.rand((), generator=OWN) < 0.3 else x


def read(loader, epochs):
    return [list(loader) for _ in range(epochs)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_random_transform_gives_new_images_in_every_epoch(workers):
    """They depend only on the seed, the epoch and the index, and the global random states are unchanged."""
    train, _ = from_user((Map(transform=brighter), Map()), workers=0)
    assert isinstance(train, Stream)
    torch.manual_seed(3)
    random.seed(3)
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    streams = [replace(train, workers=n).loader(8, training=True, seed=5, device="cpu") for n in (workers, 0)]
    (first, second), again = read(streams[0], 2), read(streams[1], 2)[1]
    assert torch.equal(drawn[0], torch.get_rng_state())
    assert (drawn[1], drawn[2]) == (random.getstate(), np.random.get_state()[1].tolist())
    images = [{int(i): x for rows, xs, _ in e for i, x in zip(rows, xs, strict=True)} for e in (first, second, again)]
    assert sorted(images[0]) == list(range(30))
    assert sum(not torch.equal(images[0][i], images[1][i]) for i in range(30)) > 20
    assert all(torch.equal(images[1][i], images[2][i]) for i in range(30))
    assert torch.equal(torch.cat([b[2] for b in first]), Y[torch.cat([b[0] for b in first])])


def test_a_resumed_stream_sees_the_same_images():
    train = replace(from_user(Map(transform=flip), workers=0)[0], workers=0)
    loader, resumed = (train.loader(8, training=True, seed=5, device="cpu") for _ in range(2))
    iterator = iter(loader)
    next(iterator)
    resumed.load_state_dict(loader.state_dict())
    for ours, theirs in zip(iterator, resumed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("transform", [noisy, rarely_noisy])
def test_a_data_set_that_ignores_the_seed_gets_a_warning(capsys, transform):
    """A resumed stream does not see the same images."""
    train = replace(from_user(Map(transform=transform), workers=0)[0], workers=0)
    first, again = (train.loader(30, training=True, seed=5, device="cpu") for _ in range(2))
    assert not torch.equal(next(iter(first))[1], next(iter(again))[1])
    said = capsys.readouterr().err
    assert said.startswith("your Map returns different examples for the same seed, so a resumed run will differ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("transform", [torch.clone, flip, brighter])
def test_a_data_set_that_follows_the_seed_gets_none(capsys, transform):
    from_user((Map(transform=transform), Map(transform=transform)), workers=0)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("kind", ["map", "Hugging Face", "tensors"])
def test_large_data_are_streamed_by_workers(kind):
    train, _ = from_user(SAME[kind](), workers=2)
    assert isinstance(train, Stream)
    assert (train.y.tolist(), train.shape, train.dtype) == (Y.tolist(), (3, 6, 5), torch.uint8)
    assert train.classes == (("ant", "bee", "cat") if kind == "Hugging Face" else ("0", "1", "2"))
    kept = from_user((X, Y))[0]
    assert train.mean == pytest.approx(kept.mean)
    assert train.std == pytest.approx(kept.std)
    part = train.subset([4, 20, 7])
    (batch,) = part.loader(8, training=False, seed=0, device="cpu")
    assert torch.equal(batch[1], X[[4, 20, 7]])
    assert torch.equal(part.normalize(batch[1]), train.normalize(X[[4, 20, 7]]))
    assert train.digest == from_user(SAME[kind](), workers=0)[0].digest
    assert train.digest != from_user(Map(X.flip(0)), workers=0)[0].digest


@pytest.mark.usefixtures("_little_memory")
def test_labels_of_a_column_are_read_without_the_images():
    source = HuggingFace(list(range(30)) * 40)
    train, _ = from_user(source)
    assert len(train) == 1200
    assert source.read < 1200  # a sample for mean and std


class Wrong(Map):
    targets = torch.zeros(30).long()


@pytest.mark.usefixtures("_little_memory")
def test_targets_that_are_not_the_labels_are_not_used():
    assert from_user(Wrong(), workers=0)[0].y.tolist() == Y.tolist()


class Remaps(Map):
    """Returns another label than `targets` for one example, which is not among the first that are compared."""

    def __init__(self, label):
        super().__init__(X.repeat(3, 1, 1, 1))
        self.targets, self.label = Y.repeat(3).tolist(), label

    def __getitem__(self, i):
        return self.x[i], self.label if i == 3 else self.targets[i]


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("training", [True, False])
def test_a_stream_has_the_labels_that_the_data_set_returns(training):
    parts = from_user((Remaps(2), Remaps(2)), workers=0)
    for part in (replace(part, workers=0) for part in parts):
        part = part.subset(torch.arange(90).flip(0))
        found = {
            int(part.rows[i]): int(y)
            for rows, _, ys in part.loader(8, training=training, seed=0, device="cpu")
            for i, y in zip(rows, ys, strict=True)
        }
        assert found == {i: Remaps(2)[i][1] for i in range(90)}


@pytest.mark.usefixtures("_little_memory")
def test_a_label_that_is_not_among_the_targets_is_an_error():
    part = replace(from_user(Remaps(7), workers=0)[0], workers=0)
    with pytest.raises(DataError, match=r"^example 3 of your data has the label 7, which is not among the labels"):
        list(part.loader(8, training=False, seed=0, device="cpu"))


@pytest.mark.usefixtures("_little_memory")
def test_the_labels_of_a_streamed_test_set_are_matched_by_name():
    train, test = from_user((NAMED["data set"](), Named(["cat", "ant"] * 9, ["ant", "cat"])), workers=0)
    assert isinstance(test, Stream)
    ((_, _, y),) = replace(test, workers=0).loader(30, training=False, seed=0, device="cpu")
    assert [train.classes[i] for i in y] == ["cat", "ant"] * 9

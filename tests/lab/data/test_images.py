import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.model_selection import StratifiedShuffleSplit

from maxup.errors import DataError
from maxup.lab.data import images as module
from maxup.lab.data import load_data
from maxup.lab.data.arrays import from_arrays
from maxup.lab.data.images import Images, split, stratified

MEAN, STD = (0.5, 0.25, 0.1), (0.2, 0.3, 0.4)


def some(n=5, classes=3):
    g = torch.Generator().manual_seed(0)
    x = torch.randint(256, (n, 3, 4, 4), generator=g, dtype=torch.uint8)
    return Images(x, torch.arange(n) % classes, tuple("abcdefghij"[:classes]), MEAN, STD)


def test_normalize_is_the_formula():
    images = some()
    pixels = images.x.numpy().astype(np.float64)
    expected = (pixels / 255 - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]
    got = images.normalize(images.x)
    assert got.dtype == torch.float32
    assert np.abs(got.numpy() - expected).max() < 1e-6
    assert torch.equal(images.normalize(images.x[2]), got[2])


@pytest.mark.parametrize("chunk", [1, 60, 10**6])
def test_mean_and_std_do_not_depend_on_the_chunks(chunk, monkeypatch):
    """numpy computes them from all values at once."""
    monkeypatch.setattr(module, "CHUNK", chunk)
    x = torch.rand(7, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 9 + 1000
    train, _ = from_arrays((x, [0, 1] * 3 + [0]))
    values = x.float().numpy().astype(np.float64)
    np.testing.assert_allclose(train.mean, values.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(train.std, values.std((0, 2, 3), ddof=1), rtol=1e-9)


def test_small_units_are_normalized_and_constants_are_not():
    g = torch.Generator().manual_seed(0)
    scale, shift = torch.tensor([1.0, 1e-6, 1e-30, 0, 0, 0, 1e-40]), torch.tensor([0, 0, 0, 0.1, 1.7e9, 0, 0])
    x = torch.randn(1000, 7, generator=g) * scale + shift
    train, _ = from_arrays((x, [0, 1] * 500))
    assert train.std[3:] == (1, 1, 1, 1)  # the last is too small for float32
    got = train.normalize(train.x)
    np.testing.assert_allclose(got[:, :3].double().mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(got[:, :3].double().std(0), 1, atol=1e-6)
    np.testing.assert_allclose(got[:, 3:], 0, atol=1e-6)


def test_normalize_keeps_the_format():
    x = some().x.to(memory_format=torch.channels_last)
    assert some().normalize(x).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_normalize_on_a_gpu_synchronizes_once():
    images = some()
    x = images.x.cuda()
    images.normalize(x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = images.normalize(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.allclose(got.cpu(), images.normalize(images.x), atol=1e-6)


def test_subset_takes_rows_in_order():
    images = some()
    for indices in ([4, 0, 0], torch.tensor([4, 0, 0]), torch.tensor([4, 0, 0], dtype=torch.int32)):
        part = images.subset(indices)
        assert torch.equal(part.x, images.x[[4, 0, 0]])
        assert part.y.tolist() == [1, 0, 0]
        assert (part.classes, part.mean, part.std, part.top) == (images.classes, MEAN, STD, 255)
    assert len(images.subset([])) == 0


@pytest.mark.parametrize("indices", [[5], [-1], [0.5], [[0]], torch.ones(5, dtype=torch.bool)], ids=repr)
def test_invalid_indices_are_an_error(indices):
    with pytest.raises(DataError, match="indices"):
        some().subset(indices)


WRONG = {
    "double": ({"x": torch.zeros(5, 3, 4, 4).double()}, r"torch.float64 of shape \(5, 3, 4, 4\)"),
    "flat": ({"x": torch.zeros(5, 48, dtype=torch.uint8)}, r"\(N, C, H, W\)"),
    "labels of bytes": ({"y": torch.zeros(5, dtype=torch.uint8)}, "torch.int64"),
    "too few labels": ({"y": torch.zeros(4, dtype=torch.int64)}, "it must be torch.int64 of shape .5,."),
    "a label too large": (
        {"y": torch.tensor([0, 1, 2, 3, 0])},
        r"labels range from 0 to 3, but there are 3 classes \(valid: 0 to 2\)",
    ),
    "a label below 0": ({"y": torch.tensor([0, 1, 2, -1, 0])}, "labels range from -1"),
    "too few means": ({"mean": (0.5,)}, "expected 3 means, 3 positive stds"),
    "no deviation": ({"std": (0.5, 0.0, 1.0)}, "expected 3 means, 3 positive stds"),
    "no top": ({"top": 0}, "top"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_invalid_images_are_an_error(change, message):
    images = some()
    fields = {name: getattr(images, name) for name in ("x", "y", "classes", "mean", "std", "top")}
    with pytest.raises(DataError, match=message):
        Images(**{**fields, **change})


@settings(max_examples=150)
@given(st.lists(st.integers(-1, 4), min_size=1, max_size=40), st.integers(0, 2**40), st.data())
def test_each_class_has_its_share(labels, seed, data):
    y = torch.tensor(labels)
    n = data.draw(st.integers(1, len(y)))
    chosen = stratified(y, n, seed)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert len(chosen) == n
    for c in y.unique():
        share = n * (y == c).sum() / len(y)
        assert abs(int((y[chosen] == c).sum()) - share) < 1
    assert torch.equal(chosen, stratified(y, n, seed))


def test_the_largest_remainders_are_rounded_up():
    y = torch.tensor([0] * 50 + [1] * 33 + [2] * 17)  # shares of 10: 5, 3.3, 1.7
    assert y[stratified(y, 10, 0)].bincount().tolist() == [5, 3, 2]


def test_shares_are_those_of_scikit_learn():
    y = load_data("digits")[0].y
    for n in (100, 500, 1000, 1500):
        theirs, _ = next(StratifiedShuffleSplit(1, train_size=n, random_state=0).split(y, y))
        difference = y[stratified(y, n, 0)].bincount() - y[torch.from_numpy(theirs)].bincount()
        assert difference.abs().sum() <= 2  # they break ties at random


def test_every_example_is_equally_likely():
    y = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    chosen = torch.cat([stratified(y, 4, seed) for seed in range(400)])
    assert stats.chisquare(chosen.bincount().numpy()).pvalue > 0.01


@pytest.mark.parametrize("n", [0, -1, 6, 2.0, True])
def test_invalid_numbers_of_examples_are_an_error(n):
    with pytest.raises(DataError, match="of 5 examples; ask for a whole number from 1 to 5"):
        stratified(some().y, n, 0)


def test_split_is_a_partition():
    images = load_data("digits")[0]
    chosen, rest = split(images, 297, seed=3)
    index = stratified(images.y, 297, seed=3)
    assert torch.equal(chosen.x, images.x[index])
    assert len(rest) == 1500
    together = torch.cat([chosen.y.bincount(), rest.y.bincount()]).view(2, 10).sum(0)
    assert torch.equal(together, images.y.bincount())
    ours, theirs = (sorted(map(bytes, x.flatten(1).numpy())) for x in (torch.cat([chosen.x, rest.x]), images.x))
    assert ours == theirs
    assert not torch.equal(split(images, 297, seed=4)[0].x, chosen.x)
    with pytest.raises(DataError, match=r"data\.train_size=1797 must be below the number of images, 1797"):
        split(images, 1797, seed=0)

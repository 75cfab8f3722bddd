import re

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


@pytest.mark.parametrize(
    ("column", "warned"),
    [
        (1.7e9 + 3600 * torch.rand(100, dtype=torch.float64), True),
        (1.7e9 + torch.rand(100, dtype=torch.float64), True),  # one value in float32
        (1.7e9 + 86400 * torch.rand(100, dtype=torch.float64), False),
        (torch.full((100,), 1.7e9), False),
        (torch.rand(100) - 0.5, False),
    ],
)
def test_a_column_that_float32_hardly_resolves_gets_a_warning(column, warned, capsys):
    x = torch.stack([torch.rand(100, dtype=torch.float64), column.double()], 1)
    from_arrays((x, [0, 1] * 50))
    said = capsys.readouterr().err
    assert bool(said) == warned
    if warned:
        assert re.match(
            r"column 1 of your data ranges over [\de.+]+ near 1\.7e\+09, which .*; subtract an offset", said
        )


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: [object()] * 6}, "your data have a list as x or y; return tensors or numpy arrays"),
        ({0: np.array([None] * 6)}, "your data cannot be converted to tensors .*; return tensors or numpy arrays"),
        ({0: torch.full((6, 8, 8), torch.nan)}, "your data have NaN or infinite values, first in example 0; replace"),
        ({0: torch.ones(6, 2).index_fill(0, torch.tensor([3]), torch.inf)}, "infinite values, first in example 3;"),
        ({0: torch.full((6, 8, 8), 256)}, "your images are torch.int64 from 256 to 256; return integers from 0 to 255"),
        ({0: torch.full((6, 8, 8), -1).short()}, "your images are torch.int16 from -1 to -1; return integers from 0"),
        ({0: torch.zeros(6, 8, 8).bool()}, "your images are torch.bool; return integers from 0 to 255, or floats"),
        ({0: torch.zeros(6, 8, 8).to_sparse()}, "your data are a sparse tensor; return a dense one"),
        ({0: [np.zeros((8, 8))] * 5 + [np.zeros((8, 7))]}, "your data cannot be converted to tensors .stack expects"),
        ({0: torch.zeros(6)}, r"your data are torch.float32 of shape \(6,\); return images"),
        ({1: torch.tensor([0, 10**9] * 3)}, "your labels go up to 1000000000; number the classes from 0"),
        ({1: torch.tensor([0, -1] * 3)}, "your labels start at -1; number the classes from 0"),
        ({1: [*"abaab", 3]}, "your labels are names and numbers"),
        ({1: [3, *"abaab"]}, "your labels are names and numbers"),
        ({3: torch.tensor([-1, -1])}, "your test labels are all negative, as in a test set whose"),
        ({1: torch.rand(6)}, "your labels are torch.float32"),
        ({1: torch.zeros(6, 1).long()}, r"shape \(6, 1\)"),
        ({3: torch.tensor([0, 7])}, "classes without a training image: 7"),
        ({2: torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}, r"your test images are torch.uint8 of shape \(2, 3, 8, 8\)"),
        ({2: torch.zeros(2, 8, 8)}, "your test images are torch.float32"),
    ],
)
def test_invalid_arrays_are_an_error(change, message):
    arrays = [torch.zeros(6, 8, 8, dtype=torch.uint8), torch.tensor([0, 1] * 3)]
    arrays += [torch.zeros(2, 8, 8, dtype=torch.uint8), torch.tensor([0, 1])]
    from_arrays(arrays)
    for index, value in change.items():
        arrays[index] = value
    with pytest.raises(DataError, match=message):
        from_arrays(arrays)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.astype(np.int64),  # such as bytes of an Array3D of Hugging Face
        lambda x: x.astype(np.uint16),
        lambda x: x[::-1].copy()[::-1],  # negative strides, such as BGR images that are mirrored to RGB
        lambda x: np.broadcast_to(x, x.shape),  # not writable
        lambda x: x.astype(">i4"),
        list,
        lambda x: [torch.from_numpy(one) for one in x],
    ],
)
def test_arrays_of_other_types_are_the_same_bytes(change):
    x, y = np.random.default_rng(0).integers(256, size=(6, 3, 4, 5), dtype=np.uint8), [0, 1] * 3
    train, _ = from_arrays((change(x), y))
    assert train.dtype == torch.uint8
    assert train.x.tolist() == x.tolist()


def test_arrays_with_a_gradient():
    x = torch.rand(6, 3, 4, 5, requires_grad=True)
    train, _ = from_arrays((x, [0, 1] * 3))
    assert not train.x.requires_grad
    assert train.digest == from_arrays((x.detach(), [0, 1] * 3))[0].digest


def test_channels_last_is_an_error():
    x, y = torch.zeros(6, 8, 8, 3, dtype=torch.uint8), torch.arange(6) % 2
    with pytest.raises(DataError, match=r"looks like \(N, H, W, C\); return \(N, C, H, W\)"):
        from_arrays((x, y))
    assert from_arrays((x.permute(0, 3, 1, 2), y))[0].shape == (3, 8, 8)

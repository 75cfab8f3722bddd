import sys

import pytest
import torch
from sklearn import datasets

from maxup.errors import DataError
from maxup.lab.data import find
from maxup.lab.data.find import locate
from maxup.lab.data.sets.digits import load_digits


def test_the_digits_of_scikit_learn():
    images, test = load_digits()
    theirs = datasets.load_digits()
    assert test is None
    assert images.x.shape == (1797, 1, 8, 8)
    assert torch.equal(images.x.flatten(1).double(), torch.from_numpy(theirs.data))
    assert images.y.tolist() == theirs.target.tolist()


def test_pixels_run_from_0_to_1():
    images, _ = load_digits()
    pixels = images.normalize(images.x)
    assert (pixels.min(), pixels.max()) == (0, 1)
    assert torch.equal(pixels * 16, images.x.float())


def test_missing_scikit_learn_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match="pip install scikit-learn"):
        load_digits()


def test_they_are_found_inside_scikit_learn(monkeypatch):
    assert (locate("digits") / "digits.csv.gz").exists()
    monkeypatch.setattr(find, "find_spec", lambda name: None)
    assert locate("digits") is None
    with pytest.raises(DataError, match="pip install scikit-learn"):
        find.find("digits")

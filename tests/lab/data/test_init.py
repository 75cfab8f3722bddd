import pytest

from maxup.errors import DataError
from maxup.lab import data
from maxup.lab.data import load_data
from tests.lab.data.fake import write_cifar100


def test_a_data_set_is_loaded_by_name(tmp_path):
    x, y, _, _ = write_cifar100(tmp_path / "cifar-100-python", n=4)
    for root in (tmp_path, str(tmp_path)):
        train, test = load_data("cifar100", root)
        assert (len(train), len(test), len(train.classes)) == (4, 4, 100)
        assert train.x.equal(x)
        assert train.y.equal(y)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("CIFAR-10", "cifar10"),
        ("fashion-mnist", "fashion_mnist"),
        ("digit", "digits"),
        ("", "digits"),
        (None, "digits"),
    ],
)
def test_unknown_names_suggest_the_nearest(name, nearest):
    with pytest.raises(DataError) as caught:
        load_data(name)
    assert repr(name) in str(caught.value)
    assert nearest in str(caught.value)


def test_a_name_that_is_not_a_string():
    with pytest.raises(DataError, match="is unknown"):
        load_data(["cifar10"])


def test_public_names_exist():
    assert all(hasattr(data, name) for name in data.__all__)

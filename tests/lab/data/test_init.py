import pytest

from maxup.errors import DataError
from maxup.lab import data
from maxup.lab.data import DATA, list_data, load_data
from maxup.lab.data.find import SOURCES
from tests.lab.data.fake import write_cifar10, write_cifar100, write_fashion_mnist, write_folders

TEXTS = {"ptb", "wikitext2", "text"}  # tests/lab/data/test_text.py has them


def test_every_name_loads(tmp_path):
    write_fashion_mnist(tmp_path / "fashion-mnist", train=6, test=3)
    write_cifar10(tmp_path / "cifar-10-batches-py", n=2)
    write_cifar100(tmp_path / "cifar-100-python", n=4)
    names = [name for name in list_data() if name not in TEXTS]
    write_folders(tmp_path / "imagenet", train=2, val=1)
    write_folders(tmp_path / "imagenette2-320", train=3, val=1)
    sizes = {name: [part and len(part) for part in load_data(name, tmp_path)] for name in names}
    assert sizes == {
        "cifar10": [10, 2], "cifar100": [4, 4], "digits": [1797, None], "fashion_mnist": [6, 3], "imagenet": [6, 3],
        "imagenette": [9, 3],
    }  # fmt: skip
    assert {name: len(load_data(name, str(tmp_path))[0].classes) for name in names} == {
        "cifar10": 10, "cifar100": 100, "digits": 10, "fashion_mnist": 10, "imagenet": 3, "imagenette": 3,
    }  # fmt: skip


def test_each_can_also_be_looked_for():
    assert set(DATA) == set(SOURCES)


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
def test_unknown_names_get_the_nearest(name, nearest):
    with pytest.raises(DataError) as caught:
        load_data(name)
    assert repr(name) in str(caught.value)
    assert nearest in str(caught.value)


def test_a_name_that_is_no_name():
    with pytest.raises(DataError, match="is unknown"):
        load_data(["cifar10"])


def test_public_names_are_there():
    assert all(hasattr(data, name) for name in data.__all__)

"""The formats of batches: every one gives its x and y, and gets the winners back in the same places."""

from collections import UserDict
from types import MappingProxyType
from typing import NamedTuple

import pytest

from maxup.integrations.batches import split


class Pair(NamedTuple):
    image: str
    label: str


class Encoding(UserDict):
    """A dict with attributes, as Hugging Face's BatchEncoding."""

    def __getattr__(self, name):
        return self.data[name]


def named(kind, y="labels", **others):
    return lambda x, target: kind({"image": x, y: target, **others})


@pytest.mark.parametrize(
    ("build", "keys"),
    [
        (lambda x, y: [x, y], {}),
        (lambda x, y: (x, y, "name"), {}),
        (lambda x, y: (y, x), {"x": 1, "y": 0}),
        (Pair, {}),
        (named(dict, y="target", id="a"), {"x": "image", "y": "target"}),
        (named(Encoding, id="a"), {"x": "image"}),
        (named(MappingProxyType), {"x": "image"}),
    ],
)
def test_winners_take_the_places_of_x_and_y(build, keys):
    batch, wanted = build("x", "y"), build("winner x", "winner y")
    x, y, join = split(batch, **keys)
    assert (x, y) == ("x", "y")
    joined = join("winner x", "winner y")
    assert joined == wanted
    assert type(joined) is (dict if isinstance(batch, MappingProxyType) else type(batch))
    assert batch == build("x", "y")  # the batch itself stays


def test_without_a_key_x_is_the_dict_without_the_target():
    batch = {"ids": 1, "mask": 2, "labels": 3}
    x, y, join = split(batch)
    assert (x, y) == ({"ids": 1, "mask": 2}, 3)
    assert join({"ids": 4, "mask": 2}, 5) == {"ids": 4, "mask": 2, "labels": 5}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (3, r"entries \[0, 1\], but got an int; name the entries with MaxUpCallback\(..., x=, y=\)"),
        ((3,), r"entries \[0, 1\], but got a tuple with the entries \[0\]"),
        ({"image": 3, "label": 1}, r"entries \['labels'\], but got a dict with the entries \['image', 'label'\]"),
    ],
)
def test_messages(batch, message):
    with pytest.raises(TypeError, match=message):
        split(batch)

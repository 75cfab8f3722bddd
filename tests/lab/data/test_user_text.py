"""The text that --data_from returns."""

import itertools

import numpy as np
import pytest
import torch

from maxup.errors import DataError
from maxup.lab.data import user_text
from maxup.lab.data.text import from_text
from maxup.lab.data.user_text import from_user_text

LINES = ["One two, three.", "Two three one!"] * 30


@pytest.mark.parametrize(
    "returned",
    ["\n".join(LINES), LINES, iter(LINES), [{"text": line} for line in LINES], {"train": LINES}],
    ids=["string", "list", "iterator", "rows", "only train"],
)
def test_every_kind_is_the_same_text(returned):
    expected, text = from_text("\n".join(LINES)), from_user_text(returned)
    assert text.digest == expected.digest
    assert torch.equal(text.test, expected.test)


def test_three_parts_and_token_ids():
    for returned in ((LINES, LINES[:4], LINES[:6]), {"train": LINES, "valid": LINES[:4], "test": LINES[:6]}):
        text = from_user_text(returned)
        assert [len(part) for part in (text.train, text.validation, text.test)] == [60 * 11 // 2, 22, 33]
    for dtype in (np.int64, np.int32, np.uint16):  # tokenized text is often stored as uint16
        ids = (np.arange(1000) % 37).astype(dtype)
        text = from_user_text(ids)
        assert torch.cat([text.train, text.validation, text.test]).tolist() == ids.tolist()
        assert len(text.words) == 37
    text = from_user_text((torch.arange(9), torch.tensor([11]), torch.tensor([3])))
    assert (len(text.train), len(text.words)) == (9, 12)
    ids = np.array([2**18 - 1] * 10, dtype=np.int32)  # of a large tokenizer
    assert len(from_user_text(ids).words) == 2**18


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "your text is a NoneType; return a string, lines, rows with a text column, or token ids"),
        ((LINES, LINES), "your text is a tuple of 2"),
        ({"train": LINES, "test": LINES}, "your text has the parts train, test"),
        ([{"line": "a"}], "a row of your text is a dict without a string in 'text'"),
        (torch.rand(9), "your token ids are torch.float32"),
        (torch.tensor([3, 8_000_000]), "your token ids go from 3 to 8000000, .*; return integers from 0 to 1048575$"),
        (torch.tensor([-1, 2]), "return integers from 0"),
        (map(str.lower, ["a", 1]), r"^your map raised TypeError: .*; fix it$"),
        (itertools.repeat("word"), "your text did not end after 1,000 characters, which is the most"),
    ],
)
def test_mistakes(returned, message, monkeypatch):
    monkeypatch.setattr(user_text, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match=message):
        from_user_text(returned)

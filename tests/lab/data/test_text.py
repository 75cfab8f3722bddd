import os
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxup.errors import DataError
from maxup.lab.data.text import END, UNKNOWN, from_file, from_folder, from_lines, from_text

PARTS = {"train": "the cat sat\nthe dog\n", "valid": "the cat\n", "test": "the bird sat\n"}


@pytest.fixture
def folder(tmp_path):
    for split, text in PARTS.items():
        (tmp_path / f"{split}.txt").write_text(text)
    return tmp_path


def test_tokens_of_a_folder_read_back(folder):
    text = from_folder(folder)
    assert text.read(text.train.tolist()) == "the cat sat \nthe dog \n"
    assert text.read(text.test.tolist()) == f"the {UNKNOWN} sat \n"  # birds were never trained on
    assert sorted(text.words) == sorted([UNKNOWN, END, "the", "cat", "sat", "dog"])


@given(st.lists(st.lists(st.sampled_from("abcdefg"), max_size=6), min_size=1, max_size=8), st.integers(1, 3))
def test_every_word_against_a_count(lines, min_count):
    """Known words are unchanged, rare ones become <unk>, and every line ends with <eos>."""
    joined = [" ".join(line) for line in lines]
    text = from_lines(joined, joined, ["a"], min_count=min_count)
    often = Counter(word for line in lines for word in line) | Counter({END: len(lines)})
    wanted = [w if often[w] >= min_count else UNKNOWN for line in lines for w in (*line, END)]
    assert [text.words[i] for i in text.train.tolist()] == wanted
    assert torch.equal(text.train, text.validation)
    assert len(set(text.words)) == len(text.words)


def test_the_digest_depends_on_the_words_and_the_training_split(folder):
    before = from_folder(folder)
    assert before.digest == from_folder(folder).digest
    (folder / "train.txt").write_text("the cat sat\ndog the\n")
    assert from_folder(folder).words == before.words
    assert from_folder(folder).digest != before.digest


def test_a_byte_order_mark_is_not_a_word(folder):
    before = from_folder(folder)
    (folder / "train.txt").write_text(PARTS["train"], encoding="utf-8-sig")
    assert from_folder(folder).digest == before.digest


def test_a_folder_may_have_the_names_of_the_usual_texts(folder):
    before = from_folder(folder)
    for split in PARTS:
        (folder / f"{split}.txt").rename(folder / f"wiki.{split}.tokens")
    assert from_folder(folder).digest == before.digest


def _as_folder(path):
    path.unlink()
    path.mkdir()


BAD = {
    "missing": (lambda f: (f / "valid.txt").unlink(), r"lacks valid\.txt; it must have one file each"),
    "empty": (lambda f: (f / "test.txt").write_text("\n \n"), r"test\.txt is empty"),
    "only a mark": (lambda f: (f / "test.txt").write_bytes(b"\xef\xbb\xbf"), r"test\.txt is empty"),
    "folder": (
        lambda f: _as_folder(f / "train.txt"),
        r"train\.txt cannot be read \(Is a directory \(train\.txt\)\); replace it",
    ),
    "NUL": (lambda f: (f / "train.txt").write_bytes(b"a\0b\n"), r"train\.txt has a NUL byte"),
    "not UTF-8": (lambda f: (f / "train.txt").write_bytes(b"caf\xe9\n"), r"train\.txt is not UTF-8 \(byte 3\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_folders_are_an_error(folder, name):
    spoil, message = BAD[name]
    spoil(folder)
    with pytest.raises(DataError, match=message) as error:
        from_folder(folder)
    assert "\n" not in str(error.value)


def test_a_missing_folder(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        from_folder(tmp_path / "nowhere")


@pytest.mark.parametrize("kind", ["pipe", "folder", "hole"])
def test_special_and_huge_files_are_an_error(kind, tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.txt").write_text("a b\n")
    valid = tmp_path / "valid.txt"
    if kind == "pipe":
        os.mkfifo(valid)  # reading it would block forever
    elif kind == "folder":
        valid.mkdir()
    else:
        valid.touch()
        os.truncate(valid, 1 << 40)
    with pytest.raises(DataError, match=r"^\S+/valid.txt [^\n]+$"):
        from_folder(tmp_path)


BOOK = "Call me Ishmael. Some years ago,\nnever mind how long!\n\n" * 40


def test_one_file_is_split_in_order(tmp_path):
    """80 %, 10 % and 10 % of the tokens of all paragraphs, in lower case."""
    (tmp_path / "book.txt").write_text(BOOK + "The end.\n")
    text = from_file(tmp_path / "book.txt")
    tokens = "call me ishmael . some years ago , never mind how long !".split()
    every = [*tokens, END] * 40 + ["the", "end", ".", END]
    assert [len(part) for part in (text.train, text.validation, text.test)] == [451, 56, 57]
    read = [text.words[i] for part in (text.train, text.validation, text.test) for i in part.tolist()]
    assert read == [word if word in {*tokens, END} else UNKNOWN for word in every]


def test_without_blank_lines_every_line_is_a_sentence():
    lines = "one two\nthree\n" * 20
    assert "".join(from_text(lines).read(part) for part in [from_text(lines).train.tolist()]).startswith(
        "one two \nthree \n"
    )


def test_words_of_one_file_that_appear_once_are_unknown():
    text = from_text("a b " * 20 + "rare " + "a b " * 20)
    assert text.words[0] == UNKNOWN
    assert "rare" not in text.words

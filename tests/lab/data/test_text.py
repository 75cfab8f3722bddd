import os
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxup.errors import DataError
from maxup.lab.data import load_data
from maxup.lab.data.text import END, UNKNOWN, from_folder, from_lines, load_text

PARTS = {"train": "the cat sat\nthe dog\n", "valid": "the cat\n", "test": "the bird sat\n"}


@pytest.fixture
def folder(tmp_path):
    for split, text in PARTS.items():
        (tmp_path / f"{split}.txt").write_text(text)
    return tmp_path


def test_a_folder_s_tokens_read_back(folder):
    text = load_data("text", folder)
    assert text.read(text.train.tolist()) == "the cat sat \nthe dog \n"
    assert text.read(text.test.tolist()) == f"the {UNKNOWN} sat \n"  # birds were never trained on
    assert sorted(text.words) == sorted([UNKNOWN, END, "the", "cat", "sat", "dog"])


@given(st.lists(st.lists(st.sampled_from("abcdefg"), max_size=6), min_size=1, max_size=8), st.integers(1, 3))
def test_every_word_against_a_count(lines, least):
    """Known words come back as they were, rare ones as <unk>, and each line ends."""
    joined = [" ".join(line) for line in lines]
    text = from_lines(joined, joined, ["a"], least=least)
    often = Counter(word for line in lines for word in line) | Counter({END: len(lines)})
    wanted = [w if often[w] >= least else UNKNOWN for line in lines for w in (*line, END)]
    assert [text.words[i] for i in text.train.tolist()] == wanted
    assert torch.equal(text.train, text.validation)
    assert len(set(text.words)) == len(text.words)


def test_the_embedded_text_is_english_and_its_parts_do_not_overlap():
    text = load_text()
    assert len(text.words) > 1500
    assert len(text.train) > 8 * min(len(text.validation), len(text.test)) > 4000
    lines = [set(text.read(t.tolist()).split("\n")) - {"", " "} for t in (text.train, text.validation, text.test)]
    long = [{line for line in part if len(line) > 80 and UNKNOWN not in line} for part in lines]
    assert not long[0] & long[1]
    assert not long[0] & long[2]
    assert "the" in text.words


def test_texts_are_told_apart_by_words_and_by_the_training_part(folder):
    before = load_data("text", folder)
    assert before.digest == load_data("text", folder).digest != load_text().digest
    (folder / "train.txt").write_text("the cat sat\ndog the\n")
    assert load_data("text", folder).words == before.words
    assert load_data("text", folder).digest != before.digest


def test_a_byte_order_mark_is_no_word(folder):
    before = load_data("text", folder)
    (folder / "train.txt").write_text(PARTS["train"], encoding="utf-8-sig")
    assert load_data("text", folder).digest == before.digest


def test_a_folder_may_have_the_names_of_the_usual_texts(folder):
    before = load_data("text", folder)
    for split in PARTS:
        (folder / f"{split}.txt").rename(folder / f"wiki.{split}.tokens")
    assert load_data("text", folder).digest == before.digest


def _as_folder(path):
    path.unlink()
    path.mkdir()


BAD = {
    "missing": (lambda f: (f / "valid.txt").unlink(), r"lacks valid\.txt; it must hold one file for each"),
    "empty": (lambda f: (f / "test.txt").write_text("\n \n"), r"test\.txt is empty"),
    "only a mark": (lambda f: (f / "test.txt").write_bytes(b"\xef\xbb\xbf"), r"test\.txt is empty"),
    "folder": (
        lambda f: _as_folder(f / "train.txt"),
        r"train\.txt cannot be read \(Is a directory \(train\.txt\)\); put",
    ),
    "NUL": (lambda f: (f / "train.txt").write_bytes(b"a\0b\n"), r"train\.txt holds a NUL byte"),
    "not UTF-8": (lambda f: (f / "train.txt").write_bytes(b"caf\xe9\n"), r"train\.txt is not UTF-8 \(byte 3\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_folders_get_a_sentence(folder, name):
    spoil, sentence = BAD[name]
    spoil(folder)
    with pytest.raises(DataError, match=sentence) as error:
        from_folder(folder)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        from_folder(tmp_path / "nowhere")


def test_other_files_under_the_usual_names_are_refused(tmp_path):
    (tmp_path / "ptb").mkdir()
    for split, text in PARTS.items():
        (tmp_path / "ptb" / f"ptb.{split}.txt").write_text(text)
    with pytest.raises(
        DataError, match=r"the files in .*/ptb are not the ptb in general use: they hold 7/3/4 tokens and 6 words"
    ):
        load_data("ptb", tmp_path)


@pytest.mark.parametrize(
    ("name", "counts"),
    [("ptb", (929_589, 73_760, 82_430, 10_000)), ("wikitext2", (2_088_628, 217_646, 245_569, 33_278))],
)
def test_the_real_corpora(data_root, name, counts):
    """Tokens are what awk counts: words, and one end a line."""
    from maxup.lab.data.find import locate

    if locate(name, data_root) is None:
        pytest.skip(f"no {name} in {data_root}")
    text = load_data(name, data_root)
    assert (len(text.train), len(text.validation), len(text.test), len(text.words)) == counts
    folder = locate(name, data_root)
    path = next(folder.glob("*test*"))
    raw = path.read_text(encoding="utf-8")
    assert len(raw.split()) + raw.count("\n") == counts[2]


@pytest.mark.parametrize("kind", ["pipe", "folder", "hole"])
def test_what_is_no_regular_file_of_bounded_size_is_refused(kind, tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.txt").write_text("a b\n")
    valid = tmp_path / "valid.txt"
    if kind == "pipe":
        os.mkfifo(valid)  # which nobody writes to: reading it would wait forever
    elif kind == "folder":
        valid.mkdir()
    else:
        valid.touch()
        os.truncate(valid, 1 << 40)
    with pytest.raises(DataError, match=r"^\S+/valid.txt [^\n]+$"):
        from_folder(tmp_path)

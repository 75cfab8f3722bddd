import pytest

from maxup.errors import DataError
from maxup.lab.data import load_data
from maxup.lab.data.find import locate
from maxup.lab.data.sets.text import load_text
from maxup.lab.data.text import UNKNOWN, from_folder
from tests.lab.data.test_text import PARTS


def write_parts(folder, pattern="{}.txt"):
    folder.mkdir(exist_ok=True)
    for split, text in PARTS.items():
        (folder / pattern.format(split)).write_text(text)


def test_text_is_a_folder_or_the_help_topics(tmp_path):
    write_parts(tmp_path)
    assert load_data("text", tmp_path).digest == from_folder(tmp_path).digest
    assert load_data("text").digest == load_text().digest != from_folder(tmp_path).digest


def test_the_help_topics_are_english_and_their_splits_do_not_overlap():
    text = load_text()
    assert len(text.words) > 1500
    assert len(text.train) > 8 * min(len(text.validation), len(text.test)) > 4000
    lines = [set(text.read(t.tolist()).split("\n")) - {"", " "} for t in (text.train, text.validation, text.test)]
    long = [{line for line in part if len(line) > 80 and UNKNOWN not in line} for part in lines]
    assert not long[0] & long[1]
    assert not long[0] & long[2]
    assert "the" in text.words


def test_other_files_under_the_usual_names_are_an_error(tmp_path):
    write_parts(tmp_path / "ptb", "ptb.{}.txt")
    with pytest.raises(
        DataError, match=r"the files in .*/ptb are not the usual ptb: they have 7/3/4 tokens and 6 words"
    ):
        load_data("ptb", tmp_path)


@pytest.mark.parametrize(
    ("name", "counts"),
    [("ptb", (929_589, 73_760, 82_430, 10_000)), ("wikitext2", (2_088_628, 217_646, 245_569, 33_278))],
)
def test_the_real_corpora(data_root, name, counts):
    """The tokens are the words, plus one <eos> per line."""
    if locate(name, data_root) is None:
        pytest.skip(f"no {name} in {data_root}")
    text = load_data(name, data_root)
    assert (len(text.train), len(text.validation), len(text.test), len(text.words)) == counts
    folder = locate(name, data_root)
    path = next(folder.glob("*test*"))
    raw = path.read_text(encoding="utf-8")
    assert len(raw.split()) + raw.count("\n") == counts[2]

import hashlib
import json
import os
import re
from dataclasses import replace

import pytest

from maxup.errors import CertificateError
from maxup.lab.certify.tsv import Row, append, begin, gather, read, set_num_images, unfinished
from maxup.smoothing.smooth import Certificate

ABOUT = {"model": "a" * 64, "images": "b" * 64, "sigma": 0.5, "dtype": "float32", "forward": "eager", "n0": 100,
         "n": 1000, "alpha": 0.001, "sampling": "fixed", "radii": None, "seed": 0,
         "classes": list("0123456789")}  # fmt: skip
ROWS = [Row(i, 3, 3 - 4 * (i % 2), 0.25 * i * (i % 2 == 0), i % 2 == 0, "0:00:01.500000") for i in range(5)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "certified.tsv"
    assert begin(path, ABOUT) == []
    append(path, ROWS, samples=False)
    return path


def test_rows_are_read_back_and_have_the_usual_columns(path):
    about, rows = read(path)
    assert rows == ROWS
    assert {key: about[key] for key in ABOUT} == ABOUT
    comment, header, *lines = path.read_text().splitlines()
    assert comment.startswith("# {")
    assert header == "idx\tlabel\tpredict\tradius\tcorrect\ttime\thash"
    assert lines[2].startswith("2\t3\t3\t0.500000\t1\t0:00:01.500000\t")


def test_hash_covers_the_row_and_the_previous_hash(path):
    """Computed with hashlib, as documented."""
    first, columns, *lines = path.read_text().splitlines()
    above = hashlib.sha256(f"{first}\t{columns}".encode()).hexdigest()[:16]
    for line in lines:
        *cells, recorded = line.split("\t")
        above = hashlib.sha256("\t".join([above, *cells]).encode()).hexdigest()[:16]
        assert recorded == above


def test_a_radius_is_rounded_down():
    assert Row.from_certificate(0, 1, Certificate(1, 0.1999999999, 10, 0.5)).radius == 0.199999
    assert Row.from_certificate(0, 1, Certificate(1, 0.2, 10, 0.5)) == Row(0, 1, 1, 0.2, True, "0:00:00.500000", 10)


def test_an_incomplete_last_line_is_ignored_with_a_note(path, capsys):
    with path.open("a") as file:
        file.write("9\t3\t")
    assert read(path)[1] == ROWS
    assert capsys.readouterr().err == f"{path}: ignoring the incomplete last line\n"
    assert gather(path, ABOUT) == ROWS
    assert len(path.read_text().splitlines()) == 2 + len(ROWS)


def test_a_damaged_last_line_is_rejected(path):
    whole = path.read_bytes()
    for end in (b"J", b"7", b"\t", b"\r", b"\0"):
        path.write_bytes(whole[:-1] + end)
        with pytest.raises(CertificateError, match="was changed: line 7 is not an incomplete row"):
            read(path)
    path.write_bytes(whole.replace(b"0:00:01", b"0:00:\xb11"))
    with pytest.raises(CertificateError, match="was changed in line 3 or above: the hash does not match"):
        read(path)
    path.write_bytes(whole.replace(b"\n", b"\r\n"))
    with pytest.raises(CertificateError, match=re.escape(str(path))):
        read(path)


def test_adaptive_sampling_adds_a_samples_column(tmp_path):
    path = tmp_path / "certified.tsv"
    begin(path, ABOUT | {"sampling": "adaptive"})
    row = Row(0, 1, 1, 0.5, True, "0:00:00", 250)
    append(path, [row], samples=True)
    columns, line = path.read_text().splitlines()[1:]
    assert columns == "idx\tlabel\tpredict\tradius\tcorrect\ttime\tsamples\thash"
    assert line.rpartition("\t")[0] == "0\t1\t1\t0.500000\t1\t0:00:00\t250"
    assert read(path)[1] == [row]


@pytest.mark.parametrize("cut", range(1, 30))
def test_an_incomplete_last_line_is_repaired(path, cut):
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert begin(path, ABOUT) == ROWS[:4]
    append(path, ROWS[4:], samples=False)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("key", "value"),
    [("model", "c" * 64), ("dtype", "bfloat16"), ("sigma", 0.25), ("n", 10), ("alpha", 0.1), ("radii", [0.5])],
)
def test_rows_with_another_header_are_rejected_and_kept(path, key, value):
    before = path.read_bytes()
    for again in (begin, gather):
        with pytest.raises(CertificateError, match=f"was certified with {key}=") as error:
            again(path, ABOUT | {key: value})
        assert "\n" not in str(error.value)
    assert path.read_bytes() == before


def test_another_forward_pass_with_the_same_weights_is_rejected(tmp_path):
    path = tmp_path / "certified.tsv"
    begin(path, ABOUT | {"answers": [1.0, -20.0]})
    append(path, ROWS, samples=False)
    assert begin(path, ABOUT | {"answers": [1.1, -20.1]}) == ROWS  # rounding
    for other in ([1.0, -21.0], [1.0], None):
        with pytest.raises(CertificateError, match="was certified with the same weights but a different forward pass"):
            begin(path, ABOUT | {"answers": other})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"label": 4}, "correct=1 contradicts label=4"),
        ({"label": 10, "correct": False}, "label=10, but there are 10 classes"),
        ({"label": -1, "predict": -1, "radius": 0.0}, "label=-1, but"),
        ({"radius": 2.75}, "radius=2.75, but n, alpha and sigma allow at most 1.231631"),
        ({"idx": 2}, "the file already has image 2"),
        ({"time": "a\tb"}, "too many values|not in the format that maxup certify writes|invalid literal"),
    ],
)
def test_an_invalid_row_with_the_right_hash_is_rejected(path, change, why):
    append(path, [replace(Row(20, 3, 3, 0.5, True, "0:00:01"), **change)], samples=False)
    for again in (read, lambda path: begin(path, ABOUT)):
        with pytest.raises(CertificateError, match=rf"line 8: invalid certificate: .*({why}).*; restore the file, or"):
            again(path)


def test_rows_must_match_the_labels_of_the_data(path):
    before = path.read_bytes()
    assert begin(path, ABOUT, [3] * 5) == ROWS
    for labels in ([3, 3, 3, 7, 3], [3, 3, 3]):
        with pytest.raises(CertificateError, match="line 6: the image or the label is not in the data"):
            begin(path, ABOUT, labels)
    assert path.read_bytes() == before


def test_conflicting_parts_are_rejected_and_kept(path):
    part = path.with_name(f"{path.name}.rank-0")
    begin(part, ABOUT)
    append(part, [ROWS[2]], samples=False)
    assert gather(path, ABOUT) == ROWS  # killed before the part was removed
    begin(part, ABOUT)
    append(part, [replace(ROWS[2], radius=0.75)], samples=False)
    with pytest.raises(CertificateError, match="different certificates for image 2"):
        gather(path, ABOUT)
    assert part.exists()
    assert read(path)[1] == ROWS


def test_version_1_without_hashes_is_rejected(path):
    first, *lines = path.read_text().splitlines()
    bare = [first.replace('"version": 2', '"version": 1'), *(line.rpartition("\t")[0] for line in lines)]
    path.write_text("\n".join(bare) + "\n")
    with pytest.raises(
        CertificateError, match=r"unsupported format version \(supported: 2\); remove it and certify again"
    ):
        read(path)


def test_a_pipe_is_rejected_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "a.tsv")
    for place in (tmp_path / "a.tsv", tmp_path):
        with pytest.raises(
            CertificateError, match=r"is not a certificates file: .*(not a regular file|Is a directory)"
        ):
            read(place)


def test_parts_are_found_for_names_with_glob_characters(tmp_path):
    path = tmp_path / "a[1]*.tsv"
    begin(tmp_path / f"{path.name}.rank-0", ABOUT)
    append(tmp_path / f"{path.name}.rank-0", ROWS, samples=False)
    assert gather(path, ABOUT) == ROWS
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_an_empty_file_may_get_another_header(tmp_path):
    path = tmp_path / "certified.tsv"
    begin(path, ABOUT)
    assert begin(path, ABOUT | {"n": 700}) == []
    assert read(path)[0]["n"] == 700


@pytest.mark.parametrize(
    "text",
    [
        b"", b"x", b"idx\tlabel\n1\t2\n", b"# {}\nidx\n", b"# [1]\n\n", b"\xff\xfe\n\n", b"# {\n\n",
        b"[" * 100_000 + b"\n\n", b'# {"format": "maxup-certificates", "version": 2}\n\n',
        b'# {"format": "maxup-certificates", "version": 2}\nidx\tlabel\tpredict\tradius\tcorrect\ttime\thash\n',
    ],
)  # fmt: skip
def test_another_kind_of_file_is_rejected_and_kept(tmp_path, text):
    path = tmp_path / "a.tsv"
    path.write_bytes(text)
    with pytest.raises(
        CertificateError, match=r"is not a certificates file.*; give a TSV that maxup certify wrote"
    ) as error:
        begin(path, ABOUT)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == text


@pytest.mark.parametrize("line", ["nonsense", "", "1\t2\t3", "9\t3\t3\t0.100000\t1\t0:00:01\t0123456789abcdef"])
def test_a_wrong_hash_is_reported_with_its_line(path, line):
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(
        CertificateError, match=r"was changed in line 8: the hash does not match; restore the file, or delete"
    ):
        begin(path, ABOUT)


def test_lines_above_a_changed_one_can_be_kept(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines).replace("0.500000", "0.600000"))
    with pytest.raises(CertificateError, match="was changed in line 5: "):
        read(path)
    path.write_text("".join(lines[:4]))  # as the message says
    assert begin(path, ABOUT) == ROWS[:2]
    append(path, ROWS[2:], samples=False)
    assert path.read_text() == "".join(lines)


def test_parts_of_several_processes_are_merged_sorted_and_removed(tmp_path):
    path = tmp_path / "certified.tsv"
    for rank, rows in enumerate([ROWS[::2], ROWS[1::2]]):
        part = tmp_path / f"certified.tsv.rank-{rank}"
        begin(part, ABOUT)
        append(part, rows, samples=False)
    part.write_bytes(part.read_bytes()[:-3])  # killed
    assert gather(path, ABOUT) == [row for row in ROWS if row.idx != 3]
    assert read(path)[1] == gather(path, ABOUT)
    assert [p.name for p in tmp_path.iterdir()] == ["certified.tsv"]
    json.loads(path.read_text().splitlines()[0].removeprefix("# "))


def test_missing_rows_at_the_end_are_counted(path):
    """Hashes cannot detect this, so the header records the number of images."""
    set_num_images(path, len(ROWS))
    assert unfinished(*read(path)) is None
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    assert unfinished(*read(path)) == "3 of 5"
    set_num_images(path, 3)  # a command that asks for these alone finds all of them
    assert read(path)[1] == ROWS[:3]
    assert unfinished(*read(path)) is None


def test_a_failed_append_names_the_file(path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as error:
        append(path, [replace(ROWS[0], idx=9)], samples=False)
    assert error.value.filename == str(path)


def test_a_file_without_asked_is_never_unfinished(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    assert unfinished(*read(path)) is None


@pytest.mark.parametrize("asked", [-1, 1.5, "5", None, True, [5]])
def test_an_invalid_number_of_images_is_rejected(tmp_path, asked):
    begin(tmp_path / "a.tsv", ABOUT | {"asked": asked})
    with pytest.raises(CertificateError, match="asked must be a number of images"):
        read(tmp_path / "a.tsv")

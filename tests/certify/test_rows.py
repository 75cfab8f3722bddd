import json

import pytest

from maxup.certify.rows import Row, RowsError, append, begin, gather, read
from maxup.certify.smooth import Certificate

ABOUT = {"model": "a" * 64, "images": "b" * 64, "sigma": 0.5, "dtype": "float32", "forward": "eager", "n0": 100,
         "n": 1000, "alpha": 0.001, "sampling": "fixed", "radii": None, "seed": 0}  # fmt: skip
ROWS = [Row(i, 3, 3 - 4 * (i % 2), 0.25 * i, i % 2 == 0, "0:00:01.500000") for i in range(5)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "certified.tsv"
    assert begin(path, ABOUT) == []
    append(path, ROWS, samples=False)
    return path


def test_rows_come_back_and_any_reader_of_the_field_can_read_them(path):
    about, rows = read(path)
    assert rows == ROWS
    assert {key: about[key] for key in ABOUT} == ABOUT
    comment, header, *lines = path.read_text().splitlines()
    assert comment.startswith("# {")
    assert header == "idx\tlabel\tpredict\tradius\tcorrect\ttime"
    assert lines[1] == "1\t3\t-1\t0.250000\t0\t0:00:01.500000"


def test_a_radius_is_rounded_down():
    assert Row.of(0, 1, Certificate(1, 0.1999999999, 10, 0.5)).radius == 0.199999
    assert Row.of(0, 1, Certificate(1, 0.2, 10, 0.5)) == Row(0, 1, 1, 0.2, True, "0:00:00.500000", 10)


def test_a_row_that_is_there_twice_counts_once_and_half_a_row_is_named(path, capsys):
    append(path, ROWS[:1], samples=False)
    assert read(path)[1] == ROWS
    assert capsys.readouterr().err == ""
    with path.open("a") as file:
        file.write("9\t3\t")
    assert read(path)[1] == ROWS
    assert capsys.readouterr().err == f"{path}: its last line was cut off, and is left out\n"
    assert gather(path, ABOUT) == ROWS
    assert len(path.read_text().splitlines()) == 2 + len(ROWS)


def test_samples_are_a_column_where_they_differ(tmp_path):
    path = tmp_path / "certified.tsv"
    begin(path, ABOUT | {"sampling": "adaptive"})
    row = Row(0, 1, 1, 0.5, True, "0:00:00", 390)
    append(path, [row], samples=True)
    assert path.read_text().splitlines()[1:] == ["idx\tlabel\tpredict\tradius\tcorrect\ttime\tsamples",
                                                 "0\t1\t1\t0.500000\t1\t0:00:00\t390"]  # fmt: skip
    assert read(path)[1] == [row]


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_last_line_that_was_cut_off_is_mended(path, cut):
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert begin(path, ABOUT) == ROWS[:4]
    append(path, ROWS[4:], samples=False)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("key", "value"),
    [("model", "c" * 64), ("dtype", "bfloat16"), ("sigma", 0.25), ("n", 10), ("alpha", 0.1), ("radii", [0.5])],
)
def test_rows_of_something_else_are_refused_and_kept(path, key, value):
    before = path.read_bytes()
    for again in (begin, gather):
        with pytest.raises(RowsError, match=f"belongs to another {key}") as error:
            again(path, ABOUT | {key: value})
        assert "\n" not in str(error.value)
    assert path.read_bytes() == before


def test_another_forward_pass_of_the_same_weights_is_refused(tmp_path):
    path = tmp_path / "certified.tsv"
    begin(path, ABOUT | {"answers": [1.0, -20.0]})
    append(path, ROWS, samples=False)
    assert begin(path, ABOUT | {"answers": [1.1, -20.1]}) == ROWS  # rounding
    for other in ([1.0, -21.0], [1.0], None):
        with pytest.raises(RowsError, match="belongs to another forward pass of the same weights"):
            begin(path, ABOUT | {"answers": other})


@pytest.mark.parametrize(("key", "value"), [("sigma", 10**400), ("n", 10**400), ("alpha", float("nan"))])
def test_numbers_that_nothing_can_be_computed_from_are_refused(path, key, value):
    text = path.read_text()
    path.write_text(text.replace(f'"{key}": {json.dumps(ABOUT[key])}', f'"{key}": {json.dumps(value)}'))
    with pytest.raises(RowsError, match=f"is no table of certificates: its {key} is"):
        read(path)


@pytest.mark.parametrize("row", ["0\t3\t4\t0.1\t1", "0\t3\t3\t0.1\t0", "0\t3\t-1\t0.1\t1", "0\t3\t-5\t0.1\t0"])
def test_rows_that_contradict_themselves_are_refused(path, row):
    with path.open("a") as file:
        file.write(f"{row}\t0:00:01\n")
    with pytest.raises(RowsError, match="has a line 8 that is no certificate"):
        read(path)


def test_parts_are_found_whatever_the_name(tmp_path):
    path = tmp_path / "a[1]*.tsv"
    begin(tmp_path / f"{path.name}.rank-0", ABOUT)
    append(tmp_path / f"{path.name}.rank-0", ROWS, samples=False)
    assert gather(path, ABOUT) == ROWS
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_file_without_rows_may_become_about_something_else(tmp_path):
    path = tmp_path / "certified.tsv"
    begin(path, ABOUT)
    assert begin(path, ABOUT | {"n": 7}) == []
    assert read(path)[0]["n"] == 7


@pytest.mark.parametrize(
    "text",
    [
        b"", b"x", b"idx\tlabel\n1\t2\n", b"# {}\nidx\n", b"# [1]\n\n", b"\xff\xfe\n\n", b"# {\n\n",
        b"[" * 100_000 + b"\n\n", b'# {"format": "maxup-certificates", "version": 2}\n\n',
        b'# {"format": "maxup-certificates", "version": 1}\na\tb\n',
        b'# {"format": "maxup-certificates", "version": 1}\nidx\tlabel\tpredict\tradius\tcorrect\ttime\n',
    ],
)  # fmt: skip
def test_a_file_that_is_something_else_is_refused_and_kept(tmp_path, text):
    path = tmp_path / "a.tsv"
    path.write_bytes(text)
    with pytest.raises(RowsError, match=r"is no table of certificates.*; give a TSV that maxup certify wrote") as error:
        begin(path, ABOUT)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == text


@pytest.mark.parametrize(
    "line", ["nonsense", "1\t2\t3", "0\t1\t1\tnan\t1\tx", "0\t1\t1\t-1\t1\tx", "0\t1\t1\t1\t7\tx", "-1\t1\t1\t1\t1\tx"]
)
def test_a_line_that_is_no_certificate_is_named(path, line):
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(RowsError, match=r"has a line 8 that is no certificate.*; remove the line, or write"):
        begin(path, ABOUT)


def test_the_parts_of_several_processes_are_gathered_sorted_and_removed(tmp_path):
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

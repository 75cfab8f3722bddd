"""Harmless pickles against Python's unpickler. Malicious ones run nothing and allocate little."""

import contextlib
import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxup.errors import DataError
from maxup.lab.data import pickles
from maxup.lab.data.pickles import ByteArray2d, parse, read_pickle
from tests.lab.data.fake import hostile, images, py2, raw

ERRORS = (ValueError, IndexError, KeyError)
ATTACKS = list(hostile("marker"))

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31 - 1) | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.tuples(inner)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=20,
)


@settings(max_examples=100)
@given(values, st.sampled_from([2, 3, 4]))
def test_plain_values_are_what_python_reads(value, protocol):
    assert parse(pickle.dumps(value, protocol=protocol)) == value


def test_one_object_mentioned_twice():
    shared = ["a" * 300]
    assert parse(pickle.dumps([shared, shared], protocol=2)) == [shared, shared]
    many = [f"{i} {i}" for i in range(300)]  # more memo entries than fit a byte
    assert parse(pickle.dumps([many, many, *many], protocol=2)) == [many, many, *many]


@pytest.mark.parametrize("core", ["core", "_core"])
@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_of_both_spellings(protocol, core):
    array = np.arange(600, dtype=np.uint8).reshape(2, 300)
    content = pickle.dumps({b"data": array}, protocol=protocol)
    if protocol < 4:  # names are lines of any length
        content = content.replace(b"numpy._core.", b"numpy.core.").replace(b"numpy.core.", f"numpy.{core}.".encode())
        assert f"numpy.{core}.multiarray".encode() in content
    key = "data" if protocol == 2 else b"data"
    got = parse(content)[key]
    assert (got.rows, got.columns, bytes(got.copy())) == (2, 300, array.tobytes())


def test_a_file_of_python_2():
    x, _ = images(2, (4,), 10)
    got = parse(py2({"labels": [3, 9], "names": ["a", "é"], "data": x}))
    assert got["labels"] == [3, 9]
    assert got["names"] == ["a", "é"]
    assert got["data"].copy() == raw(x)


@pytest.mark.parametrize("name", ATTACKS)
def test_malicious_pickles_do_nothing(name, tmp_path):
    marker = tmp_path / "marker"
    file = tmp_path / "train"
    file.write_bytes(hostile(marker)[name])
    with pytest.raises(DataError) as caught:
        read_pickle(file)
    assert not marker.exists()
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["system-0", "system-5", "eval-2", "exec", "after-the-data", "inst", "stack-global"])
@pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
def test_the_same_pickles_do_harm_when_unpickled(name, tmp_path):
    marker = tmp_path / "marker"
    pickle.loads(hostile(marker)[name])
    assert marker.exists()


big = struct.pack("<I", 2**32 - 1)
huge = struct.pack("<Q", 2**62)
text = b"X" + struct.pack("<I", 2**20) + b"a" * 2**20
GREEDY = {
    "memo": b"K\x01r" + big,
    "memo-of-nothing": b"j" + big + b".",
    "bytes": b"B" + big + b"a.",
    "bytes8": b"\x8e" + huge + b"a.",
    "bytearray8": b"\x96" + huge + b"a.",
    "string": b"T\xff\xff\xff\x7fa.",
    "negative-string": b"T\xff\xff\xff\xffa.",
    "unicode": b"X" + big + b"a.",
    "unicode8": b"\x8d" + huge + b"a.",
    "long4": b"\x8b\xff\xff\xff\x7f.",
    "long": b"L" + b"9" * 100_000 + b"L\n.",
    "frame": b"\x80\x04\x95" + huge + b"(.",
    "shape": b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01J\xff\xff\xff\x7f"
    b"J\xff\xff\xff\x7f\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R\x89U\x01atb.",
    "many-copies": b"(c_codecs\nencode\nq\x00" + text + b"q\x01U\x06latin1q\x02\x87"
    + b"h\x00(h\x01h\x02tR" * 1000 + b"tK\x00a.",
    "doubling-key": b"}" + b"(tq\x00" + b"h\x00\x86q\x00" * 60 + b"K\x00s.",
    "deep-key": b"}" + b"K\x00" + b"\x85" * 100_000 + b"K\x00s.",
    "deep-list": b"](" * 50_000,
}  # fmt: skip


@pytest.mark.parametrize("name", GREEDY)
def test_sizes_in_the_file_are_not_trusted(name):
    tracemalloc.start()
    try:
        with pytest.raises(ERRORS):
            parse(GREEDY[name])
        assert tracemalloc.get_traced_memory()[1] < 48 * 2**20
    finally:
        tracemalloc.stop()


def test_files_that_are_too_large_or_too_long_are_an_error(tmp_path, monkeypatch):
    file = tmp_path / "train"
    file.write_bytes(b"](" + b"K\x01" * 100 + b"e.")
    assert read_pickle(file) == [1] * 100
    monkeypatch.setattr(pickles, "MAX_STEPS", 100)
    with pytest.raises(DataError, match="more than 100 opcodes"):
        read_pickle(file)
    monkeypatch.setattr(pickles, "MAX_BYTES", 100)
    with pytest.raises(DataError, match="has 204 bytes; the limit is 100"):
        read_pickle(file)


def test_a_pipe_is_an_error_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "train")
    with pytest.raises(DataError, match=r"train cannot be read \(train is not a regular file\); replace it"):
        read_pickle(tmp_path / "train")


def test_a_truncated_file_is_an_error():
    content = py2({"labels": [3, 9], "data": images(2, (4,), 10)[0]})
    assert isinstance(parse(content)["data"], ByteArray2d)
    for end in range(len(content)):
        with pytest.raises(ERRORS):
            parse(content[:end])
    with pytest.raises(ValueError, match="data after its end"):
        parse(content + b".")


@settings(max_examples=300)
@given(st.data())
def test_damage_gives_a_value_or_an_error(data):
    content = bytearray(py2({"labels": [3, 9], "data": torch.zeros(1, 4, dtype=torch.uint8), "names": ["a", "b"]}))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    with contextlib.suppress(*ERRORS):
        parse(bytes(content))


@settings(max_examples=300)
@given(st.binary(max_size=50) | st.lists(st.sampled_from(list(pickles.INSTRUCTIONS)), max_size=40).map(b"".join))
def test_noise_gives_a_value_or_an_error(content):
    with contextlib.suppress(*ERRORS):
        parse(content + b".")


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match="cannot be read"):
            read_pickle(path)

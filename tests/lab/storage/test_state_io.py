import json
import math
import random
import re
import struct
from collections import Counter, OrderedDict, namedtuple

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from maxup.lab.storage.state_io import DTYPES, pack, unpack


def same(a, b):
    """Equal to the last bit, and of the same types."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        bits = [
            t.resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8) for t in (a, b)
        ]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    if isinstance(a, dict):
        return list(a) == list(b) and all(type(k) is type(j) and same(a[k], b[j]) for k, j in zip(a, b, strict=True))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    return a == b


def through_files(tree):
    tensors, document = pack(tree)
    text = json.dumps(document, allow_nan=False)
    return unpack(safetensors.torch.load(safetensors.torch.save(tensors)), json.loads(text))


dtypes = st.sampled_from(sorted(DTYPES, key=str))
shapes = st.sampled_from([(), (0,), (3, 0), (1,), (5,), (2, 3)])
tensors = st.builds(
    lambda dtype, shape, seed: torch.randint(2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype),
    dtypes,
    shapes,
    st.integers(0, 9),
)
keys = st.text(max_size=4) | st.integers() | st.sampled_from(["a/b", "", "__metadata__", "tensor", "float", "0", 0])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
trees = st.recursive(
    scalars | tensors,
    lambda t: (
        st.lists(t, max_size=4)
        | st.lists(t, max_size=4).map(tuple)
        | st.dictionaries(keys, t, max_size=4)
        | st.dictionaries(keys, t, max_size=4).map(OrderedDict)
    ),
    max_leaves=20,
)


@settings(max_examples=150)
@given(trees)
def test_what_comes_back_is_what_went_in(tree):
    assert same(through_files(tree), tree)


def test_bits_that_are_easily_lost():
    tree = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e22, 1.0, 1, True, 2**2047, -1, "\0\u2028é😀", (), [], {}]
    tree += [torch.tensor([math.nan, -0.0, math.inf]), torch.tensor(1.1, dtype=torch.bfloat16)]
    tree += [{"a/b": torch.ones(1), "a": {"b": torch.zeros(1)}, "a/b#": torch.ones(2), 1: 2, "1": 3}]
    assert same(through_files(tree), tree)


def test_random_states():
    state = random.getstate()
    assert same(through_files(state), state)
    assert same(through_files(torch.get_rng_state()), torch.get_rng_state())
    numpy = np.random.default_rng(0).bit_generator.state  # PCG64: ints of 128 bits
    assert same(through_files(numpy), numpy)


def test_memory_shared_or_scattered():
    whole = torch.arange(12.0).reshape(3, 4)
    tree = {
        "tied": [whole, whole, whole.view(-1), whole[1], whole[:, 1:]],
        "transposed": whole.t(),
        "expanded": torch.ones(1).expand(5),
        "negated": torch.tensor([1 + 2j]).conj().imag,  # a view whose minus sign is not in memory
        "part": torch.arange(1000)[5:7],
    }
    assert same(through_files(tree), tree)
    packed = pack(tree)[0]
    assert len(safetensors.torch.save({"part": packed["part"]})) < 200
    assert len({t.data_ptr() for t in packed.values()}) == len(packed)


def test_a_parameter_comes_back_as_a_tensor():
    back = through_files(nn.Parameter(torch.ones(2)))
    assert type(back) is torch.Tensor
    assert not back.requires_grad


def test_a_module_keeps_the_versions_of_its_state():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    back = through_files(net.state_dict())
    assert same(back, net.state_dict())
    assert same(back._metadata, net.state_dict()._metadata)


class Float(float):
    pass


@pytest.mark.parametrize(
    "bad",
    [
        object(),
        b"bytes",
        {1, 2},
        1j,
        np.float64(1),
        np.zeros(2),
        Float(1),
        torch.float32,
        torch.Size([1]),
        namedtuple("Pair", "a b")(1, 2),
        Counter("a"),
        torch.ones(2, device="meta"),
        torch.ones(2).to_sparse(),
        torch.ones(2, dtype=torch.complex128),
        lambda: 0,
        *({key: 1} for key in (True, None, 1.0, (1,))),
    ],
    ids=lambda bad: type(bad).__name__,
)
def test_anything_else_is_refused(bad):
    with pytest.raises(TypeError, match=r"(?s)^here/0 cannot be saved, because it is an? .*: convert it first$"):
        pack({"here": [bad]})
    with pytest.raises(TypeError, match="the state cannot be saved"):
        pack(bad)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_compressed_tensors_are_refused():
    with pytest.raises(TypeError, match="sparse_csr"):
        pack(torch.ones(2, 2).to_sparse_csr())


def test_deep_nesting():
    deep = torch.ones(1)
    for kind in range(60):
        deep = [[deep], (deep,), {"a": deep}, {0: deep}, OrderedDict(a=deep)][kind % 5]
    assert same(through_files(deep), deep)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({}, "an entry is invalid"),
        ({"tuple": {}}, "an entry is invalid"),
        ({"pickle": "gASV"}, "an entry is invalid"),
        ({"dict": {"a": 1}}, "an entry is invalid"),
        ({"dict": [["a", 1, 2]]}, "too many values"),
        ({"dict": [[[], 1]]}, "a dict is invalid: unhashable"),
        ({"dict": [3]}, "a dict is invalid: cannot unpack"),
        ({"ordered": [[]]}, "an entry is invalid"),
        ({"float": "x"}, "could not convert"),
        ({"tensor": "b"}, "its tensor is missing"),
        ({"tensor": ["a"]}, "an entry is invalid"),
        ([{"tensor": "a"}, {"tensor": "a"}], "used twice"),
        (None, "no entry uses the tensor 'a'"),
    ],
)
def test_a_document_that_pack_did_not_write(document, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        unpack({"a": torch.ones(1)}, document)

"""Small data files written byte by byte, malicious files, and the real data sets if they are installed."""

import gzip
import pickle
import struct

import pytest
import torch

from maxup.lab.data import load_data
from maxup.lab.data.find import how_to_get, locate


def real(name, data_root):
    """Load the real data set, or skip the test."""
    if locate(name, data_root) is None:
        pytest.skip(f"no real {name}. {how_to_get(name)}")
    return load_data(name, data_root)


def images(n, shape, classes, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, *shape), generator=g, dtype=torch.uint8)
    return x, torch.randint(classes, (n,), generator=g)


def raw(tensor):
    return bytes(tensor.flatten().tolist())


def idx(content, *sizes):
    return b"\x00\x00\x08" + bytes([len(sizes)]) + b"".join(struct.pack(">I", size) for size in sizes) + content


def write_fashion_mnist(folder, zipped=True, train=6, test=3):
    """Write the four files and return x, y of train and test."""
    folder.mkdir(parents=True, exist_ok=True)
    sets = []
    for part, n in (("train", train), ("t10k", test)):
        x, y = images(n, (28, 28), 10, seed=n)
        for name, content in (("images-idx3", idx(raw(x), n, 28, 28)), ("labels-idx1", idx(raw(y), n))):
            file = folder / f"{part}-{name}-ubyte{'.gz' if zipped else ''}"
            file.write_bytes(gzip.compress(content) if zipped else content)
        sets += [x[:, None], y]
    return sets


def py2_string(text):
    content = text.encode("latin-1")
    return (
        b"U" + bytes([len(content)]) + content
        if len(content) < 256
        else b"T" + struct.pack("<i", len(content)) + content
    )


def py2_value(value):
    """Pickle like Python 2: a string, a list of strings or small numbers, or a NumPy array of bytes."""
    if isinstance(value, str):
        return py2_string(value)
    if isinstance(value, list):
        return b"](" + b"".join(py2_string(v) if isinstance(v, str) else b"K" + bytes([v]) for v in value) + b"e"
    rows, columns = value.shape
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        + b"(K\x01M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", columns) + b"\x86"
        + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + py2_string(raw(value).decode("latin-1")) + b"tb"
    )  # fmt: skip


def py2(content):
    """Pickle a dict with protocol 2, like the CIFAR files."""
    return b"\x80\x02}(" + b"".join(py2_string(key) + py2_value(value) for key, value in content.items()) + b"u."


def write_cifar10(folder, n=2, dump=py2):
    """Write the seven files and return x, y of train and test."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = images(6 * n, (3, 32, 32), 10)
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        rows = slice(i * n, (i + 1) * n)
        content = {"batch_label": "some", "labels": y[rows].tolist(), "data": x[rows].flatten(1)}
        (folder / name).write_bytes(dump(content))
    (folder / "batches.meta").write_bytes(dump({"label_names": [f"class {c}" for c in range(10)]}))
    return x[: 5 * n], y[: 5 * n], x[5 * n :], y[5 * n :]


def write_cifar100(folder, n=3, dump=py2):
    folder.mkdir(parents=True, exist_ok=True)
    x, y = images(2 * n, (3, 32, 32), 100)
    for name, rows in (("train", slice(n)), ("test", slice(n, None))):
        content = {"filenames": ["a.png"] * n, "fine_labels": y[rows].tolist(), "coarse_labels": [0] * n}
        (folder / name).write_bytes(dump(content | {"data": x[rows].flatten(1)}))
    (folder / "meta").write_bytes(dump({"fine_label_names": [f"class {c}" for c in range(100)]}))
    return x[:n], y[:n], x[n:], y[n:]


class Reduce:
    """Pickles as a call of `function`."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


def hostile(marker):
    """Malicious pickles by name. They would create the file `marker`, or import something that could."""
    import os

    shell = f"touch {marker}"
    touch = f"open({str(marker)!r}, 'w').close()"
    system = b"cposix\nsystem\n(X" + struct.pack("<I", len(shell)) + shell.encode() + b"tR"
    python = b"(X" + struct.pack("<I", len(touch)) + touch.encode() + b"tR"
    array = py2_value(torch.zeros(1, 4, dtype=torch.uint8))
    attacks = {f"system-{p}": pickle.dumps(Reduce(os.system, shell), protocol=p) for p in range(6)}
    attacks |= {f"eval-{p}": pickle.dumps(Reduce(eval, touch), protocol=p) for p in range(6)}
    attacks |= {
        "exec": b"cbuiltins\nexec\n" + python + b".",
        "exec-as-python-2": b"c__builtin__\nexec\n" + python + b".",
        "nested-in-a-call": pickle.dumps(Reduce(print, Reduce(os.system, shell)), protocol=2),
        "nested-in-a-list": pickle.dumps({"labels": [1, Reduce(os.system, shell)]}, protocol=2),
        "as-data": b"\x80\x02}(U\x04data" + system + b"u.",
        "after-the-data": b"\x80\x02}(U\x04data" + array + b"U\x01x" + system + b"u.",
        "in-the-array's-arguments": b"cnumpy.core.multiarray\n_reconstruct\n" + system + b"K\x00\x85U\x01b\x87R.",
        "in-the-array's-state": b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(" + system + b"tb.",
        "as-a-key": b"}" + system + b"K\x00s.",
        "inst": b"(X" + struct.pack("<I", len(shell)) + shell.encode() + b"iposix\nsystem\n.",
        "obj": b"(cposix\nsystem\nX" + struct.pack("<I", len(shell)) + shell.encode() + b"o.",
        "newobj": b"\x80\x02cposix\nsystem\n)\x81.",
        "newobj-ex": b"\x80\x04cposix\nsystem\n)}\x92.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"Pwhat\n.",
        "persistent-binary": b"K\x01Q.",
        "stack-global": b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93" + python + b".",
        "stack-global-dotted": b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93(tR.",
        "stack-global-of-no-strings": b"\x80\x04K\x01K\x02\x93(tR.",
        "buffer": b"\x80\x05\x97.",
        "numpy-runstring": b"cnumpy.testing._private.utils\nrunstring\n" + python.removesuffix(b"tR") + b"}tR.",
        "numpy-load": b"cnumpy\nload\n(U\x08/dev/nulltR.",
        "numpy-memmap": b"cnumpy\nmemmap\n(X" + struct.pack("<I", len(str(marker))) + str(marker).encode()
        + b"U\x02u1U\x02w+K\x00K\x04\x85tR.",
        "numpy-scalar": b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(U\x01OK\x00K\x01tRU\x01NtR.",
        "numpy-object-dtype": b"cnumpy\ndtype\n(U\x02O8K\x00K\x01tR.",
        "numpy-wide-dtype": b"cnumpy\ndtype\n(U\x0bV2000000000K\x00K\x01tR.",
        "numpy-called-directly": b"cnumpy\nndarray\n(J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86tR.",
        "numpy-other-class": b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nmatrix\nK\x00\x85U\x01b\x87R.",
        "numpy-large-start": b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        + b"J\xff\xff\xff\x7f\x85U\x01b\x87R.",
        "another-codec": b"c_codecs\nencode\n(X\x01\x00\x00\x00aU\x05rot13tR.",
        "codecs-open": b"ccodecs\nopen\n(X" + struct.pack("<I", len(str(marker))) + str(marker).encode() + b"U\x01wtR.",
        "state-of-a-name": b"cnumpy\ndtype\n}U\x07__doc__U\x01xsb.",
        "state-of-a-list": b"]}U\x06appendNsb.",
    }  # fmt: skip
    return attacks


def write_folders(root, classes=("cat", "dog", "emu"), train=4, val=2, size=(40, 30)):
    """Write train/CLASS/*.jpeg and val/CLASS/*.jpeg, different images of smooth colors."""
    from PIL import Image

    g = torch.Generator().manual_seed(0)
    for part, n in (("train", train), ("val", val)):
        for name in classes:
            (root / part / name).mkdir(parents=True)
            for i in range(n):
                small = torch.randint(256, (4, 4, 3), generator=g, dtype=torch.uint8)
                Image.fromarray(small.numpy()).resize(size).save(root / part / name / f"{i}.jpeg")
    return root


def cut_short(file):
    """Truncate a file to half its size."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])

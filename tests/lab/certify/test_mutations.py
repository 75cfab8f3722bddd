"""A changed file of certificates is rejected, or its content is the same: thousands of seeded mutations."""

import random
import re

import pytest

from maxup.errors import CertificateError
from maxup.lab.certify.tsv import Row, append, begin, read
from maxup.lab.report.certified import columns

ABOUT = {"model": "a" * 64, "images": "b" * 64, "sigma": 0.5, "dtype": "float32", "forward": "eager", "n0": 100,
         "n": 1000, "alpha": 0.001, "sampling": "fixed", "radii": None, "seed": 0, "subject": "runs/a/seed-0",
         "classes": list("0123456789"), "answers": [1.5, -2.5], "environment": {"commit": "abc"}}  # fmt: skip
HEADERS = {
    '"sigma": 0.5': ['"sigma": -1', '"sigma": 0', '"sigma": 5.0', '"sigma": true', '"sigma": "0.5"', '"sigma": 1e999'],
    '"n": 1000': ['"n": 100000', '"n": 99', '"n": 0', '"n": -1000', '"n": 1e3', '"n": null'],
    '"n0": 100': ['"n0": 0', '"n0": 10', '"n0": "x"'],
    '"alpha": 0.001': ['"alpha": 0.1', '"alpha": 0', '"alpha": 1', '"alpha": -0.001', '"alpha": NaN'],
    '"radii": null': ['"radii": [0.5]', '"radii": []', '"radii": "x"', '"radii": [-1]'],
    '"sampling": "fixed"': ['"sampling": "adaptive"', '"sampling": "x"', '"sampling": null'],
    '"seed": 0': ['"seed": 1', '"seed": 0, "seed": 1', '"seed": 0, "n": 100000'],
    '"classes": ["0", ': ['"classes": [', '"classes": ["x", ', '"classes": ["0", "0", '],
    '"model": "a': ['"model": "b', '"model": "'],
    '"images": "b': ['"images": "c', '"images": "'],
    '"version": 2': ['"version": 1', '"version": 3', '"version": "2"', '"other": 2'],
    '"dtype": "float32"': ['"dtype": "bfloat16"', '"dtype": 1'],
}


def write(path, sampling="fixed"):
    """40 images, some wrong and some abstentions. Radii are up to 1.2; the largest possible is 1.23."""
    rng = random.Random(1)
    begin(path, ABOUT | {"sampling": sampling})
    rows = []
    for i in range(40):
        label, found = rng.randrange(10), rng.choice(["right", "right", "wrong", "none"])
        predict = {"right": label, "wrong": (label + 1) % 10, "none": -1}[found]
        radius = 0.0 if found == "none" else round(rng.uniform(0, 1.2), 6)
        samples = rng.choice([250, 1000]) if sampling == "adaptive" else None
        rows.append(Row(20 * i, label, predict, radius, found == "right", "0:00:01.500000", samples))
    append(path, rows, samples=sampling == "adaptive")
    return path.read_bytes()


def mutations(data, rng, times):
    """Yield (description, bytes) of changed files."""
    lines = data.splitlines(keepends=True)
    rows = range(2, len(lines))

    def at(k, line):
        return b"".join([*lines[:k], line, *lines[k + 1 :]])

    for _ in range(times):
        place, k, j = rng.randrange(len(data)), rng.choice(rows), rng.choice(rows)
        yield "a bit", data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
        yield "a byte more", data[:place] + bytes([rng.choice(b"0123456789.-\t\n ae\0\r")]) + data[place:]
        yield "a byte less", data[:place] + data[place + 1 :]
        digits = [m.start() for m in re.finditer(rb"\d", lines[k])]
        digit = rng.choice(digits)
        yield "a digit", at(k, lines[k][:digit] + b"%d" % rng.randrange(10) + lines[k][digit + 1 :])
        mine, theirs = lines[k].rstrip(b"\n").split(b"\t"), lines[j].rstrip(b"\n").split(b"\t")
        a, b = rng.sample(range(len(mine)), 2)
        swapped = [mine[b] if c == a else mine[a] if c == b else cell for c, cell in enumerate(mine)]
        yield "two cells of a row", at(k, b"\t".join(swapped) + b"\n")
        yield "a cell of another row", at(k, b"\t".join([*mine[:a], theirs[a], *mine[a + 1 :]]) + b"\n")
        yield "a value", at(k, b"\t".join([*mine[:a], rng.choice([b"-1", b"2.75", b"1", b"nan", b""])]) + b"\n")
        yield "a line again", b"".join([*lines[:k], lines[j], *lines[k:]])
        yield "a line less", b"".join([*lines[:k], *lines[k + 1 :]])
        yield "two lines", b"".join(lines[j] if c == k else lines[k] if c == j else lines[c] for c in range(len(lines)))
        yield "another line", at(k, lines[j])
        yield "cut", data[:place]
    for text, others in HEADERS.items():
        assert text.encode() in data or b'"adaptive"' in data
        for other in others:
            yield f"{text} is {other}", data.replace(text.encode(), other.encode(), 1)
    for column in range(lines[2].count(b"\t") + 1):
        less = [b"\t".join(c for i, c in enumerate(line[:-1].split(b"\t")) if i != column) for line in lines[1:]]
        yield f"no column {column}", b"\n".join([lines[0][:-1], *less]) + b"\n"
        yield (
            f"no column {column}, version 1",
            b"\n".join([lines[0][:-1].replace(b'"version": 2', b'"version": 1'), *less]) + b"\n",
        )


@pytest.mark.parametrize("sampling", ["fixed", "adaptive"])
def test_a_mutation_is_rejected_or_changes_nothing(tmp_path, sampling):
    path = tmp_path / "certified.tsv"
    data = write(path, sampling)

    def table():
        about, rows = read(path)
        return columns([(about, rows)]) if rows else []

    before, rows = table(), read(path)[1]
    silent, refused, same = [], 0, 0
    for what, changed in mutations(data, random.Random(0), 150):
        path.write_bytes(changed)
        try:
            after = table()
        except CertificateError:
            refused += 1
            with pytest.raises(CertificateError) as error:
                begin(path, ABOUT | {"sampling": sampling})
            assert str(error.value).startswith(f"{path} ")
            assert "\n" not in str(error.value)
            assert path.read_bytes() == changed
            continue
        if data.startswith(changed):  # fewer rows, as after a kill
            assert read(path)[1] == rows[: len(read(path)[1])]
        elif after != before:
            silent.append(what)
        else:
            same += 1
    assert not silent, f"{len(silent)} of {refused + same + len(silent)} mutations changed the table: {set(silent)}"
    assert refused > 1500

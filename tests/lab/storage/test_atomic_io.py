import errno
import json
import math
import os
import subprocess

import pytest

from maxup.lab.storage import atomic_io


def test_only_regular_files_are_read(tmp_path):
    file, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    atomic_io.write(file, b"abc")
    promise = {"size": 3, "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}  # FIPS 180
    assert atomic_io.read(file) == atomic_io.read(file, promise) == b"abc"
    link.symlink_to(file)
    os.mkfifo(pipe)
    for path in (link, pipe, tmp_path):
        with pytest.raises(ValueError, match="not a regular file"):
            atomic_io.read(path)
    for bad in (promise | {"size": 4}, {}, [], 3, {"size": [3]}):
        with pytest.raises(ValueError, match="wrong size, 3 bytes"):
            atomic_io.read(file, bad)
    for bad in (promise | {"sha256": "0" * 64}, promise | {"sha256": None}, {"size": 3}):
        with pytest.raises(ValueError, match="wrong checksum"):
            atomic_io.read(file, bad)
    (tmp_path / "long").write_bytes(bytes(70_000))
    with pytest.raises(ValueError, match="wrong size"):
        atomic_io.read(tmp_path / "long")


def test_nothing_is_overwritten(tmp_path):
    atomic_io.write(tmp_path / "a", b"1")
    with pytest.raises(FileExistsError):
        atomic_io.write(tmp_path / "a", b"2")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    file, stale = tmp_path / "a.json", atomic_io.temporary(tmp_path / "a.json")
    stale.write_text("half")  # of a dead process with our number
    atomic_io.write_json(file, {"a": [1, "é"]})
    assert json.loads(file.read_text()) == {"a": [1, "é"]}
    atomic_io.replace(file, b"2")
    assert file.read_bytes() == b"2"

    def full(_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full") as error:
        atomic_io.replace(file, b"3")
    assert error.value.filename == str(file)
    assert file.read_bytes() == b"2"


def test_numbers_that_json_does_not_know_are_words_in_the_file(tmp_path):
    document = {"last": {"loss": math.nan, "accuracy": 0.1}, "p": [math.inf, (-math.inf, 3)], "name": "n"}
    atomic_io.write_json(tmp_path / "a.json", document)
    plain = atomic_io.parse("a.json", (tmp_path / "a.json").read_bytes())  # which refuses what is not strict
    assert plain == {"last": {"loss": "nan", "accuracy": 0.1}, "p": ["inf", ["-inf", 3]], "name": "n"}
    again = atomic_io.read_json(tmp_path / "a.json")
    assert math.isnan(again["last"].pop("loss"))
    assert again == {"last": {"accuracy": 0.1}, "p": [math.inf, [-math.inf, 3]], "name": "n"}


def test_strings_that_look_like_numbers_stay_strings(tmp_path):
    strings = ["nan", "inf", "-inf", "\\inf", "\\\\-inf", "infinity", "\\", "a\\inf", "inf\n", "INF", ""]
    document = {"recipe": {"data": {"root": "inf"}}, "strings": strings, "numbers": [math.inf, -math.inf, 0.5, 3, None]}
    for _ in range(2):  # also if a document that was read is written again
        atomic_io.write_json(tmp_path / "a.json", document)
        document = atomic_io.read_json(tmp_path / "a.json")
    assert document["recipe"] == {"data": {"root": "inf"}}
    assert document["strings"] == strings
    assert document["numbers"] == [math.inf, -math.inf, 0.5, 3, None]
    (tmp_path / "old.json").write_text('{"loss": "inf", "p": ["-inf", "infinity"]}')  # of an older version
    assert atomic_io.read_json(tmp_path / "old.json") == {"loss": math.inf, "p": [-math.inf, "infinity"]}


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": 1, "a": 1}', "", "é", "\x80", "[1", "9" * 5000])
def test_json_is_strict(text):
    with pytest.raises(ValueError, match=r"^state.json cannot be read: "):
        atomic_io.parse("state.json", text.encode())


def test_a_folder_takes_the_place_of_another(tmp_path, monkeypatch):
    def make(name, content):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(content)
        return tmp_path / name

    final = tmp_path / "final"
    atomic_io.move_into_place(make("new", "1"), final)
    atomic_io.move_into_place(make("new", "2"), final)
    assert (final / "x").read_text() == "2"
    assert (tmp_path / "final.old" / "x").read_text() == "1"
    atomic_io.move_into_place(make("new", "3"), final)  # where an old one was left
    assert (tmp_path / "final.old" / "x").read_text() == "2"

    rename = os.rename

    def fail(source, target):
        if source.name == "new":
            raise OSError(errno.ENOSPC, "full")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="full"):
        atomic_io.move_into_place(make("new", "4"), final)
    assert (final / "x").read_text() == "3"


def test_sweeping_spares_the_living(tmp_path):
    child = subprocess.Popen(["sleep", "600"])
    gone = subprocess.Popen(["true"])
    gone.wait()
    names = {pid: f".tmp-{pid}-new" for pid in (child.pid, gone.pid, os.getpid(), 10**30)}
    for name in names.values():
        (tmp_path / name / "deep").mkdir(parents=True)
    foreign = [".tmp-mine", ".tmp-", "step-000001", ".tmp-12"]
    for name in foreign:
        (tmp_path / name).mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / f".tmp-{gone.pid}-link").symlink_to(outside)
    atomic_io.remove_leftovers(tmp_path)
    child.kill()
    child.wait()
    assert {p.name for p in tmp_path.iterdir()} == {*foreign, "outside", names[child.pid]}


def test_sweeping_in_a_shared_folder_spares_files_of_others(tmp_path):
    names = [f".tmp-{10**30}-{name}" for name in ("a.tsv", "a.tsv.rank-0", "b.tsv", "b-a.tsv")]
    for name in names:
        (tmp_path / name).write_text("half")
    atomic_io.remove_leftovers(tmp_path, "a.tsv*")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names[2:])


def test_a_file_system_that_cannot_sync_folders(tmp_path, monkeypatch):
    def fsync(code):
        def fail(_):
            raise OSError(code, os.strerror(code))

        return fail

    monkeypatch.setattr(os, "fsync", fsync(errno.EINVAL))
    atomic_io.sync(tmp_path)
    monkeypatch.setattr(os, "fsync", fsync(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        atomic_io.sync(tmp_path)


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        atomic_io.replace(tmp_path / "a", b"1")
    assert not list(tmp_path.iterdir())


def test_folders_are_made_and_synced_from_the_inside_out(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(atomic_io, "sync", synced.append)
    atomic_io.make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]
    atomic_io.make_folder(tmp_path / "a" / "b")
    assert len(synced) == 3


@pytest.mark.parametrize("kind", ["pipe", "hole"])
def test_text_of_pipes_and_of_files_without_end_is_refused(kind, tmp_path):
    path = tmp_path / "recipe.yaml"
    if kind == "pipe":
        os.mkfifo(path)  # which nobody writes to: reading it would wait forever
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    with pytest.raises(ValueError, match=r"^recipe.yaml (is not a regular file|has 1,099,511,627,776 bytes)"):
        atomic_io.read_text(path)
    (tmp_path / "good.yaml").write_text("é")
    (tmp_path / "link.yaml").symlink_to("good.yaml")
    assert atomic_io.read_text(tmp_path / "link.yaml") == "é"

"""A signature shows that this user trained a run with these functions in this folder. Everything else is not signed."""

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from maxup.lab.storage.signature import FILE, is_signed, sign

NAMES = {"model_from": "mine:net", "data_from": "mine:data"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    return tmp_path


def test_signs_the_names_and_the_folder(home, monkeypatch):
    run = home / "run"
    sign(run, NAMES)
    assert is_signed(run, NAMES)
    assert is_signed(run, dict(reversed(NAMES.items())))
    for other in ({}, {"model_from": "mine:net"}, NAMES | {"data_from": "mine:other"}, NAMES | {"more": "mine:f"}):
        assert not is_signed(run, other)
    moved = run.rename(home / "moved")
    assert is_signed(moved, NAMES)  # the folder of the code counts, not that of the run
    (home / "elsewhere").mkdir()
    monkeypatch.chdir(home / "elsewhere")
    assert not is_signed(moved, NAMES)


def test_another_user_has_another_key(home, monkeypatch):
    run = home / "run"
    sign(run, NAMES)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "other"))
    assert not is_signed(run, NAMES)  # without a key
    (home / "another").mkdir()
    sign(home / "another", NAMES)
    assert is_signed(home / "another", NAMES)
    assert not is_signed(run, NAMES)  # with another key


def test_the_key_is_secret_and_never_replaced(home):
    runs = [home / str(number) for number in range(32)]
    for run in runs:
        run.mkdir()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda run: sign(run, NAMES), runs))
    key = home / "state" / "maxup" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_bytes()) == 32
    assert [path.name for path in key.parent.iterdir()] == ["key"]
    assert all(is_signed(run, NAMES) for run in runs)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"{}", b'{"signature": 3}', '{"signature": "é"}'.encode(), b"\xff", b" " * 70_000]
)
def test_invalid_files_are_not_signed(home, content):
    sign(home / "run", NAMES)
    (home / "run" / FILE).write_bytes(content)
    assert not is_signed(home / "run", NAMES)


def test_links_and_damaged_keys_are_not_used(home):
    run, key = home / "run", home / "state" / "maxup" / "key"
    sign(run, NAMES)
    good = (run / FILE).rename(home / "good.json")
    (run / FILE).symlink_to(good)
    assert not is_signed(run, NAMES)
    (run / FILE).unlink()
    key.write_bytes(b"")  # an empty key would let anyone sign
    sign(run, NAMES)
    assert not (run / FILE).exists()
    good.rename(run / FILE)
    assert not is_signed(run, NAMES)


def test_without_a_home_folder_nothing_is_signed(home):
    (home / "state").write_text("a file in place of the folder")
    assert sign(home / "run", NAMES)  # the reason
    assert not (home / "run" / FILE).exists()
    assert not is_signed(home / "run", NAMES)


def test_a_relative_folder_for_the_key_is_ignored(home, monkeypatch):
    """The specification says so. Otherwise a folder from someone else could bring its own key."""
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(home / "me"))
    sign(home / "run", NAMES)
    assert (home / "me" / ".local" / "state" / "maxup" / "key").exists()
    assert not (home / "state").exists()
    monkeypatch.setenv("HOME", "me")
    assert "not an absolute path" in sign(home / "run", NAMES)

import subprocess
import sys

import pytest

from maxup.lab.data import catalog, list_data, load_data, sets
from maxup.lab.data.catalog import all_data_sets, register_data
from maxup.lab.data.find import find

NEW = """
from maxup.lab.data.catalog import register_data
from maxup.lab.data.find import find


@register_data("squares", folders=("squares",), files=("a.txt",), instructions="Put a.txt into data/squares.")
def load_squares(root=None):
    return (find("squares", root) / "a.txt").read_text(), None
"""


@pytest.fixture
def _new_module(tmp_path, monkeypatch):
    """The package of data sets with one more module."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "squares.py").write_text(NEW)
    monkeypatch.setattr(sets, "__path__", [*sets.__path__, str(tmp_path / "code")])
    monkeypatch.setattr(catalog, "_registered", dict(catalog._registered))
    all_data_sets.cache_clear()
    yield
    sys.modules.pop("maxup.lab.data.sets.squares")
    all_data_sets.cache_clear()


@pytest.mark.usefixtures("_new_module")
def test_a_module_is_all_that_a_new_data_set_needs(tmp_path):
    (tmp_path / "squares").mkdir()
    (tmp_path / "squares" / "a.txt").write_text("1 4 9")
    assert "squares" in list_data()
    assert find("squares", tmp_path) == tmp_path / "squares"
    assert load_data("squares", tmp_path) == ("1 4 9", None)


def test_the_example_module_is_gone():
    assert "squares" not in list_data()


@pytest.mark.parametrize("name", list_data())
def test_every_data_set_is_described(name):
    data_set = all_data_sets()[name]
    assert data_set.name == name
    assert data_set.files or name == "imagefolder"  # any folder
    assert data_set.folders
    assert data_set.instructions.endswith(".")


def test_a_name_belongs_to_one_module():
    with pytest.raises(ValueError, match=r"'digits' is registered in maxup\.lab\.data\.sets\.digits and in tests\."):

        @register_data("digits", files=("a",), instructions="None.")
        def load(root=None):
            return None, None


def test_listing_and_locating_import_nothing_heavy():
    code = """
import sys
from maxup.lab.data import find, list_data
assert len(list_data()) > 5
folders = [find.locate(name) for name in list_data()]
assert not {"torch", "numpy", "sklearn", "PIL"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)

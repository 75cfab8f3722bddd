import importlib
import json
import sys
from pathlib import Path

import pytest

import maxup
from maxup.errors import UserCodeError
from maxup.lab.user_code import find_function, raised_in_user_code, where_raised

MODULES = {
    "an AttributeError": (
        "import math\nmath.nothing\ndef net(): pass",
        "AttributeError: module 'math' has no",
    ),
    "a NameError": ("nothing\ndef net(): pass", "NameError: name 'nothing' is not defined"),
    "a SyntaxError": ("def net(:", "SyntaxError: invalid syntax"),
    "an ImportError": ("from math import nothing\ndef net(): pass", "ImportError: cannot import name 'nothing'"),
    "a missing friend": ("import maxup_has_no_such_friend", "No module named 'maxup_has_no_such_friend'"),
    "an exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "several lines": ("raise ValueError('a\\nb')", "ValueError: a b"),
}


@pytest.mark.parametrize("case", MODULES)
def test_an_error_in_a_module_is_quoted(tmp_path, monkeypatch, case):
    text, words = MODULES[case]
    name = f"mine_{case.replace(' ', '_')}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserCodeError) as error:
        find_function(f"{name}:net")
    assert str(error.value).startswith(f"importing {name} failed: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["no_such_module", "no_such.module", "math.module"])
def test_a_missing_module(name):
    with pytest.raises(UserCodeError, match=f"there is no module {name} in this folder"):
        find_function(f"{name}:net")


def test_a_function_is_found_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "here_alone.py").write_text("def net(): return 3\nnumber = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_function("sub.here_alone:net")() == find_function("sub/here_alone.py:net")() == 3
    assert find_function("./sub/here_alone.py:net")() == 3
    assert find_function(f"{tmp_path}/sub/here_alone.py:net")() == 3
    with pytest.raises(
        UserCodeError, match=r"^'\.\./mine\.py:net' is not below the current folder; change to its folder"
    ):
        find_function("../mine.py:net")
    with pytest.raises(UserCodeError, match=r"^sub.here_alone: function 'nett' is unknown; "):
        find_function("sub.here_alone:nett")
    with pytest.raises(UserCodeError, match=r"^number is an int; name a function"):
        find_function("sub.here_alone:number")


def test_the_current_folder_hides_no_installed_module(tmp_path, monkeypatch):
    """Later imports find the installed modules. The user's other files can still be imported."""
    (tmp_path / "here_mine.py").write_text("import here_friend\ndef net():\n    import here_later\n    return 3\n")
    for name in ("here_friend", "here_later", "sched", "wave"):  # the latter two are Python's, seldom imported
        (tmp_path / f"{name}.py").write_text("ours = True\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    for name in ("sched", "wave"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert find_function("here_mine:net")() == 3
    assert not hasattr(importlib.import_module("sched"), "ours")
    assert find_function("here_mine:net")() == 3
    assert not hasattr(importlib.import_module("wave"), "ours")
    assert sys.path.count(str(tmp_path)) == 1


def test_the_standard_library_is_no_user_code():
    find_function("json:loads")
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        json.loads("{")
    assert raised_in_user_code(caught.value) is None


def test_where_raised_is_the_innermost_line_of_the_users_files(tmp_path):
    """Not that of torch or the standard library, which the line called."""
    file = tmp_path / "mine.py"
    file.write_text("import json\n\ndef f():\n    return json.loads('{')\n")
    scope = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    with pytest.raises(ValueError, match="Expecting property name") as caught:
        scope["f"]()
    assert where_raised(caught.value) == " (mine.py, line 4)"


def test_a_file_beside_the_package_is_the_users(monkeypatch):
    """Its path starts with that of the package, such as maxup_mine.py beside maxup/."""
    package, where = Path(maxup.__file__).parent, []
    monkeypatch.setattr("os.path.exists", lambda path: True)
    for file in (f"{package}_mine.py", f"{package}/lab/mine.py"):
        with pytest.raises(ValueError, match="no") as caught:
            exec(compile("raise ValueError('no')", file, "exec"), {})
        caught.value.__traceback__ = caught.value.__traceback__.tb_next  # without this file
        where.append(where_raised(caught.value))
    assert where == [" (maxup_mine.py, line 1)", ""]

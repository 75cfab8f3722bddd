import os
import subprocess
import sys

import pytest

from maxup.errors import DataError
from maxup.lab.data import find
from maxup.lab.data.find import locate, missing, places
from tests.lab.data.fake import write_cifar10, write_cifar100, write_fashion_mnist


@pytest.fixture
def _nowhere(tmp_path, monkeypatch):
    """No data anywhere: an empty current folder, no variable, no system folders."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("MAXUP_DATA", raising=False)
    monkeypatch.setattr(find, "SYSTEM", (tmp_path / "system",))


@pytest.mark.usefixtures("_nowhere")
def test_the_order_of_places(tmp_path, monkeypatch):
    monkeypatch.setenv("MAXUP_DATA", str(tmp_path / "variable"))
    found = {}
    for place in ("system", "here/data", "variable", "root"):
        write_cifar100(tmp_path / place / "cifar-100-python", n=1)
        found[place] = locate("cifar100", tmp_path / "root").resolve()
    assert list(found.values()) == [tmp_path / place / "cifar-100-python" for place in found]
    assert len(places("cifar100", tmp_path / "root")) == 4


@pytest.mark.usefixtures("_nowhere")
def test_what_is_missing_says_where_it_looked_and_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MAXUP_DATA", str(tmp_path / "variable"))
    for name, how in (
        ("fashion_mnist", "apt install dataset-fashion-mnist"),
        ("cifar10", "cifar-10-python.tar.gz"),
        ("cifar100", "cifar-100-python.tar.gz"),
        ("imagenet", "/val/CLASS/*.JPEG"),
        ("imagenette", "imagenette2-320.tgz"),
    ):
        assert locate(name, tmp_path) is None
        assert how in missing(name)
        with pytest.raises(DataError) as caught:
            find.find(name, tmp_path / "root")
        for part in (name, tmp_path / "root", tmp_path / "variable", "data", tmp_path / "system", how):
            assert str(part) in str(caught.value)


@pytest.mark.usefixtures("_nowhere")
def test_what_is_missing_from_a_folder_that_is_named_goes_there(tmp_path):
    for name in ("fashion_mnist", "cifar10", "cifar100", "imagenet", "imagenette", "ptb", "wikitext2"):
        with pytest.raises(DataError) as caught:
            find.find(name, "mine")
        advice = str(caught.value).partition(". ")[2]
        assert "mine" in advice
        assert "data/" not in advice


@pytest.mark.usefixtures("_nowhere")
def test_a_part_is_not_enough_and_is_named(tmp_path):
    write_cifar10(tmp_path / "root" / "cifar-10-batches-py", n=1)
    (tmp_path / "root" / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-py holds a part of it, without data_batch_3\)"):
        find.find("cifar10", tmp_path / "root")
    write_cifar10(tmp_path / "here" / "data", n=1)
    assert locate("cifar10", tmp_path / "root").resolve() == tmp_path / "here" / "data"


@pytest.mark.usefixtures("_nowhere")
def test_folders_of_classes_are_folders(tmp_path):
    root = tmp_path / "root" / "imagenet"
    root.mkdir(parents=True)
    (root / "train").write_text("a file")
    (root / "val").mkdir()
    with pytest.raises(DataError, match=r"imagenet holds a part of it, without train\)"):
        find.find("imagenet", tmp_path / "root")
    (root / "train").unlink()
    (root / "train").mkdir()
    assert locate("imagenet", tmp_path / "root") == root
    assert locate("imagenet", root) == root  # named itself
    assert locate("imagenette", tmp_path / "root") is None


@pytest.mark.usefixtures("_nowhere")
def test_files_need_not_all_be_zipped(tmp_path):
    write_fashion_mnist(tmp_path / "system" / "fashion-mnist", zipped=True)
    assert locate("fashion_mnist") == tmp_path / "system" / "fashion-mnist"
    (tmp_path / "system" / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").rename(
        tmp_path / "system" / "fashion-mnist" / "t10k-labels-idx1-ubyte"
    )
    assert locate("fashion_mnist") == tmp_path / "system" / "fashion-mnist"


@pytest.mark.usefixtures("_nowhere")
def test_pipes_and_folders_are_no_files(tmp_path):
    write_cifar100(tmp_path / "root")
    (tmp_path / "root" / "meta").unlink()
    os.mkfifo(tmp_path / "root" / "meta")  # reading it would wait for ever
    assert locate("cifar100", tmp_path / "root") is None
    (tmp_path / "root" / "meta").unlink()
    (tmp_path / "root" / "meta").mkdir()
    assert locate("cifar100", tmp_path / "root") is None


def test_debian_puts_fashion_mnist_there():
    assert [str(path) for path in find.SYSTEM] == ["/usr/share/datasets"]
    assert find.SOURCES["fashion_mnist"].folders[0] == "fashion-mnist"


def test_digits_are_inside_scikit_learn(monkeypatch):
    assert (locate("digits") / "digits.csv.gz").exists()
    monkeypatch.setattr(find, "find_spec", lambda name: None)
    assert locate("digits") is None
    with pytest.raises(DataError, match="pip install scikit-learn"):
        find.find("digits")


def test_unknown_names_get_the_nearest():
    for function in (locate, missing, find.find):
        with pytest.raises(DataError, match="did you mean 'cifar100'"):
            function("cifar-100")


def test_looking_imports_nothing_heavy():
    code = """
import sys
from maxup.lab.data import find, list_data
found = [find.locate(name) for name in list_data()]
assert not {"torch", "numpy", "sklearn"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)

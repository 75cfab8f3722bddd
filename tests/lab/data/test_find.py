import os

import pytest

from maxup.errors import DataError
from maxup.lab.data import find
from maxup.lab.data.catalog import all_data_sets
from maxup.lab.data.find import check_root, how_to_get, locate, search_folders
from tests.lab.data.fake import write_cifar10, write_cifar100, write_fashion_mnist


@pytest.fixture
def _nowhere(tmp_path, monkeypatch):
    """No data anywhere: an empty current folder, no environment variable, no system folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("MAXUP_DATA", raising=False)
    monkeypatch.setattr(find, "SYSTEM", (tmp_path / "system",))


@pytest.mark.usefixtures("_nowhere")
def test_the_order_of_the_search(tmp_path, monkeypatch):
    monkeypatch.setenv("MAXUP_DATA", str(tmp_path / "variable"))
    found = {}
    for place in ("system", "here/data", "variable", "root"):
        write_cifar100(tmp_path / place / "cifar-100-python", n=1)
        found[place] = locate("cifar100", tmp_path / "root").resolve()
    assert list(found.values()) == [tmp_path / place / "cifar-100-python" for place in found]
    assert len(search_folders("cifar100", tmp_path / "root")) == 4


@pytest.mark.usefixtures("_nowhere")
def test_the_error_lists_the_searched_folders_and_the_instructions(tmp_path, monkeypatch):
    monkeypatch.setenv("MAXUP_DATA", str(tmp_path / "variable"))
    for name, how in (
        ("fashion_mnist", "apt install dataset-fashion-mnist"),
        ("cifar10", "cifar-10-python.tar.gz"),
        ("cifar100", "cifar-100-python.tar.gz"),
        ("imagenet", "/val/CLASS/*.JPEG"),
        ("imagenette", "imagenette2-320.tgz"),
    ):
        assert locate(name, tmp_path) is None
        assert how in how_to_get(name)
        with pytest.raises(DataError) as caught:
            find.find(name, tmp_path / "root")
        for part in (name, tmp_path / "root", tmp_path / "variable", "data", tmp_path / "system", how):
            assert str(part) in str(caught.value)


@pytest.mark.usefixtures("_nowhere")
def test_the_instructions_name_the_given_root():
    for name in (name for name, data_set in all_data_sets().items() if not data_set.package and data_set.files):
        with pytest.raises(DataError) as caught:
            find.find(name, "mine")
        advice = str(caught.value).partition(". ")[2]
        assert "mine" in advice
        assert "data/" not in advice


@pytest.mark.usefixtures("_nowhere")
def test_a_folder_that_lacks_a_file_is_not_used(tmp_path):
    write_cifar10(tmp_path / "root" / "cifar-10-batches-py", n=1)
    (tmp_path / "root" / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-py lacks data_batch_3\)"):
        find.find("cifar10", tmp_path / "root")
    write_cifar10(tmp_path / "here" / "data", n=1)
    assert locate("cifar10", tmp_path / "root").resolve() == tmp_path / "here" / "data"


@pytest.mark.usefixtures("_nowhere")
def test_class_folders_must_be_folders(tmp_path):
    root = tmp_path / "root" / "imagenet"
    root.mkdir(parents=True)
    (root / "train").write_text("a file")
    (root / "val").mkdir()
    with pytest.raises(DataError, match=r"imagenet lacks train\)"):
        find.find("imagenet", tmp_path / "root")
    (root / "train").unlink()
    (root / "train").mkdir()
    assert locate("imagenet", tmp_path / "root") == root
    assert locate("imagenet", root) == root  # root may also be the folder itself
    assert locate("imagenette", tmp_path / "root") is None


@pytest.mark.usefixtures("_nowhere")
def test_some_files_may_be_compressed(tmp_path):
    write_fashion_mnist(tmp_path / "system" / "fashion-mnist", zipped=True)
    assert locate("fashion_mnist") == tmp_path / "system" / "fashion-mnist"
    (tmp_path / "system" / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").rename(
        tmp_path / "system" / "fashion-mnist" / "t10k-labels-idx1-ubyte"
    )
    assert locate("fashion_mnist") == tmp_path / "system" / "fashion-mnist"


@pytest.mark.usefixtures("_nowhere")
def test_pipes_and_folders_are_not_files(tmp_path):
    write_cifar100(tmp_path / "root")
    (tmp_path / "root" / "meta").unlink()
    os.mkfifo(tmp_path / "root" / "meta")  # reading it would block forever
    assert locate("cifar100", tmp_path / "root") is None
    (tmp_path / "root" / "meta").unlink()
    (tmp_path / "root" / "meta").mkdir()
    assert locate("cifar100", tmp_path / "root") is None


def test_the_folder_of_debian_s_fashion_mnist():
    assert [str(path) for path in find.SYSTEM] == ["/usr/share/datasets"]
    assert all_data_sets()["fashion_mnist"].folders[0] == "fashion-mnist"


def test_unknown_names_suggest_the_nearest():
    for function in (locate, how_to_get, find.find):
        with pytest.raises(DataError, match="did you mean 'cifar100'"):
            function("cifar-100")


def test_a_root_that_does_not_exist(tmp_path):
    (tmp_path / "book.txt").touch()
    check_root("text", tmp_path / "book.txt")
    for name, kind in (("text", "file or folder"), ("cifar10", "folder")):
        with pytest.raises(DataError, match=f"^data.root: there is no {kind} .*nowhere; correct it"):
            check_root(name, tmp_path / "nowhere")

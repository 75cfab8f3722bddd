"""`maxup data` shows where data sets are."""

import json

from maxup.cli.main import main
from tests.lab.data.fake import write_cifar10, write_fashion_mnist


def test_data_says_what_is_missing_and_how_to_get_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MAXUP_DATA", raising=False)
    assert main(["data"]) == 0
    out = capsys.readouterr().out
    assert "comes with scikit-learn" in out
    assert "cifar-10-python.tar.gz" in out


def test_data_shows_the_folders(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAXUP_DATA", str(tmp_path / "named"))
    write_cifar10(tmp_path / "root" / "cifar-10-batches-py")
    write_fashion_mnist(tmp_path / "named" / "fashion-mnist")
    assert main(["data", "--root", str(tmp_path / "root")]) == 0
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert printed["cifar10"] == str(tmp_path / "root" / "cifar-10-batches-py")
    assert printed["fashion_mnist"] == str(tmp_path / "named" / "fashion-mnist")
    assert printed["cifar100"].startswith("not found. ")


def test_json_has_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MAXUP_DATA", raising=False)
    write_cifar10(tmp_path / "root" / "cifar-10-batches-py")
    assert main(["data", "--root", str(tmp_path / "root"), "--json"]) == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["data"]}
    assert found["digits"]["found"]
    assert found["cifar10"]["path"] == str(tmp_path / "root" / "cifar-10-batches-py")
    assert (found["cifar100"]["found"], found["cifar100"]["path"]) == (False, None)
    assert "cifar-100-python" in found["cifar100"]["note"]


def test_a_folder_that_is_not_there_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MAXUP_DATA", str(tmp_path / "gone"))
    assert main(["data"]) == 0
    assert f"MAXUP_DATA is {tmp_path / 'gone'}, but there is no such folder" in capsys.readouterr().err
    assert main(["data", "--root", str(tmp_path / "nothing")]) == 1
    assert f"there is no folder {tmp_path / 'nothing'}; correct --root" in capsys.readouterr().err

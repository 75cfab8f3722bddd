"""Uploading, against a stub of the Hub: the files arrive, and errors are one sentence."""

import shutil

import pytest
import torch

import maxup
from maxup.cli.main import main
from maxup.errors import LoadError
from maxup.lab.models.hub import push_to_hub
from tests.cli.runs import make

hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """Uploads go to a folder. Nothing is sent."""
    folder, repos = tmp_path / "hub", {}

    def create_repo(api, repo, *, private, exist_ok):
        repos[repo] = private
        return f"https://hub.example/{repo}"

    def upload_folder(api, *, repo_id, folder_path, commit_message):
        assert repo_id in repos
        shutil.copytree(folder_path, folder / repo_id)

    monkeypatch.setattr(hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload_folder)
    return folder, repos


def test_what_is_uploaded_loads_again(tmp_path, monkeypatch, capsys, remote):
    monkeypatch.chdir(tmp_path)
    record = make(tmp_path / "run")
    assert main(["export", "run", "model", "--push_to_hub", "me/digits"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "https://hub.example/me/digits"
    folder, repos = remote
    assert repos == {"me/digits": True}  # private
    files = sorted(path.name for path in (folder / "me/digits").iterdir())
    assert files == ["README.md", "config.json", "model.safetensors"]
    model, again = maxup.load("model"), maxup.load(folder / "me/digits")
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    card = (folder / "me/digits/README.md").read_text()
    assert f"| test accuracy | {100 * record['last']['test_accuracy']:.2f} % |" in card


@pytest.mark.parametrize("name", ["", "a/b/c", "me/my model", "me/a--b"])
def test_an_invalid_name_is_refused_before_the_export(tmp_path, capsys, remote, name):
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "model"), "--push_to_hub", name]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"maxup export: --push_to_hub {name!r} is not the name of a repository on the Hub; use ")
    assert err.count("\n") == 1
    assert not (tmp_path / "model").exists()
    assert remote[1] == {}


def test_an_error_of_the_hub_is_one_sentence_and_the_files_stay(tmp_path, monkeypatch):
    def create_repo(api, repo, **options):
        raise hub.errors.LocalTokenNotFoundError("Token is required,\nbut no token found.")

    monkeypatch.setattr(hub.HfApi, "create_repo", create_repo)
    with pytest.raises(
        LoadError, match=r"cannot upload \S+ to me/x \(Token is required, .*run  hf upload me/x \S+ --private$"
    ) as caught:
        push_to_hub(tmp_path, "me/x")
    assert "\n" not in str(caught.value)

import json
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest
import torch

import maxup.lab.environment
from maxup.lab.environment import environment


def test_versions_hardware_and_commit():
    found = environment()
    assert found["versions"]["torch"] == torch.__version__
    assert found["hardware"]
    json.dumps(found)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode == 0:
        assert found["commit"].rstrip("+") == head.stdout.strip()


@pytest.mark.parametrize(
    ("module", "path", "command"),
    [
        (None, "/usr/bin/maxup", "maxup train mine.yaml --perturb '[{name: cutout}]'"),
        ("maxup.__main__", "/x/maxup/__main__.py", "maxup train mine.yaml --perturb '[{name: cutout}]'"),
        ("benchmarks.epoch", "/x/epoch.py", "python -m benchmarks.epoch train mine.yaml --perturb '[{name: cutout}]'"),
        (None, "/home/me/my_script.py", None),
        ("pytest.__main__", "/x/pytest/__main__.py", None),
    ],
)
def test_the_command_is_recorded_if_it_is_ours(module, path, command, monkeypatch):
    spec = None if module is None else ModuleSpec(module, None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setattr(sys, "argv", [path, "train", "mine.yaml", "--perturb", "[{name: cutout}]"])
    assert environment()["command"] == command


def test_a_repository_around_the_installed_package_is_ignored(tmp_path, monkeypatch):
    def git(*args):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *who, *args], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    package = tmp_path / "venv" / "maxup"
    package.mkdir(parents=True)
    (package / "environment.py").touch()
    (tmp_path / ".gitignore").write_text("venv\n")
    git("init")
    git("add", "-A")
    git("commit", "-m", "theirs")
    monkeypatch.setattr(maxup.lab.environment, "__file__", str(package / "environment.py"))
    monkeypatch.delenv("MAXUP_COMMIT", raising=False)
    assert environment()["commit"] is None
    git("add", "-f", "venv")
    git("commit", "-m", "ours")
    assert environment()["commit"] == git("rev-parse", "HEAD")


def test_maxup_commit_replaces_the_repository(monkeypatch):
    def no_git(*args, **kwargs):
        raise OSError

    monkeypatch.setattr(subprocess, "run", no_git)
    monkeypatch.delenv("MAXUP_COMMIT", raising=False)
    assert environment()["commit"] is None
    monkeypatch.setenv("MAXUP_COMMIT", "abc")
    assert environment()["commit"] == "abc"

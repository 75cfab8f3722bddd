import json
import subprocess

import torch

from maxup.engine.environment import environment


def test_what_is_written_beside_a_result():
    found = environment()
    assert found["versions"]["torch"] == torch.__version__
    assert found["hardware"]
    json.dumps(found)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode == 0:
        assert found["commit"].rstrip("+") == head.stdout.strip()


def test_outside_a_checkout_the_commit_can_be_told(monkeypatch):
    def no_git(*args, **kwargs):
        raise OSError

    monkeypatch.setattr(subprocess, "run", no_git)
    monkeypatch.delenv("MAXUP_COMMIT", raising=False)
    assert environment()["commit"] is None
    monkeypatch.setenv("MAXUP_COMMIT", "abc")
    assert environment()["commit"] == "abc"

import json
import subprocess

import torch

from maxup.engine.environment import environment, visible_devices


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


def test_every_visible_gpu_has_a_name_to_be_had_alone_by(monkeypatch):
    for count, named, expected in ((0, None, [None]), (2, None, ["0", "1"]), (2, "4,6", ["4", "6"]), (0, "", [None])):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if named is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert visible_devices() == expected

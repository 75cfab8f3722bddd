"""The code in docs/trainers.md runs: the trainers in this process, the loops of several processes under torchrun."""

import os
import re
import subprocess
import sys

import pytest

from benchmarks.tables import ROOT
from tests.oracles import torchvision_v2
from tests.waiting import PATIENCE

PAGE = (ROOT / "docs" / "trainers.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
CODE = {title: "".join(re.findall(r"```python\n(.*?)```", body, re.DOTALL)) for title, body in SECTIONS.items()}
SEVERAL = ["Accelerate", "DDP", "FSDP2"]
# On a busy machine torch may abort while Python exits, if threads of gloo still release tensors
# (pytorch/pytorch#190489). destroy_process_group does not end these threads, so leave without Python's own exit.
END = """
assert objective.step == 2
import os
os._exit(0)
"""


@pytest.mark.filterwarnings("ignore")  # warnings of the trainers
@pytest.mark.parametrize("title", [title for title, code in CODE.items() if code])
def test_code_runs(title, tmp_path, monkeypatch):
    """The block runs in this process, as the only one, and selects in each of its 4 steps."""
    torchvision_v2()
    for package in re.findall(r"^(?:import|from) (pytorch_lightning|transformers|timm)\b", CODE[title], re.MULTILINE):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    if title in SEVERAL:
        for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}.items():
            monkeypatch.setenv(name, str(value))  # port 0 is any free one
    names = {"__name__": "__main__"}
    exec(compile(CODE[title], "block.py", "exec"), names)
    trainer = names.get("trainer")
    objective = trainer.callbacks[0].objective if title == "Lightning" else names.get("objective") or trainer.maxup
    assert objective.step == (2 if title.startswith("Resume") else 4)


def test_every_trainer_has_code():
    assert {title for title, code in CODE.items() if not code} == {"Your loop"}


@pytest.mark.slow
@pytest.mark.parametrize("title", SEVERAL)
def test_code_of_several_processes_runs_under_torchrun(title, tmp_path):
    (tmp_path / "train.py").write_text(CODE[title] + END)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr

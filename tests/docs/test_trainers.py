"""The code in docs/trainers.md runs: the trainers in this process, the loops of several processes under torchrun."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from benchmarks.tables import ROOT
from tests.oracles import torchvision_v2
from tests.waiting import PATIENCE

PAGE = (ROOT / "docs" / "trainers.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
CODE = {title: "".join(re.findall(r"```python\n(.*?)```", body, re.DOTALL)) for title, body in SECTIONS.items()}
SEVERAL = ["Accelerate", "DDP", "FSDP2"]


@pytest.mark.filterwarnings("ignore")  # warnings of the trainers
@pytest.mark.parametrize("title", [title for title, code in CODE.items() if code and title not in SEVERAL])
def test_code_runs(title, tmp_path, monkeypatch):
    torchvision_v2()
    for package in re.findall(r"^(?:import|from) (pytorch_lightning|transformers|timm)\b", CODE[title], re.MULTILINE):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    exec(compile(CODE[title], "block.py", "exec"), names)
    objective = names["trainer"].callbacks[0].objective if title == "Lightning" else None
    objective = objective or names.get("objective") or names["trainer"].maxup
    assert objective.step == 4
    assert objective.copies() == 4


def test_every_trainer_has_code():
    assert {title for title, code in CODE.items() if not code} == {"Your loop"}


@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs accelerate")
@pytest.mark.parametrize("title", SEVERAL)
def test_code_of_several_processes_runs_under_torchrun(title, tmp_path):
    (tmp_path / "train.py").write_text(CODE[title] + "\nassert objective.step == 2\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr

"""The commands in docs/scaling.md are valid. tests/distributed runs them with two processes."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from maxup.cli.main import find_verbs
from maxup.lab.recipes.load import parse_recipe
from maxup.lab.report.custom_tables import find_table
from tests.distributed.launch import ROOT

PAGE = (ROOT / "docs" / "scaling.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
INLINE = re.findall(r"`((?:torchrun|accelerate launch|python -m) [^`]+)`", PAGE)


def check_maxup(words):
    """A verb, and its recipe, table or folder."""
    verb, what = words[:2]
    assert verb in find_verbs()
    if verb == "train":
        parse_recipe(what, [])
    elif verb == "reproduce":
        find_table(what)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith(("torchrun", "maxup"))])
def test_torchrun_takes_its_options_and_maxup_the_rest(command):
    program, *words = shlex.split(command)
    if program == "torchrun":
        args = get_args_parser().parse_args(words)
        assert args.module
        assert (args.nnodes, args.nproc_per_node, args.rdzv_backend) == ("2", "8", "c10d")
        words = [word for word in (args.training_script, *args.training_script_args) if word != "--"]
        assert words.pop(0) == "maxup"
    check_maxup(words)


def test_files_of_accelerate_and_slurm_exist():
    files = re.findall(r"examples/[\w/.]+", " ".join([*COMMANDS, *INLINE]))
    assert {Path(file).name for file in files} == {"slurm.sh", "ddp.yaml", "fsdp.yaml", "accelerate_loop.py"}
    assert all((ROOT / file).exists() for file in files)


def test_accelerate_reads_the_fsdp_file():
    """It needs GPUs to run. Its settings are those that the page promises."""
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(ROOT / "examples" / "launch" / "fsdp.yaml"))
    assert config.distributed_type.value == "FSDP"
    plugin = config.fsdp_config
    assert (plugin["fsdp_version"], plugin["fsdp_auto_wrap_policy"]) == (2, "SIZE_BASED_WRAP")


def test_the_environment_variable_is_the_one_of_the_script():
    (line,) = [line for line in COMMANDS if line.startswith("export")]
    assert line in (ROOT / "examples" / "slurm.sh").read_text()


def test_benchmarks_exist():
    for module in re.findall(r"python -m (benchmarks\.\w+)", PAGE):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists()


@pytest.mark.slow
def test_the_benchmark_of_processes_runs_and_writes(tmp_path):
    quick = ["--processes", "1", "2", "--batch_size", "4", "--steps", "1", "--rounds", "1", "--out", tmp_path]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "benchmarks.processes", *quick], cwd=ROOT, env=env, check=True)
    (file,) = tmp_path.iterdir()
    ratio = json.loads(file.read_text())["ratio"]
    assert {found["1"] for found in ratio.values()} == {1}
    assert set(ratio) == {f"m = {m}, {what} batch" for m in (1, 4) for what in ("same", "larger")}

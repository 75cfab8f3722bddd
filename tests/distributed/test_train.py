"""The command in two processes on the CPU."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from maxup.lab.train.runs import evaluate, open_run
from tests.distributed.launch import HELD, RECIPE, ROOT, finish, torchrun, weights
from tests.lab.data.fake import cut_short, write_folders
from tests.waiting import PATIENCE, until


def test_two_processes_finish_and_evaluate_every_example_once(whole):
    folder, out = whole
    result = json.loads((folder / "run.json").read_text())
    assert result["processes"] == 2
    assert result["steps"] == 4 * (205 // 20)
    correct = result["last"]["test_accuracy"] * (1797 - 205)
    assert correct == pytest.approx(round(correct), abs=1e-6)  # a whole number of the 1,592, counted once each
    assert out.count("epoch 4/4") == 1  # one process speaks


@pytest.mark.slow
def test_what_is_recorded_is_what_the_checkpoint_gives(tmp_path):
    """BatchNorm's statistics differ from process to process, and those of one are saved."""
    recipe = RECIPE.replace("model: {args: {hidden: [16]}}", "model: {name: conv, args: {width: 4}}")
    finish(torchrun(tmp_path, tmp_path / "run", recipe=recipe))
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["last"]
    found = evaluate(open_run(tmp_path / "run"))["test"]
    assert found["accuracy"] == pytest.approx(recorded["test_accuracy"], abs=1e-9)
    assert found["loss"] == pytest.approx(recorded["test_loss"], rel=1e-5)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_all_processes(tmp_path):
    options = ["--optim.lr", "1e9", "--optim.schedule", "constant"]
    process = torchrun(tmp_path, tmp_path / "run", options=options)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert "the loss became" in out
    assert "not-finite" in out
    assert any((tmp_path / "run" / "not-finite").glob("step-*"))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_job_with_a_message_and_the_same_command_resumes(tmp_path, whole, rank):
    (tmp_path / "held.py").write_text(HELD)
    process = torchrun(tmp_path, tmp_path / "run", options=["--save_every", "0"], program=["held.py"])
    until(lambda: len(list(tmp_path.glob("held-*"))) == 2, process)  # in the twelfth step of forty
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(children[rank]), signal.SIGKILL)
    (tmp_path / "go").touch()
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0, out
    said = [line for line in out.splitlines() if line.startswith("maxup train: ")]
    assert len(said) == 1, out
    assert said[0].startswith("maxup train: lost another process of this run (")
    assert said[0].endswith(f"; the same command resumes from the last checkpoint in {tmp_path / 'run'}")
    assert "maxup/lab" not in out  # the only traceback is torchrun's own, of its child's failure
    finish(torchrun(tmp_path, tmp_path / "run", options=["--save_every", "0"]))
    for name, tensor in weights(whole[0]).items():
        assert torch.equal(tensor, weights(tmp_path / "run")[name]), name


@pytest.mark.slow
def test_image_folders_are_shared_and_what_cannot_be_read_is_counted_once(tmp_path):
    root = write_folders(tmp_path / "imagenet", train=6, val=4, classes="abcdef")
    for file in (root / "train" / "a" / "0.jpeg", root / "val" / "f" / "3.jpeg"):
        cut_short(file)
    recipe = f"""
base: digits/mlp-gaussian-maxup
data: {{name: imagenet, root: {tmp_path}, size: 8, train_size: null, workers: 1}}
model: {{args: {{hidden: [16]}}}}
epochs: 2
batch_size: 12
"""
    out = finish(torchrun(tmp_path, tmp_path / "run", recipe=recipe))
    last = json.loads((tmp_path / "run" / "run.json").read_text())["last"]
    assert last["skipped_images"] == 2, out
    assert 23 * last["test_accuracy"] == pytest.approx(round(23 * last["test_accuracy"]), abs=1e-6)
    assert last["test_accuracy"] <= last["test_top5_accuracy"]


@pytest.mark.slow
def test_another_number_of_processes_is_refused(tmp_path, whole):
    import shutil

    shutil.copytree(whole[0], tmp_path / "run")
    process = torchrun(tmp_path, tmp_path / "run", processes=1)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert "was started with 2 processes, but now has 1; run it with 2 processes" in out


FROM_BATCH = """
import os, sys
import torch
from maxup.lab.registry import PERTURBATIONS


class FromBatch:
    'Copies whose draws are read from the batch, so that split and joined batches draw alike.'

    def __init__(self):
        self.count = -1

    def draw(self, batch, generator):
        self.count = (self.count + 1) % 3
        return torch.sin((self.count + 2) * 7 * batch[0])

    def apply(self, batch, draw):
        return batch[0] + 0.3 * draw, batch[1]


if __name__ == "__main__":
    from maxup.cli.main import main
    from maxup.lab.train.loop import Trainer

    PERTURBATIONS["from_batch"] = "from_batch:FromBatch"
    close = Trainer.close

    def saving(run):
        torch.save(run.task.model.state_dict(), f"rank-{run.accelerator.process_index}.pt")
        close(run)

    Trainer.close = saving
    sys.exit(main(sys.argv[1:]))
"""
JOINED = """
base: digits/mlp-gaussian-maxup
data: {train_size: 205}
model: {args: {hidden: [16]}}
perturb: [{name: from_batch}]
objective: {name: maxup, m: 3, warmup: 0}
epochs: 2
batch_size: 20
"""


def from_batch(folder, processes, recipe=JOINED):
    """The final weights on every rank, and the record."""
    folder.mkdir()
    (folder / "from_batch.py").write_text(FROM_BATCH)
    (folder / "recipe.yaml").write_text(recipe)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--standalone"]
    command = [*launch, "from_batch.py", "train", "recipe.yaml", "--out", "run", "--trackers", "none"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(processes)]
    return ranks, json.loads((folder / "run" / "run.json").read_text())


@pytest.mark.slow
def test_two_processes_train_as_one_on_the_joined_batch(tmp_path):
    """For a net without BatchNorm; the worst of three copies is chosen on each process for its own examples."""
    (first, second), two = from_batch(tmp_path / "two", 2)
    [alone], one = from_batch(tmp_path / "one", 1)
    for name, tensor in alone.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], tensor, atol=1e-5, rtol=1e-4)
    assert (one["processes"], two["processes"]) == (1, 2)
    assert two["last"]["test_loss"] == pytest.approx(one["last"]["test_loss"], rel=1e-4)


@pytest.mark.slow
def test_a_last_batch_that_is_not_even_hangs_nobody(tmp_path):
    """Fewer examples than a batch, and not as many on one process as on the other."""
    recipe = JOINED.replace("205", "15")
    (first, second), result = from_batch(tmp_path / "two", 2, recipe)
    assert result["steps"] == 2
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the processes would take a GPU each")
def test_accelerate_launches_it_too(tmp_path, whole):
    """As torchrun does; MULTI_GPU is what makes it start several, --cpu does so only by way of MPI."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    config = ROOT / "examples" / "launch" / "ddp.yaml"
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config]
    command = [*launch, "-m", "maxup", "train", "recipe.yaml", "--out", "run", "--trackers", "none"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["processes"] == 2
    for name, tensor in weights(whole[0]).items():
        assert torch.equal(tensor, weights(tmp_path / "run")[name]), name


@pytest.mark.slow
def test_a_run_is_extended_and_restarted_in_two_processes(tmp_path):
    constant = RECIPE + "optim: {schedule: constant}\n"
    finish(torchrun(tmp_path, tmp_path / "run", recipe=constant, options=["--epochs", "2", "--objective.warmup", "1"]))
    longer = ["--objective.warmup", "1", "--epochs", "4"]
    out = finish(torchrun(tmp_path, tmp_path / "run", recipe=constant, options=[*longer, "--extend"]))
    assert out.count("resuming at step 20 of 40") == 1
    finish(torchrun(tmp_path, tmp_path / "whole", recipe=constant, options=longer))
    extended, whole = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert all(torch.equal(extended[name], whole[name]) for name in whole)
    out = finish(torchrun(tmp_path, tmp_path / "run", recipe=constant, options=["--epochs", "1", "--restart"]))
    assert out.count(f"the earlier run is now in {tmp_path / 'run-old-1'}\n") == 1
    assert json.loads((tmp_path / "run/run.json").read_text())["last"]["epoch"] == 1
    assert all(torch.equal(weight, whole[name]) for name, weight in weights(tmp_path / "run-old-1").items())

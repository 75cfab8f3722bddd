"""Two processes on the CPU: every trainer takes the steps of one process on the joined batch."""

import os
import warnings
from contextlib import contextmanager
from importlib.util import find_spec
from unittest.mock import patch

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, SequentialSampler

import maxup as mu
from tests.oracles import torchvision_v2
from tests.waiting import leave_group

pytestmark = pytest.mark.slow  # two processes import all three packages
EPOCHS, BATCH, COPIES = 2, 8, 3
NO_FSDP = torch.cuda.is_available() or not hasattr(torch.cpu.Stream, "record_event")  # it would shard on the GPU
FSDP2 = {"fsdp": True, "fsdp_config": {"version": 2, "auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 1}}


class FromBatch:
    """A perturbation that reads its draws from the batch, so that split and joined batches have the same draws."""

    def __init__(self):
        self.count = -1

    def draw(self, batch, generator):
        self.count = (self.count + 1) % COPIES
        return batch[0]["noise"][:, self.count]

    def apply(self, batch, draw):
        x, y = batch
        return {**x, "pixels": x["pixels"] + draw}, y


class Net(nn.Module):
    """A model with the interface of Hugging Face: inputs by name, a loss if there are labels."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, pixels, noise=None, labels=None):
        logits = self.layers(pixels)
        return {"loss": None if labels is None else F.cross_entropy(logits, labels), "logits": logits}


def rows():
    g = torch.Generator().manual_seed(0)
    noise = 0.5 * torch.randn(16, COPIES, 12, generator=g)
    return [{"pixels": torch.rand(12, generator=g), "noise": noise[i], "labels": i % 4} for i in range(16)]


def call(model, x):
    return model(**x)["logits"]


def objective():
    return mu.MaxUp(FromBatch(), m=COPIES, forward=call)


class Noise(mu.Gaussian):
    """Noise that remembers its draws."""

    def __init__(self):
        super().__init__(0.5, key="pixels")
        self.draws = []

    def draw(self, batch, generator):
        self.draws.append(super().draw(batch, generator))
        return self.draws[-1]


def parameters(model):
    values = [value.detach() for value in model.parameters()]
    return [value.full_tensor() if hasattr(value, "full_tensor") else value.clone() for value in values]


@contextmanager
def fsdp_on_a_cpu():
    """Accelerate ignores FSDP on CPUs, so let it take them for GPUs. Undo that, and the variables that it sets."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    backend = patch.object(PartialState, "_prepare_backend", lambda *args: ("gloo", DistributedType.MULTI_GPU))
    with backend, patch.dict(os.environ, ACCELERATE_TORCH_DEVICE="cpu"):
        yield


def with_lightning(rank, worst, epochs=EPOCHS, start=None, save=None):
    import pytorch_lightning as pl

    from maxup.integrations.lightning import MaxUpCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, batch_idx):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    module = Module()
    trainer = pl.Trainer(
        callbacks=[MaxUpCallback(worst, model="net")], strategy="ddp", accelerator="cpu", devices=2, logger=False,
        max_epochs=epochs, use_distributed_sampler=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(rows()[rank::2], batch_size=BATCH // 2), ckpt_path=start)
    assert trainer.world_size == 2
    if save:
        trainer.save_checkpoint(save)
    return parameters(module)


def with_transformers(folder, wrapper="DistributedDataParallel", **settings):
    import transformers

    from maxup.integrations.transformers import MaxUpTrainer

    class InOrder(MaxUpTrainer):
        def _get_train_sampler(self, *args):
            return SequentialSampler(self.train_dataset)

    args = transformers.TrainingArguments(
        output_dir=folder, per_device_train_batch_size=BATCH // 2, num_train_epochs=EPOCHS, learning_rate=0.5,
        lr_scheduler_type="constant", optim="sgd", max_grad_norm=0.0, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, remove_unused_columns=False, **settings,
    )  # fmt: skip
    trainer = InOrder(Net(), args, train_dataset=rows(), maxup=objective())
    trainer.train()
    assert type(trainer.model_wrapped).__name__ == wrapper
    return parameters(trainer.model)


def resume_with_transformers(folder, worst, stop=None, start=None, **settings):
    """Train on shuffled data. Save and stop after step `stop`, or resume from the checkpoint `start`."""
    import transformers

    from maxup.integrations.transformers import MaxUpTrainer

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = control.should_training_stop = state.global_step == stop

    args = transformers.TrainingArguments(
        output_dir=folder, per_device_train_batch_size=BATCH // 2, max_steps=2 * EPOCHS, learning_rate=0.1,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, remove_unused_columns=False, **settings,
    )  # fmt: skip
    trainer = MaxUpTrainer(Net(), args, train_dataset=rows(), maxup=worst, callbacks=[Stop()])
    trainer.train(resume_from_checkpoint=start)
    assert trainer.state.global_step == (stop or 2 * EPOCHS)
    return parameters(trainer.model)


def stop_and_resume(folder, trainer, **settings):
    """Return the parameters and draws of a whole run, and of one that stops after step 3 and is resumed."""
    results = {}
    for name, stop, start in (("whole", None, None), ("first", 3, None), ("resumed", None, f"{folder}/checkpoint-3")):
        noise = Noise()
        worst = mu.MaxUp(noise, m=2)
        if start is None:
            worst.load_state_dict({"seed": 3, "step": 0})
        results[f"{trainer}, {name}"] = resume_with_transformers(folder, worst, stop, start, **settings)
        results[f"draws, {trainer}, {name}"] = noise.draws
    return results


class Logits(Net):
    """The model as timm calls it."""

    def forward(self, x):
        return super().forward(**x)["logits"]


def with_timm(batches):
    from maxup.integrations.timm import MaxUpTask

    model = Logits()
    task = MaxUpTask(model, nn.CrossEntropyLoss(), maxup=mu.MaxUp(FromBatch(), m=COPIES), verbose=False)
    task.prepare_distributed()
    optimizer = torch.optim.SGD(task.parameters(), lr=0.5)
    for batch in batches:
        task({key: batch[key] for key in ("pixels", "noise")}, batch["labels"])["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


def resume_with_timm(rank, batches):
    """Train with ranks seeded as timm's script seeds them, and resume both from the state that rank 0 saved."""
    from maxup.integrations.timm import MaxUpTask

    def create(state=None):
        model, noise = Logits(), Noise()
        torch.manual_seed(42 + rank)
        task = MaxUpTask(model, nn.CrossEntropyLoss(), maxup=mu.MaxUp(noise, m=2), verbose=False)
        task.load_task_state(state)
        return task.prepare_distributed(), noise

    def step(task, batch):
        task({key: batch[key] for key in ("pixels", "noise")}, batch["labels"])["loss"].backward()

    whole, noise = create()
    step(whole, batches[0])
    saved = [whole.get_task_state()]
    distributed.broadcast_object_list(saved)
    step(whole, batches[1])
    resumed, resumed_noise = create(saved[0])
    step(resumed, batches[1])
    return {"draws, timm, whole": noise.draws, "draws, timm, resumed": resumed_noise.draws}


def worker(rank, out):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", GROUP_RANK="0")
    os.environ.update(TORCHELASTIC_RUN_ID="test", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")  # not used: see below
    distributed.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
    torchvision_v2()
    mine = list(DataLoader(rows()[rank::2], batch_size=BATCH // 2)) * EPOCHS
    results = {"transformers": with_transformers(out), "timm": with_timm(mine)}
    results["lightning"] = with_lightning(rank, objective())

    for name, epochs, start in (("whole", 2, None), ("first", 1, None), ("resumed", 2, f"{out}/first")):
        noise = Noise()
        worst = mu.MaxUp(noise, m=2, forward=call)
        if start is None:
            worst.load_state_dict({"seed": 3, "step": 0})  # otherwise live objectives draw differently
        results[name] = with_lightning(rank, worst, epochs, start, save=f"{out}/{name}")
        results[f"draws, {name}"] = noise.draws

    results |= stop_and_resume(f"{out}/transformers", "transformers")
    if not NO_FSDP:
        with fsdp_on_a_cpu():
            results["FSDP2"] = with_transformers(out, "FSDPNet", **FSDP2)
            results |= stop_and_resume(f"{out}/FSDP2", "FSDP2", **FSDP2)
    results |= resume_with_timm(rank, mine)
    torch.save(results, f"{out}/{rank}.pt")
    leave_group()


def by_hand():
    """Take the same steps in one process; return the parameters."""
    model, worst = Net(), objective()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for batch in list(DataLoader(rows(), batch_size=BATCH)) * EPOCHS:
        x, y = worst.select(model, {key: batch[key] for key in ("pixels", "noise")}, batch["labels"])
        F.cross_entropy(model(**x)["logits"], y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    for package in ("pytorch_lightning", "transformers", "timm"):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")
    out = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(worker, (str(out),), nprocs=2)
    return [torch.load(out / f"{rank}.pt") for rank in range(2)]


sharded = pytest.mark.skipif(NO_FSDP, reason="needs a CPU only, and a torch that can run fully_shard on it")


@pytest.mark.parametrize("name", ["transformers", "timm", "lightning", pytest.param("FSDP2", marks=sharded)])
def test_parameters_equal_those_of_one_process_on_the_joined_batch(ranks, name):
    alone = by_hand()
    for first, second, expected in zip(ranks[0][name], ranks[1][name], alone, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("trainer", "share"),
    [("", 1 / 2), ("transformers, ", 1 / 4), pytest.param("FSDP2, ", 1 / 4, marks=sharded)],
)
def test_resumed_equals_unstopped_and_ranks_draw_differently(ranks, trainer, share):
    """Lightning is stopped after one of two epochs, Hugging Face in the middle of the second: after step 3 of 4."""
    for rank in ranks:
        for resumed, whole, first in zip(*(rank[trainer + n] for n in ("resumed", "whole", "first")), strict=True):
            assert torch.equal(resumed, whole)
            assert not torch.equal(first, whole)
        drawn = [len(rank[f"draws, {trainer}{name}"]) for name in ("resumed", "whole")]
        assert drawn[0] == share * drawn[1] > 0
    first, second = (rank[f"draws, {trainer}resumed"][0][0] for rank in ranks)
    assert not torch.equal(first, second)


def test_timm_resumed_draws_what_the_unstopped_run_draws(ranks):
    for rank in ranks:
        whole, resumed = rank["draws, timm, whole"], rank["draws, timm, resumed"]
        assert (len(whole), len(resumed)) == (4, 2)
        assert all(torch.equal(mine, theirs) for (mine,), (theirs,) in zip(resumed, whole[2:], strict=True))
    (first,), (second,) = (rank["draws, timm, resumed"][0] for rank in ranks)
    assert not torch.equal(first, second)

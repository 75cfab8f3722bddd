"""Two processes on the CPU: DistributedDataParallel, compiled or not, SyncBatchNorm, and draws per rank."""

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import maxup as mu
from tests.tiny import batch, batch_norm_net, net
from tests.waiting import leave_group


class FromBatch:
    """A perturbation that reads its draws from the batch, so that split and joined batches have the same draws."""

    def __init__(self):
        self.count = -1

    def draw(self, batch, generator):
        self.count = (self.count + 1) % 3
        return batch[0]["noise"][:, self.count]

    def apply(self, batch, draw):
        x, y = batch
        return {**x, "pixels": x["pixels"] + draw}, y


def pixels(model, x):
    return model(x["pixels"])


def data():
    x, y = batch(b=8)
    noise = 0.3 * torch.randn(8, 3, *x.shape[1:], generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    return {"pixels": x, "noise": noise}, y


def train(model, x, y, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    maxup = mu.MaxUp(FromBatch(), m=3, forward=pixels)
    for _ in range(steps):
        maxup(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def plain(model):
    return model


def compiled(model):
    return torch.compile(model, backend="eager")


def worker(rank, out):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
    x, y = data()
    half = slice(4 * rank, 4 * rank + 4)
    x, y = {k: v[half] for k, v in x.items()}, y[half]
    results = {"parameters": train(DistributedDataParallel(net()), x, y)}

    # Compiled inside or around the wrapper: only the 3 training passes go through the wrapper.
    for name, inner, outer in (("ddp(compile)", compiled, plain), ("compile(ddp)", plain, compiled)):
        network = batch_norm_net()
        wrapped = DistributedDataParallel(inner(network))
        passes = []
        wrapped.register_forward_pre_hook(lambda *_, passes=passes: passes.append(1))
        results[name] = train(outer(wrapped), x, y), dict(network.named_buffers()), len(passes)

    # BatchNorm: several forward passes and one backward pass; only the training pass updates the buffers.
    wrapped = DistributedDataParallel(batch_norm_net())
    results["batch norm"] = train(wrapped, x, y), dict(wrapped.module.named_buffers()), 3
    results["tracked"] = int(wrapped.module[1].num_batches_tracked)

    # strategy="auto": ranks with batches of different sizes choose the same strategy.
    auto = mu.MaxUp(mu.Gaussian(0.1), m=3, strategy="auto")
    auto(DistributedDataParallel(net()), x["pixels"][: 2 + rank], y[: 2 + rank]).backward()
    results["strategies"] = auto.state_dict()["strategies"]

    # Scoring, attacks and theory bypass the wrapper and run no collectives, so ranks may differ.
    passes = []
    wrapped.register_forward_pre_hook(lambda *_: passes.append(1))
    mu.MaxUp(mu.Gaussian(0.1), m=3).select(wrapped, x["pixels"], y)
    mu.Adversarial(0.1, steps=2).attack(wrapped, (x["pixels"], y), [torch.zeros_like(x["pixels"])])
    mu.theory.penalty(wrapped, x["pixels"], y, m=2, sigma=0.1)
    mu.theory.remainder(wrapped, x["pixels"], y, m=2, sigma=0.1, samples=1)
    results["passes"] = len(passes)

    # SyncBatchNorm cannot synchronize on the CPU, so this select shows that scoring runs no collectives.
    sync = nn.SyncBatchNorm.convert_sync_batchnorm(batch_norm_net())
    torch.manual_seed(3)
    maxup = mu.MaxUp(mu.Gaussian(0.3), m=3)
    results["draws"] = maxup.select(sync, x["pixels"], y)[0] - x["pixels"]

    # A run of 4 steps, and one that resumes at step 2 from a checkpoint that only rank 0 wrote.
    torch.manual_seed(5)
    whole = mu.MaxUp(mu.Gaussian(0.3), m=3)
    results["whole"] = []
    for step in range(4):
        if step == 2 and rank == 0:
            torch.save(whole.state_dict(), f"{out}/objective.pt")
        results["whole"].append(whole.select(wrapped, x["pixels"], y)[0] - x["pixels"])
    distributed.barrier()
    del whole  # as in a new process
    resumed = mu.MaxUp(mu.Gaussian(0.3), m=3)
    resumed.load_state_dict(torch.load(f"{out}/objective.pt"))
    results["resumed"] = [resumed.select(wrapped, x["pixels"], y)[0] - x["pixels"] for _ in range(2)]
    torch.save(results, f"{out}/{rank}.pt")
    leave_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(worker, (str(out),), nprocs=2)  # rendezvous in a file, since a free port may be taken
    return [torch.load(out / f"{rank}.pt") for rank in range(2)]


def test_parameters_equal_those_of_one_process_on_the_joined_batch(ranks):
    alone = train(net(), *data())
    for a, b, expected in zip(ranks[0]["parameters"], ranks[1]["parameters"], alone, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("how", ["ddp(compile)", "compile(ddp)"])
def test_compiled_wrappers_train_like_the_plain_one(ranks, how):
    for results in ranks:
        torch.testing.assert_close(results[how], results["batch norm"], atol=1e-9, rtol=0)


def test_training_updates_the_statistics_once_per_step(ranks):
    assert [r["tracked"] for r in ranks] == [3, 3]


def test_ranks_choose_the_same_strategy(ranks):
    first, second = (results["strategies"] for results in ranks)
    assert first == second
    assert list(first) == ["m=3"]
    assert first["m=3"] in ("recompute", "retain")


def test_ranks_draw_differently_under_one_seed(ranks):
    assert not torch.equal(ranks[0]["draws"], ranks[1]["draws"])


def test_every_rank_resumes_its_draws_from_the_state_of_rank_0(ranks):
    for results in ranks:
        assert all(map(torch.equal, results["resumed"], results["whole"][2:]))
    assert not any(map(torch.equal, ranks[0]["whole"], ranks[1]["whole"]))


def test_only_training_goes_through_the_wrapper(ranks):
    assert [r["passes"] for r in ranks] == [0, 0]

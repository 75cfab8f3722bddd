"""Two processes on the CPU: the library under FSDP2 (`fully_shard`) and Accelerate trains like one process."""

import os

import pytest
import torch
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

import maxup as mu
from tests.distributed.test_objectives import FromBatch, data, pixels
from tests.integrations.data import Nothing
from tests.tiny import batch_norm_net, dropout_net, net
from tests.waiting import leave_group

NO_FSDP = not hasattr(torch.cpu.Stream, "record_event")
pytestmark = pytest.mark.skipif(NO_FSDP, reason="this torch cannot run fully_shard on a CPU")
WAYS = {
    "recompute": {},
    "one wide batch": {"chunk_size": 3},
    "retain": {"strategy": "retain"},
}


OTHERS = {
    "average": lambda g: mu.Average(mu.Gaussian(0.3), m=2, generator=g),
    "adversarial": lambda g: mu.Adversarial(0.1, steps=2, generator=g),
    "accumulated": lambda g: mu.MaxUp(mu.Gaussian(0.3), m=3, generator=g),
}


def part(rank, world=2):
    """The examples of one rank."""
    x, y = data()
    mine = slice(rank * len(y) // world, (rank + 1) * len(y) // world)
    return {name: leaf[mine] for name, leaf in x.items()}, y[mine]


def shard(model):
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        if next(layer.parameters(), None) is not None:
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def one_loss(model, x, y, **settings):
    return mu.MaxUp(FromBatch(), m=3, forward=pixels, **settings)(model, x, y)


def other_gradients(name, model, rank):
    """The gradients of another objective on one rank's examples; two batches are accumulated."""
    x, y = part(rank)
    objective = OTHERS[name](torch.Generator().manual_seed(rank))
    for _ in range(2 if name == "accumulated" else 1):
        objective(model, x["pixels"], y).backward()
    return values(model, grad=True)


def train(model, x, y, steps=3, backward=torch.Tensor.backward, m=3):
    """The extra line in a loop. m = 0 is the loop without it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    objective = mu.MaxUp(FromBatch() if m > 1 else Nothing(), m=max(m, 1), forward=pixels)
    for _ in range(steps):
        inputs, targets = objective.select(model, x, y) if m else (x, y)
        backward(F.cross_entropy(model(inputs["pixels"]), targets))
        optimizer.step()
        optimizer.zero_grad()


def noisy_net(model):
    """A net with noise on its hidden layer, which every rank draws for itself."""
    noise = mu.FeatureNoise(0.5, layer="1")
    noise.attach(model)
    return noise


def values(model, grad=False):
    """All weights, or gradients, as whole tensors."""
    tensors = [p.grad if grad else p.detach() for p in model.parameters()]
    return [t.full_tensor() if isinstance(t, DTensor) else t.clone() for t in tensors]


def worker(rank, out):
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}  # Accelerate
    distributed.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
    x, y = part(rank)
    results = {"types": {type(p).__name__ for p in shard(net()).parameters()}}

    for name, settings in WAYS.items():
        model = shard(net())
        one_loss(model, x, y, **settings).backward()
        results[name] = values(model, grad=True)

    results |= {name: other_gradients(name, shard(net()), rank) for name in OTHERS}

    model = shard(net())
    train(model, x, y)
    results["trained"] = values(model)

    # Statistics of BatchNorm, dropout masks and draws inside the model belong to one rank.
    model = shard(batch_norm_net())
    train(model, x, y)
    results["tracked"] = int(model[1].num_batches_tracked)
    model = shard(dropout_net())
    outcome = mu.MaxUp(mu.Gaussian(0.3), m=3).run(model, x["pixels"], y)
    outcome.loss.backward()
    results["replay error"] = outcome.report.replay_error

    model = shard(net())
    noise = noisy_net(model)
    with mu.MaxUp(noise, m=3, generator=torch.Generator().manual_seed(rank)).selected(model, x["pixels"], y) as worst:
        loss = F.cross_entropy(model(worst[0]), worst[1])
    loss.backward()
    results["in the model"] = values(model, grad=True)

    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(net())
    results["wrapper"] = type(model).__name__
    train(model, x, y, backward=accelerator.backward)
    results["accelerate"] = values(model)

    for m in (0, 1):
        model = shard(net())
        train(model, x, y, m=m)
        results[f"shards, m = {m}"] = values(model)
        model = accelerator.prepare(net())
        train(model, x, y, m=m, backward=accelerator.backward)
        results[f"accelerate, m = {m}"] = values(model)

    # What docs/trainers.md shows: the state of the objective is saved with Accelerate's.
    objective = mu.MaxUp(mu.Gaussian(0.3), m=2)
    accelerator.register_for_checkpointing(objective)
    objective.select(model, x["pixels"], y)
    accelerator.save_state(f"{out}/state")
    accelerator.wait_for_everyone()  # rank 0 writes the file that all ranks read
    results["drawn"] = [objective.select(model, x["pixels"], y)[0] for _ in range(2)]
    accelerator.load_state(f"{out}/state")
    results["drawn again"] = [objective.select(model, x["pixels"], y)[0] for _ in range(2)]
    torch.save(results, f"{out}/{rank}.pt")
    leave_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(worker, (str(out),), nprocs=2)
    return [torch.load(out / f"{rank}.pt") for rank in range(2)]


def assert_like(ranks, name, expected):
    for a, b, value in zip(ranks[0][name], ranks[1][name], expected, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, value, atol=1e-12, rtol=0)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_shards_are_those_of_the_whole_model(ranks, way):
    assert ranks[0]["types"] == {"DTensor"}
    model = net()
    one_loss(model, *data(), **WAYS[way]).backward()
    assert_like(ranks, way, values(model, grad=True))


@pytest.mark.parametrize("name", OTHERS)
def test_other_objectives_and_accumulated_batches(ranks, name):
    each = [other_gradients(name, net(), rank) for rank in range(2)]
    assert_like(ranks, name, [(a + b) / 2 for a, b in zip(*each, strict=True)])


@pytest.mark.parametrize("name", ["trained", "accelerate"])
def test_the_extra_line_trains_as_one_process_on_the_joined_batch(ranks, name):
    assert ranks[0]["wrapper"] == "DistributedDataParallel"
    model = net()
    train(model, *data())
    assert_like(ranks, name, values(model))


@pytest.mark.parametrize("wrapper", ["shards", "accelerate"])
def test_m_1_equals_the_loop_without_it(ranks, wrapper):
    for found in ranks:
        for mine, plain in zip(found[f"{wrapper}, m = 1"], found[f"{wrapper}, m = 0"], strict=True):
            assert torch.equal(mine, plain)


def test_accelerate_restores_the_draws_of_every_rank(ranks):
    for found in ranks:
        assert torch.equal(torch.stack(found["drawn"]), torch.stack(found["drawn again"]))
    first, second = ((found["drawn"][0] - part(rank)[0]["pixels"]) for rank, found in enumerate(ranks))
    assert not torch.allclose(first, second)


def test_perturbations_inside_a_sharded_model(ranks):
    """The mean of the two ranks' gradients, each with its draws, computed in one process."""
    model = net()
    noise = noisy_net(model)
    for rank in range(2):
        x, y = part(rank)
        objective = mu.MaxUp(noise, m=3, generator=torch.Generator().manual_seed(rank))
        (objective(model, x["pixels"], y) / 2).backward()
    assert_like(ranks, "in the model", values(model, grad=True))


def test_scoring_shards_leaves_no_trace(ranks):
    assert [r["tracked"] for r in ranks] == [3, 3]
    assert max(r["replay error"] for r in ranks) < 1e-12

"""What a wide pass does when the model, its random numbers or the batch change."""

import copy
import gc
import pickle
import random

import numpy
import pytest
import torch
from torch import nn

from maxup import Gaussian, MaxUp
from tests.objectives.mlp import B, C, D, data, mlp


def test_a_wide_pass_updates_buffers_once():
    """The pass over one copy must not change the buffers."""

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x

    model = mlp(nn.Dropout(0.5), Counter())
    MaxUp(Gaussian(0.1), m=3, strategy="retain")(model, *data())
    assert model[1][2].calls == 1


@pytest.mark.filterwarnings("ignore:all 4 copies")
@pytest.mark.parametrize("settings", [{"chunk_size": 4}, {"strategy": "retain"}], ids=str)
@pytest.mark.parametrize("change", ["rate", "mode", "model"])
def test_dropout_that_starts_later_is_shared_too(settings, change):
    model, (x, y) = mlp(nn.Dropout(0.0 if change == "rate" else 0.5)), data()
    if change == "mode":
        model[0].eval()
    objective = MaxUp(Gaussian(0), m=4, **settings)
    if change == "model":
        objective(mlp(nn.Identity()), x, y)
    else:
        objective(model, x, y)
    model.train()
    model[0][2].p = 0.5
    report = objective.run(model, x, y).report
    assert report.wins == [B, 0, 0, 0]
    assert report.replay_error < 1e-12


@pytest.mark.parametrize("source", ["numpy", "Python"])
@pytest.mark.parametrize("settings", [{"chunk_size": 4}, {"strategy": "retain"}], ids=str)
def test_masks_from_other_random_states_raise(source, settings):
    class Mask(nn.Module):
        def forward(self, x):
            if source == "numpy":
                return x * torch.from_numpy(numpy.random.rand(*x.shape))
            return x * torch.tensor([[random.random() for _ in row] for row in x], dtype=x.dtype)

    with pytest.raises(ValueError, match=r"drew random numbers in a pass over . copies that the copies cannot share"):
        MaxUp(Gaussian(0.1), m=4, **settings)(mlp(Mask()), *data())


def test_a_decision_per_pass_from_another_random_state_is_shared():
    class Skip(nn.Module):
        def forward(self, x):
            return x if random.random() < 0.5 else -x

    report = MaxUp(Gaussian(0.1), m=4, chunk_size=4).run(mlp(Skip()), *data()).report
    assert report.replay_error < 1e-12


def test_masks_that_are_not_drawn_in_every_step_raise_when_they_are():
    class Mask(nn.Module):
        def forward(self, x):
            return x if numpy.random.rand() < 0.5 else x * torch.from_numpy(numpy.random.rand(*x.shape))

    model, objective = mlp(Mask()), MaxUp(Gaussian(0.1), m=4, chunk_size=4)
    with pytest.raises(ValueError, match="the copies cannot share"):  # noqa: PT012
        for seed in range(1, 10):
            numpy.random.seed(seed)
            assert objective.run(model, *data()).report.replay_error < 1e-12


def test_a_compiled_model_stays_compiled():
    """A dispatch mode would make dynamo fall back to eager execution."""
    runs = []

    def backend(graph, inputs):
        return lambda *args: runs.append(1) or graph(*args)

    model = torch.compile(nn.Sequential(nn.Linear(D, D), nn.Linear(D, C)).double(), backend=backend)
    objective = MaxUp(Gaussian(0.3), m=4, chunk_size=4)
    for _ in range(2):
        runs.clear()
        objective(model, *data()).backward()
        assert runs
    dropping = torch.compile(mlp(nn.Dropout(0.5)), backend="eager")
    with pytest.raises(ValueError, match=r"a compiled model draws random numbers, .* use chunk_size=1"):
        MaxUp(Gaussian(0.3), m=4, chunk_size=4)(dropping, *data())


def test_a_failed_wide_pass_can_be_repeated():
    model, (x, y) = mlp(nn.Identity()), data()
    fail = [False, True]
    handle = model.register_forward_hook(lambda *_: 1 / 0 if fail and fail.pop(0) else None)
    objective = MaxUp(Gaussian(0.3), m=4, chunk_size=4)
    with pytest.raises(ZeroDivisionError):
        objective(model, x, y)
    handle.remove()
    torch.rand(3)
    objective(model, x, y)


def test_an_objective_can_be_pickled_after_a_wide_pass():
    objective, (x, y) = MaxUp(Gaussian(0.3), m=4, chunk_size=4, generator=torch.Generator().manual_seed(0)), data()
    model = mlp(nn.Dropout(0.5))
    objective(model, x, y)
    again = copy.deepcopy(objective)
    assert again.chunk_size == 4
    assert objective._wide.known
    assert pickle.loads(pickle.dumps(objective._wide)).known == {}


def test_a_deleted_model_is_forgotten():
    objective, model = MaxUp(Gaussian(0.3), m=4, chunk_size=4), mlp(nn.Dropout(0.5))
    objective(model, *data())
    assert len(objective._wide.known) == 1
    del model
    gc.collect()
    assert not objective._wide.known


class LayerDrop(nn.Module):
    """Skips layers with dropout at random, so that every step draws other random numbers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(D, D), nn.Dropout(0.5)) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x if torch.rand(()) < 0.3 else layer(x)
        return x


class Noise(nn.Module):
    """Noise with a schedule."""

    sigma = 0.0

    def forward(self, x):
        return x + self.sigma * torch.randn_like(x) if self.sigma else x


def losses(model, change, x=None, **settings):
    """The losses of the copies in 20 steps. `change(step)` changes the model before each step."""
    torch.manual_seed(0)
    objective, found = MaxUp(Gaussian(0.3), m=4, generator=torch.Generator().manual_seed(1), **settings), []
    for step in range(20):
        change(step)
        worst = objective.run(model, data()[0] if x is None else x, data()[1]).worst
        found.append(torch.stack([worst.losses[i] for i in range(4)]))
    return torch.stack(found)


@pytest.mark.parametrize("layer", [LayerDrop(), Noise()], ids=["LayerDrop", "Noise"])
def test_random_numbers_that_differ_between_steps_are_shared(layer):
    model = mlp(layer.double())

    def change(step):
        layer.sigma = 0.1 * (step // 3 % 2)

    torch.testing.assert_close(losses(model, change, chunk_size=4), losses(model, change))


class Unpack(nn.Module):
    """Takes x from a dict or a tuple."""

    def forward(self, x):
        return x["x"] if isinstance(x, dict) else x[0]


@pytest.mark.parametrize("x", [{"x": data()[0]}, (data()[0],)], ids=["dict", "tuple"])
def test_random_numbers_that_differ_between_steps_are_shared_for_any_input(x):
    model = nn.Sequential(Unpack(), mlp(LayerDrop().double()))
    torch.testing.assert_close(losses(model, print, x, chunk_size=4), losses(model, print, x))


def test_the_modes_of_modules_that_forward_calls_count():
    body, head = nn.Linear(D, D).double(), nn.Sequential(nn.Dropout(0.5), nn.Linear(D, C).double())

    def change(step):
        head.train(step // 3 % 2 == 1)

    def forward(model, x):
        return head(model(x))

    found = losses(body, change, chunk_size=4, forward=forward)
    torch.testing.assert_close(found, losses(body, change, forward=forward))

"""Invalid input raises a one-sentence error and changes nothing."""

import copy
import random

import numpy
import pytest
import torch
from torch import nn

import maxup as mu
from tests.tiny import CLASSES, B, batch, batch_norm_net, generator, net, soft


class Doubling:
    def draw(self, batch, generator):
        return torch.zeros(len(batch[0]))

    def apply(self, batch, draw):
        return batch[0].repeat(2, 1, 1, 1), batch[1].repeat(2)


def nan_inside(x):
    x = x.clone()
    x[2, 0, 3, 3] = float("nan")
    return x


X, Y = batch()
BAD_BATCHES = {
    "empty batch": (X[:0], Y[:0], "the batch is empty"),
    "different lengths": (X, Y[:4], "x holds 6 examples, but another tensor of x or y holds 4"),
    "labels too high": (X, Y + 3, "labels range from . to ., but the model has 4 outputs, 0 to 3"),
    "labels too low": (X, Y - 1, "labels range from -1"),
    "NaN in x": (nan_inside(X), Y, r"x holds NaN in a tensor of shape \(6, 3, 8, 8\)"),
    "no tensors": ("text", Y, "x is a str without tensors"),
    "x None": (None, Y, "x is a NoneType without tensors"),
    "y a list": (X, [0] * B, "y is a list, but the default loss expects a tensor"),
    "y two-dimensional": (X, Y[:, None], r"targets have shape \(\d+, 1\)"),
    "y float": (X, Y.double(), r"y is torch\.float64 of shape \(\d+,\), but class ids .* use y\.long\(\)"),
    "dict without forward": ({"pixels": X, "more": X}, Y, r"keys \['pixels', 'more'\], .* pass forward="),
    "probabilities of other classes": (X, soft(Y)[:, :3], r"targets of shape \(\d+, 3\) are not probabilities"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
@pytest.mark.parametrize("call", ["select", "one call", "retain"])
def test_bad_batches(name, call):
    x, y, message = BAD_BATCHES[name]
    objective = mu.MaxUp(
        mu.Gaussian(0.1), m=3, strategy="retain" if call == "retain" else "recompute", generator=generator()
    )
    model, before = net(), objective.generator.get_state()
    with pytest.raises((ValueError, TypeError), match=message) as error:
        objective.select(model, x, y) if call == "select" else objective(model, x, y)
    assert "\n" not in str(error.value)
    assert torch.equal(before, objective.generator.get_state())
    assert objective.step == 0
    assert all(p.grad is None for p in model.parameters())


BAD_PARTS = {
    "scalar loss": ({"loss_fn": lambda o, t: nn.functional.cross_entropy(o, t)}, r"the loss returned shape \(\) for 6"),
    "loss by class": ({"loss_fn": lambda o, t: o}, r"the loss returned shape \(6, 4\) for 6 examples"),
    "loss a number": ({"loss_fn": lambda o, t: 1.0}, "the loss returned a float"),
    "output not a tensor": ({"forward": lambda model, x: {"logits": model(x)}}, "the model returned a dict"),
    "output of three dimensions": ({"forward": lambda model, x: model(x)[..., None]}, r"returned shape \(6, 4, 1\)"),
    "output of half the batch": (
        {"forward": lambda model, x: model(x)[:3]},
        r"returned shape \(3, 4\) for targets of shape \(6,\)",
    ),
    "perturbation changes the batch size": ({"perturbation": Doubling()}, "turned 6 examples into 12"),
}


@pytest.mark.parametrize("name", BAD_PARTS)
def test_bad_losses_outputs_and_perturbations(name):
    settings, message = BAD_PARTS[name]
    objective = mu.MaxUp(**{"perturbation": mu.Gaussian(0.1), "m": 3, "generator": generator(), **settings})
    before = objective.generator.get_state()
    with pytest.raises((ValueError, TypeError), match=message):
        objective.select(net(), X, Y)
    assert torch.equal(before, objective.generator.get_state())
    assert objective.step == 0


@pytest.mark.parametrize("m", [0, -1, 2.5, "4", True, None])
def test_bad_m(m):
    with pytest.raises(ValueError, match="m must be a whole number, 1 or more"):
        mu.MaxUp(mu.Gaussian(0.1), m=m)
    with pytest.raises(ValueError, match="m must be a whole number, 1 or more"):
        mu.MaxUp(mu.Gaussian(0.1), m=lambda step: m).select(net(), X, Y)


BAD_SETTINGS = {
    "unknown norm": ({"norm": "layer"}, "norm='layer' is unknown; choose 'batch' or 'running'"),
    "unknown strategy": ({"strategy": "both"}, "strategy='both' is unknown"),
    "unknown score": ({"score": "top"}, "score='top' is unknown"),
    "chunk zero": ({"chunk_size": 0}, "chunk_size=0"),
    "double precision": ({"dtype": torch.float64}, r"dtype=torch\.float64 is invalid; use torch\.float32"),
    "retain with chunk": ({"strategy": "retain", "chunk_size": 2}, "chunk_size=2 needs strategy='recompute'"),
    "retain with norm": ({"strategy": "retain", "norm": "running"}, "norm='running' needs strategy='recompute'"),
    "retain with dtype": (
        {"strategy": "retain", "dtype": torch.bfloat16},
        r"dtype=torch\.bfloat16 needs strategy='recompute'",
    ),
    "kl with a loss": ({"score": "kl", "loss_fn": lambda o, t: o[:, 0]}, "use score='loss' with a custom loss_fn"),
}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_settings_that_contradict_each_other(name):
    settings, message = BAD_SETTINGS[name]
    with pytest.raises(ValueError, match=message):
        mu.MaxUp(mu.Gaussian(0.1), **settings)


def test_settings_that_do_not_fit_the_model_or_the_call():
    with pytest.raises(ValueError, match="with strategy='retain', BatchNorm would normalize several copies"):
        mu.MaxUp(mu.Gaussian(0.1), strategy="retain")(batch_norm_net(), X, Y)
    with pytest.raises(ValueError, match="with chunk_size=2, BatchNorm would normalize several copies as one batch"):
        mu.MaxUp(mu.Gaussian(0.1), chunk_size=2).select(batch_norm_net(), X, Y)
    mu.MaxUp(mu.Gaussian(0.1), chunk_size=2, norm="running").select(batch_norm_net(), X, Y)
    untracked = batch_norm_net()
    untracked[1] = nn.BatchNorm2d(5, track_running_stats=False, dtype=torch.float64)
    with pytest.raises(ValueError, match="with chunk_size=2, BatchNorm would normalize several copies as one batch"):
        mu.MaxUp(mu.Gaussian(0.1), chunk_size=2).select(untracked.eval(), X, Y)
    with pytest.raises(ValueError, match="with chunk_size=2, BatchNorm would normalize several copies as one batch"):
        mu.MaxUp(mu.Gaussian(0.1), chunk_size=2, norm="running").select(untracked, X, Y)
    mu.MaxUp(mu.Gaussian(0.1), strategy="retain")(batch_norm_net().eval(), X, Y)
    with pytest.raises(ValueError, match="only, not with select"):
        mu.MaxUp(mu.Gaussian(0.1), strategy="retain").select(net(), X, Y)


def test_a_perturbation_that_ignores_the_generator():
    """Its copies would all be the same, because the global random state is restored before each."""

    class Careless:
        def __init__(self, stream, where):
            self.stream, self.where = stream, where

        def draw(self, batch, generator):
            return torch.full((len(batch[0]), 1, 1, 1), self.stream() if self.where == "draw" else 1.0)

        def apply(self, batch, draw):
            return batch[0] * draw * (self.stream() if self.where == "apply" else 1.0), batch[1]

    for stream in (lambda: float(torch.rand(())), random.random, lambda: float(numpy.random.rand())):
        for where in ("draw", "apply"):
            model, before = net(), torch.get_rng_state()
            with pytest.raises(ValueError, match=rf"Careless\.{where} drew from a global random state"):
                mu.MaxUp(Careless(stream, where), m=3).select(model, X, Y)
            assert torch.equal(torch.get_rng_state(), before)


def test_a_perturbation_that_writes_into_the_batch():
    class InPlace(mu.Gaussian):
        def apply(self, batch, draw):
            return batch[0].add_(draw[0]), batch[1]

    with pytest.raises(ValueError, match=r"InPlace\.apply changed the batch in place"):
        mu.MaxUp(InPlace(0.1), m=2).select(net(), X.clone(), Y)


def test_a_perturbation_attached_to_another_model():
    noise, model = mu.FeatureNoise(0.1, layer="1"), net()
    noise.attach(model)
    for strategy in ("recompute", "retain"):
        with pytest.raises(ValueError, match="attached to another model"):
            mu.MaxUp(noise, m=2, strategy=strategy)(copy.deepcopy(model), X, Y)


@pytest.mark.parametrize("model", [None, lambda x: x, (nn.Identity(), nn.Identity())])
def test_a_model_that_is_not_a_module(model):
    with pytest.raises(TypeError, match=r"not an nn\.Module"):
        mu.MaxUp(mu.Gaussian(0.1), m=2).select(model, X, Y)
    with pytest.raises(TypeError, match=r"not an nn\.Module"):
        mu.theory.penalty(model, X, Y, m=2, sigma=0.1)


@pytest.mark.parametrize("y", [torch.rand(B, CLASSES), torch.eye(B, CLASSES) * 2, -soft(Y)])
def test_targets_of_another_loss_are_not_taken_for_probabilities(y):
    with pytest.raises(ValueError, match="pass your loss as loss_fn="):
        mu.MaxUp(mu.Gaussian(0.1), m=2).select(net(), X, y.double())


def test_regression_without_a_loss():
    with pytest.raises(ValueError, match="at least 2 classes; pass your loss as loss_fn="):
        mu.MaxUp(mu.Gaussian(0.1), m=2).select(nn.Linear(3, 1), torch.rand(6, 3), torch.rand(6, 1))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_labels_of_any_integer_type(dtype):
    y = torch.tensor([0, 1, 0, 1, 1, 0])
    expected = mu.MaxUp(mu.Gaussian(0.1), m=2, generator=generator())(net(), X, y)
    assert torch.equal(mu.MaxUp(mu.Gaussian(0.1), m=2, generator=generator())(net(), X, y.to(dtype)), expected)


def test_small_mistakes_get_a_message():
    with pytest.raises(TypeError, match=r"Gaussian is a class; pass an instance, Gaussian\(\.\.\.\)"):
        mu.MaxUp(mu.Gaussian)
    with pytest.raises(TypeError, match=r"generator=3: pass a torch\.Generator"):
        mu.MaxUp(mu.Gaussian(0.1), generator=3)
    with pytest.raises(ValueError, match="not the state_dict of an objective"):
        mu.MaxUp(mu.Gaussian(0.1)).load_state_dict({})
    with pytest.raises(ValueError, match=r"for targets of shape \(\)"):
        mu.MaxUp(mu.Gaussian(0.1), m=2).select(net(), X, torch.tensor(1))
    assert mu.MaxUp(mu.Gaussian(0.1), m=numpy.int64(3)).m == 3

    class OnlyX(mu.Gaussian):
        def apply(self, batch, draw):
            return super().apply(batch, draw)[0]

    with pytest.raises(TypeError, match=r"must return the pair \(x, y\)"):
        mu.MaxUp(OnlyX(0.1), m=2).select(net(), X, Y)


class Unchanged:
    """Returns the images unchanged: uint8, which no layer accepts."""

    def draw(self, batch, generator):
        return torch.zeros(len(batch[0]))

    def apply(self, batch, draw):
        return batch


@pytest.mark.parametrize("perturbation", [Unchanged(), mu.Cutout(2), mu.Gaussian(0.1)])
@pytest.mark.parametrize("model", [net(), nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), batch_norm_net()])
def test_uint8_images(perturbation, model):
    with pytest.raises(TypeError, match=r"x holds torch\.uint8.* as in x\.float\(\) / 255") as error:
        mu.MaxUp(perturbation, m=2).select(model, (255 * X).to(torch.uint8), Y)
    assert "\n" not in str(error.value)


def test_a_model_that_takes_uint8_and_one_that_takes_a_dict():
    class Scaled(nn.Sequential):
        def forward(self, x):
            return super().forward((x["pixels"] if isinstance(x, dict) else x) / 255)

    x, model = (255 * X).to(torch.uint8), Scaled(*net().float())
    mu.MaxUp(mu.Cutout(2), m=2).select(model, x, Y)
    mu.MaxUp(mu.Cutout(2, key="pixels"), m=2).select(model, {"pixels": x}, Y)
    with pytest.raises(TypeError, match=r"keys \['other'\].* \('pixels'\); pass forward="):
        mu.MaxUp(mu.Cutout(2, key="other"), m=2).select(model, {"other": x}, Y)


def test_a_failing_model_keeps_its_error():
    class Failing(nn.Module):
        def forward(self, x):
            raise RuntimeError("mine")

    for x in (X, {"pixels": X}):
        with pytest.raises(RuntimeError, match=r"^mine$"):
            mu.MaxUp(mu.Gaussian(0.1), m=2).select(Failing(), x, Y)


@pytest.mark.parametrize("several", [[mu.Cutout(2), mu.Gaussian(0.1)], (mu.Cutout(2),)])
def test_a_list_of_perturbations(several):
    for make in (mu.MaxUp, mu.Average, mu.Compose):
        with pytest.raises(TypeError, match=r"is not a perturbation; use Compose\(a, b\)"):
            make(several)


BAD_MAPS = {
    "classes last": (torch.rand(2, 5, 9), torch.zeros(2, 5).long(), r"pass loss_fn=maxup\.token_cross_entropy"),
    "float map": (torch.rand(2, 9, 3, 3), torch.zeros(2, 3, 3), r"use y\.long\(\)"),
    "map of another size": (torch.rand(2, 9, 3, 3), torch.zeros(2, 3, 4).long(), r"pass class ids \(2, 3, 3\)"),
    "ignored by 255": (torch.rand(2, 9, 3, 3), torch.full((2, 3, 3), 255), "use -100 for labels to ignore"),
    "map for one class": (torch.rand(2, 9), torch.zeros(2, 3, 3).long(), r"pass class ids \(2,\)"),
}


class Constant(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.output = nn.Parameter(output)

    def forward(self, x):
        return self.output


@pytest.mark.parametrize("name", BAD_MAPS)
def test_targets_of_maps_and_sequences(name):
    output, y, message = BAD_MAPS[name]
    with pytest.raises(ValueError, match=message):
        mu.MaxUp(mu.Gaussian(0.1), m=2).select(Constant(output), torch.rand(2, 3), y)


@pytest.mark.parametrize("loss", [mu.token_cross_entropy, mu.next_token_cross_entropy])
def test_targets_of_token_losses(loss):
    objective, x = mu.MaxUp(mu.Gaussian(0.1), m=2, loss_fn=loss), torch.rand(2, 3)
    for output, y in ((torch.rand(2, 9), torch.zeros(2).long()), (torch.rand(2, 5, 9), torch.zeros(2, 4).long())):
        with pytest.raises(ValueError, match=r"this loss expects logits \(B, T, V\) and token ids \(B, T\)"):
            objective.select(Constant(output), x, y)
    with pytest.raises(ValueError, match=r"use y\.long\(\)"):
        objective.select(Constant(torch.rand(2, 5, 9)), x, torch.zeros(2, 5))
    with pytest.raises(ValueError, match="labels range from 9 to 9, but the model has 9 outputs"):
        objective.select(Constant(torch.rand(2, 5, 9)), x, torch.full((2, 5), 9))


def test_not_a_perturbation():
    with pytest.raises(TypeError, match=r"a function is not a perturbation: .* wrap an ordinary transform in"):
        mu.MaxUp(lambda x: x)


def test_cutmix_of_one_example_and_without_classes():
    with pytest.raises(ValueError, match="the batch has size 1"):
        mu.MaxUp(mu.CutMix(CLASSES)).select(net(), X[:1], Y[:1])
    with pytest.raises(ValueError, match="needs the number of classes"):
        mu.MaxUp(mu.CutMix()).select(net(), X, Y)


def test_infinities_are_not_nan():
    """Attention masks hold minus infinity; both signs at once sum to NaN."""
    x = X.clone()
    x[0, 0, 0, 0], x[0, 0, 0, 1] = float("inf"), -float("inf")
    with pytest.raises(ValueError, match="holds NaN"):
        mu.MaxUp(mu.Gaussian(0.1), m=2).select(net(), nan_inside(x), Y)
    mu.MaxUp(mu.Gaussian(0.1), m=2).select(net(), x, Y)


def test_a_generator_on_another_device():
    objective = mu.MaxUp(mu.Gaussian(0.1))
    model = nn.Linear(3, 2, device="meta")
    objective.generator = generator()
    with pytest.raises(ValueError, match="the generator is on cpu, but the batch is on meta"):
        objective(model, torch.zeros(2, 3, device="meta"), torch.zeros(2, dtype=torch.long, device="meta"))


def test_a_batch_on_another_device_than_the_first():
    objective, model = mu.MaxUp(mu.Gaussian(0.1)), nn.Linear(3, 2)
    objective(model, torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="on the device of the first batch, so create a new objective for another"):
        objective(model.to("meta"), torch.zeros(2, 3, device="meta"), torch.zeros(2, dtype=torch.long, device="meta"))


def test_warnings_point_at_the_line_that_called_the_library():
    model, (x, y) = net(), batch()
    with pytest.warns(mu.MaxUpWarning, match="same loss") as caught:
        mu.MaxUp(mu.Gaussian(0), m=2).select(model, x, y)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mu.Compose([mu.Gaussian(1), mu.Gaussian(2)]), r"use Compose\(a, b\)"),
        (lambda: mu.MaxUp(mu.Gaussian(1), loss_fn="mse"), "loss_fn='mse': loss_fn must be a function"),
        (lambda: mu.MaxUp(mu.Gaussian(1), forward=3), "forward=3: forward must be a function"),
        (lambda: mu.CutMix(3)(batch()[0], torch.rand(len(batch()[0]))), r"use y.long\(\) for class ids"),
        (lambda: mu.MaxUp(mu.Gaussian(1), m=2)(net(), (batch()[0], batch()[0]), batch()[1]), r"model\(\*x\)"),
    ],
)
def test_mistakes_of_a_newcomer(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_a_draw_without_a_batch_dimension():
    class Shift:
        def draw(self, batch, generator):
            return torch.rand((), generator=generator)

        def apply(self, batch, draw):
            return batch[0] + draw, batch[1]

    with pytest.raises(TypeError, match="every leaf must be a tensor with batch size 6 first"):
        mu.MaxUp(Shift(), m=2).select(net(), *batch())


def test_a_broadcast_loss_is_named():
    with pytest.raises(ValueError, match=r"shape \(8, 8\) for 8 examples, so output and target were broadcast"):
        mu.MaxUp(mu.Gaussian(0.1), loss_fn=lambda o, t: (o - t) ** 2)(nn.Linear(5, 1), torch.rand(8, 5), torch.rand(8))


def test_one_hot_labels_of_integers_are_named():
    y = nn.functional.one_hot(torch.arange(8) % 3)
    with pytest.raises(ValueError, match=r"y is torch\.int64 of shape \(8, 3\), as the output; use y\.float\(\)"):
        mu.MaxUp(mu.Gaussian(0.1))(nn.Linear(5, 3), torch.rand(8, 5), y)

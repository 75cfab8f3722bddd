"""Inputs from what a user's function returns. tests/cli/test_doctor.py tests the command."""

import pytest
import torch

import maxup as mu
from maxup.diagnostics import Inputs, make_inputs
from maxup.errors import InputsError
from maxup.objectives.base import call_model, cross_entropy
from tests.tiny import batch, net, text_net, tokens


def test_a_dict_and_a_tuple_give_the_same_inputs():
    model, pair, noise = net(), batch(), mu.Gaussian(0.2)
    loss = lambda output, y: cross_entropy(output, y)  # noqa: E731
    for inputs in (
        make_inputs((model, pair, loss, noise)),
        make_inputs({"perturbation": noise, "batch": list(pair), "loss_fn": loss, "model": model, "forward": None}),
    ):
        assert (inputs.model, inputs.loss_fn, inputs.perturbation, inputs.forward) == (model, loss, noise, call_model)
        assert all(a is b for a, b in zip(inputs.batch, pair, strict=True))


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_the_default_noise_is_a_tenth_of_the_standard_deviation(scale):
    x, y = batch()
    inputs = Inputs(net(), (scale * x, y))
    assert inputs.perturbation.sigma == pytest.approx(0.1 * scale * float(x.float().std(correction=0)), rel=5e-3)


def test_constant_inputs_get_noise_too():
    x, y = batch()
    assert Inputs(net(), (torch.ones_like(x), y)).perturbation.sigma == 0.1


@pytest.mark.parametrize(
    ("value", "words"), [(float("nan"), "x holds NaN"), (float("inf"), "x holds values that are infinite")]
)
def test_a_batch_that_is_not_finite_is_refused(value, words):
    x, y = batch()
    x = x.clone()
    x.view(-1)[3] = value
    with pytest.raises(InputsError, match=words) as caught:
        Inputs(net(), (x, y))
    assert "Gaussian" not in str(caught.value)
    assert "clean the data first" in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned a NoneType; it must return a dict with the keys model and batch"),
        ((net(),), "returned 1 values"),
        ((1, 2, 3, 4, 5, 6), "returned 6 values"),
        ({"model": net()}, "the returned dict has no 'batch'"),
        ({"batch": batch()}, "the returned dict has no 'model'"),
        ({"model": net(), "batch": batch(), "los": None}, "did you mean 'loss_fn'"),
        ({"model": net(), "batch": batch()[0]}, "batch is a Tensor; it must be the pair"),
        ({"model": net(), "batch": batch(), "loss_fn": 3}, "loss_fn is an int; it must be a function"),
        ({"model": print, "batch": batch()}, "nn.Module"),
        ({"model": net(), "batch": batch(), "perturbation": 3}, "perturbation"),
        ((text_net(), tokens()), "x has no floating-point tensor to add noise to"),
    ],
)
def test_invalid_inputs_are_refused_in_one_line(returned, message):
    with pytest.raises(InputsError) as caught:
        make_inputs(returned)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)

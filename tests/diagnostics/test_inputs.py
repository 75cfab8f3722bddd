"""What a user's function returns, made into a case; through the command in tests/cli/test_doctor.py."""

import pytest
import torch

import maxup as mu
from maxup.diagnostics.inputs import Inputs, make_inputs
from maxup.errors import InputsError
from maxup.objectives.base import call, cross_entropy
from tests.tiny import batch, net, text_net, tokens


def test_a_dict_and_a_tuple_say_the_same():
    model, pair, noise = net(), batch(), mu.Gaussian(0.2)
    loss = lambda output, y: cross_entropy(output, y)  # noqa: E731
    for case in (
        make_inputs((model, pair, loss, noise)),
        make_inputs({"perturbation": noise, "batch": list(pair), "loss_fn": loss, "model": model, "forward": None}),
    ):
        assert (case.model, case.loss_fn, case.perturbation, case.forward) == (model, loss, noise, call)
        assert all(a is b for a, b in zip(case.batch, pair, strict=True))


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_the_default_is_noise_of_a_tenth_of_the_deviation(scale):
    x, y = batch()
    case = Inputs(net(), (scale * x, y))
    assert case.perturbation.sigma == pytest.approx(0.1 * scale * float(x.float().std(correction=0)), rel=1e-5)


def test_constant_inputs_get_some_noise_too():
    x, y = batch()
    assert Inputs(net(), (torch.ones_like(x), y)).perturbation.sigma == 0.1


@pytest.mark.parametrize(("value", "words"), [(float("nan"), "x holds NaN"), (float("inf"), "x holds infinite values")])
def test_a_batch_that_is_not_finite_is_what_is_blamed(value, words):
    x, y = batch()
    x = x.clone()
    x.view(-1)[3] = value
    with pytest.raises(InputsError, match=words) as caught:
        Inputs(net(), (x, y))
    assert "Gaussian" not in str(caught.value)
    assert "clean the data first" in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, "NoneType; it must return a dict with model and batch"),
        ((net(),), "returned 1 things"),
        ((1, 2, 3, 4, 5, 6), "returned 6 things"),
        ({"model": net()}, "returned no batch"),
        ({"batch": batch()}, "returned no model"),
        ({"model": net(), "batch": batch(), "los": None}, "did you mean 'loss_fn'"),
        ({"model": net(), "batch": batch()[0]}, "batch is a Tensor; it must be the pair"),
        ({"model": net(), "batch": batch(), "loss_fn": 3}, "loss_fn is a int; it must be a function"),
        ({"model": print, "batch": batch()}, "nn.Module"),
        ({"model": net(), "batch": batch(), "perturbation": 3}, "perturbation"),
        ((text_net(), tokens()), "x holds no floating tensor to add noise to"),
    ],
)
def test_what_cannot_be_examined_gets_a_sentence(returned, sentence):
    with pytest.raises(InputsError) as caught:
        make_inputs(returned)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxup.errors import RecipeError
from maxup.lab.recipes.load import recipe_from
from maxup.lab.tasks.vision import Vision
from maxup.lab.train.loop import train
from maxup.lab.train.runs import open_run
from maxup.lab.train.sam import sam_backward, worst_weights

RECIPE = {
    "data": {"name": "digits", "train_size": 200},
    "model": {"name": "conv", "args": {"width": 8}},
    "perturb": [{"name": "cutout", "length": 3}],
    "objective": {"name": "maxup", "m": 3, "warmup": 0},
    "optim": {"lr": 0.05, "sam": 0.1, "schedule": "constant"},
    "epochs": 1,
    "batch_size": 50,
}


def test_the_gradient_is_that_at_the_worst_weights_near():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x, y = torch.randn(5, 6, dtype=torch.double), torch.randint(3, (5,))
    weights = [p.detach().clone() for p in model.parameters()]
    loss = sam_backward(model, lambda: F.cross_entropy(model(x), y), torch.Tensor.backward, rho=0.3)

    # By hand, with functions of the weights.
    def at(values):
        names = [name for name, _ in model.named_parameters()]
        return F.cross_entropy(
            torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,)), y
        )  # fmt: skip

    grads = torch.func.grad(lambda values: at(values))(weights)
    norm = sum(g.square().sum() for g in grads).sqrt()
    there = [w + 0.3 * g / norm for w, g in zip(weights, grads, strict=True)]
    expected = torch.func.grad(lambda values: at(values))(there)
    for p, before, gradient in zip(model.parameters(), weights, expected, strict=True):
        assert torch.equal(p, before)
        torch.testing.assert_close(p.grad, gradient)
    torch.testing.assert_close(loss, at(weights))


def test_batch_norm_records_the_first_pass_only():
    model, x = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), torch.randn(5, 6)
    once = copy.deepcopy(model)
    once(x)
    sam_backward(model, lambda: model(x).square().mean(), torch.Tensor.backward, rho=5.0)
    for name, buffer in once.named_buffers():
        assert torch.equal(dict(model.named_buffers())[name], buffer), name


def test_both_passes_of_a_step_see_the_same_dropout_masks_and_the_next_step_others():
    model, masks = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5)), []
    model[1].register_forward_hook(lambda *seen: masks.append(seen[2] != 0))
    x, twin = torch.randn(5, 6), nn.Dropout(0.5)
    torch.manual_seed(0)
    for _ in range(2):
        sam_backward(model, lambda: model(x).square().mean(), torch.torch.Tensor.backward, rho=0.1)
        model.zero_grad()
    after = torch.get_rng_state()
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[2], masks[3])
    assert not torch.equal(masks[0], masks[2])
    torch.manual_seed(0)
    for _ in range(2):
        twin(torch.ones(5, 64))
    assert torch.equal(after, torch.get_rng_state())  # as if each step had one pass


def test_weights_come_back_when_the_second_pass_fails():
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    before = model.weight.detach().clone()

    def fail():
        with worst_weights(model, 0.5):
            assert not torch.equal(model.weight, before)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(model.weight, before)


def test_both_passes_see_the_copies_that_maxup_chose():
    recipe = recipe_from(RECIPE)
    task, twin = (Vision(recipe, torch.device("cpu")) for _ in range(2))
    twin.model.load_state_dict(task.model.state_dict())
    batch = next(iter(task.loader))
    expected = twin.step(twin.model, batch).loss  # the same streams, so the same copies
    with task.repeatable(task.model, batch) as again:
        torch.testing.assert_close(again(), expected)
        torch.testing.assert_close(again(), expected)
    assert task.objective.step == 1


def test_a_recipe_steps_down_the_gradient_at_the_worst_weights_near(tmp_path):
    optim = RECIPE["optim"] | {"momentum": 0.0, "weight_decay": 0.0}
    recipe = recipe_from(RECIPE | {"data": {"name": "digits", "train_size": 50}, "optim": optim})  # one step
    torch.manual_seed(recipe.seed)
    twin = Vision(recipe, torch.device("cpu"))
    weights = list(twin.model.parameters())
    before = [w.detach().clone() for w in weights]
    with twin.repeatable(twin.model, next(iter(twin.loader))) as loss, torch.no_grad():
        for rate in (0.1, -0.05):  # up by rho in all, then down by the learning rate
            with torch.enable_grad():
                gradients = torch.autograd.grad(loss(), weights)
            length = sum(g.square().sum() for g in gradients).sqrt() if rate == 0.1 else 1
            for w, b, g in zip(weights, before, gradients, strict=True):
                w.copy_(b + rate * g / length)
    assert train(recipe, tmp_path / "sam", quiet=True)["steps"] == 1
    for found, wanted in zip(open_run(tmp_path / "sam").model.parameters(), weights, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [{"optim": {"sam": 0.1, "accumulate": 2}}, {"optim": {"sam": 0.1}, "precision": "fp16"}, {"optim": {"sam": -1}}],
)
def test_what_does_not_go_with_it_is_refused(changes):
    with pytest.raises(RecipeError, match=r"optim\.sam"):
        recipe_from(changes)


def test_other_objectives_are_refused():
    with pytest.raises(ValueError, match=r"optim\.sam goes with"):
        Vision(recipe_from(RECIPE | {"objective": {"name": "average"}}), torch.device("cpu"))


def test_the_first_parameter_may_be_a_number():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.linear = nn.Parameter(torch.ones(())), nn.Linear(3, 1)

        def forward(self, x):
            return self.scale * self.linear(x)

    model, x = Scaled(), torch.ones(4, 3)
    sam_backward(model, lambda: model(x).square().mean(), torch.Tensor.backward, rho=0.1)
    assert all(p.grad is not None for p in model.parameters())

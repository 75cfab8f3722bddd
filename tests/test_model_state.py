"""Models with all kinds of state: gradients equal a naive reference, or a warning names the state."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

import maxup as mu
from maxup import Gaussian, MaxUp
from maxup.isolation import eval_mode

B, D, C, M, SIGMA = 8, 5, 4, 4, 0.5


def data():
    g = torch.Generator().manual_seed(1)
    return torch.rand(B, D, generator=g, dtype=torch.double), torch.randint(C, (B,), generator=g)


def naive(model, x, y):
    """Forward all copies from the same state, and backpropagate the maximum through the graphs of all copies."""
    start, generator, losses = copy.deepcopy(model), torch.Generator().manual_seed(0), []
    state = torch.get_rng_state()
    for _ in range(M):
        clone = copy.deepcopy(start)
        for p, q in zip(clone.parameters(), model.parameters(), strict=True):
            p.data = q.data
        torch.set_rng_state(state)
        noisy = x + SIGMA * torch.empty_like(x).normal_(generator=generator)
        losses.append((clone, F.cross_entropy(clone(noisy), y, reduction="none")))
    values = torch.stack([loss for _, loss in losses])
    values.max(0).values.mean().backward()
    grads = [[p.grad for p in clone.parameters()] for clone, _ in losses]
    return values.argmax(0), [sum(g for g in same if g is not None) for same in zip(*grads, strict=True)]


class EMA(nn.Module):
    """Normalizes by a running mean that it updates first, in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.register_buffer("mean", torch.zeros(D, dtype=torch.double))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            new = 0.5 * self.mean + 0.5 * x.detach().mean(0) + 1
            if self.way == "in place":
                self.mean.copy_(new)
            elif self.way == "data":
                self.mean.data.copy_(new)
            elif self.way == "replaced":
                self.mean = new
            else:
                self.mean.data = new
            self.steps.data += 1
        return x - self.mean * self.steps


class GhostBatchNorm(nn.BatchNorm1d):
    """Normalizes the halves of the batch separately: a subclass with a custom forward."""

    def forward(self, x):
        return torch.cat([super(GhostBatchNorm, self).forward(half) for half in x.chunk(2)])


def count_up(module, args, output):
    module.running_mean.add_(1)


def sequential(*layers):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(D, D), *layers, nn.Tanh(), nn.Linear(D, C)).double()


def spectral(how):
    torch.manual_seed(3)
    return nn.Sequential(how(nn.Linear(D, D)), nn.Tanh(), how(nn.Linear(D, C))).double()


MODELS = {
    "linear": lambda: sequential(),
    "weight norm": lambda: spectral(parametrizations.weight_norm),
    "spectral norm": lambda: spectral(parametrizations.spectral_norm),
    "legacy spectral norm": lambda: spectral(nn.utils.spectral_norm),
    "orthogonal": lambda: spectral(parametrizations.orthogonal),
    "frozen EMA": lambda: sequential(EMA("data").eval()),
    "layer norm": lambda: sequential(nn.LayerNorm(D)),
    "instance norm": lambda: sequential(
        nn.Unflatten(1, (1, D)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten()
    ),
    "eval batch norm": lambda: sequential(nn.BatchNorm1d(D).eval()),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cached", [False, True])
def test_gradients_equal_the_naive_reference(name, cached):
    model, (x, y) = MODELS[name](), data()
    winner, gradients = naive(model, x, y)
    objective = MaxUp(Gaussian(SIGMA), m=M, generator=torch.Generator().manual_seed(0))
    with parametrize.cached() if cached else torch.enable_grad():
        outcome = objective.run(model, x, y)
        outcome.loss.backward()
    assert torch.equal(outcome.worst.copy, winner)
    for (which, p), gradient in zip(model.named_parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient, msg=which)


@pytest.mark.parametrize("way", ["in place", "data", "replaced", "data replaced"])
@pytest.mark.filterwarnings("ignore:all 4 copies", "ignore:the losses of the winners")
def test_every_copy_starts_from_the_same_buffers(way):
    model, (x, y) = sequential(EMA(way)), data()
    buffers = dict(model.named_buffers())
    report = MaxUp(Gaussian(0), m=M).run(model, x, y).report
    assert report.wins == [B, 0, 0, 0]
    assert report.replay_error == 0
    assert model[1].steps == 1
    plain = sequential(EMA(way))
    plain(x)
    for (name, now), then in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(now, then), name
        assert way == "replaced" or now is buffers[name]


@pytest.mark.parametrize("norm", ["batch", "running"])
@pytest.mark.parametrize("way", ["subclass", "instance", "hook"])
def test_batch_norm_with_a_custom_forward_is_restored(norm, way):
    layer = GhostBatchNorm(D) if way == "subclass" else nn.BatchNorm1d(D)
    if way == "hook":
        layer.register_forward_hook(count_up)
    if way == "instance":
        layer.forward = functools.partial(nn.BatchNorm1d.forward, layer)
    model, (x, y) = sequential(layer), data()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    MaxUp(Gaussian(SIGMA), m=M, norm=norm).select(model, x, y)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name


def test_expanded_sparse_inference_and_shared_buffers_are_restored():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(D, C, dtype=torch.double)
            self.register_buffer("expanded", torch.zeros(1, C, dtype=torch.double).expand(3, C))
            self.register_buffer("sparse", torch.eye(3).to_sparse())
            self.register_buffer("shared", self.expanded)
            with torch.inference_mode():
                self.register_buffer("cache", torch.zeros(C, dtype=torch.double))

        def forward(self, x):
            self.expanded.data[0] += 1
            with torch.inference_mode():
                self.cache.add_(1)
            return self.linear(x) + self.expanded[0].clone()

    model, (x, y) = Odd(), data()
    MaxUp(Gaussian(SIGMA), m=M).select(model, x, y)
    assert not model.expanded.any()
    assert not model.cache.any()


def test_a_graph_that_saved_a_buffer_can_still_be_backpropagated():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(D, dtype=torch.double))

        def forward(self, x):
            return x * self.scale

    model, (x, y) = sequential(Scale()), data()
    pending = F.cross_entropy(model(x), y)
    MaxUp(Gaussian(SIGMA), m=M).select(model, x, y)
    pending.backward()


@pytest.mark.filterwarnings("ignore:the losses of the winners")  # this loss mixes the batch
def test_buffers_of_the_loss_are_restored():
    class Focus(nn.Module):
        """Weights the losses by their running mean."""

        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.ones((), dtype=torch.double))

        def forward(self, output, target):
            losses = F.cross_entropy(output, target, reduction="none")
            self.mean.data.mul_(0.5).add_(0.5 * losses.detach().mean())
            return losses / self.mean

    loss, model, (x, y) = Focus(), sequential(), data()
    MaxUp(Gaussian(SIGMA), m=M, loss_fn=loss).select(model, x, y)
    assert loss.mean == 1
    MaxUp(Gaussian(SIGMA), m=M, loss_fn=functools.partial(loss.forward)).select(model, x, y)
    assert loss.mean == 1


class Momentum(nn.Module):
    """A key encoder that tracks the query encoder in every forward pass (MoCo)."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(D, C), nn.Linear(D, C)

    def forward(self, x):
        self.key.weight.data = 0.9 * self.key.weight.data + 0.1 * self.query.weight.data
        return self.query(x) + self.key(x).detach()


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(D, C), 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x)


class Late(nn.Module):
    """Creates a layer in the first call."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(D, C)

    def forward(self, x):
        if not hasattr(self, "norm"):
            self.norm = nn.BatchNorm1d(D).to(x)
        return self.linear(self.norm(x))


@pytest.mark.filterwarnings("ignore:the losses of the winners")
@pytest.mark.parametrize(
    ("model", "what"),
    [
        (Momentum, "parameter 'weight' of key"),
        (Remembering, "attribute 'calls' of Remembering"),
        (Late, "buffer 'running_mean' of norm"),
    ],
)
def test_state_that_cannot_be_restored_is_named_once(model, what):
    model, (x, y) = model().double(), data()
    objective = MaxUp(Gaussian(SIGMA), m=M)
    with pytest.warns(mu.MaxUpWarning, match=f"forward pass changed .*{what}"):
        objective.select(model, x, y)
    objective.select(model, x, y)  # warnings are errors here


@pytest.mark.parametrize("m", [1, 4])
def test_an_uninitialized_lazy_layer(m):
    model, (x, y) = nn.Sequential(nn.Linear(D, D), nn.LazyBatchNorm1d(), nn.Linear(D, C)).double(), data()
    objective = MaxUp(Gaussian(SIGMA), m=m)
    if m > 1:
        with pytest.raises(ValueError, match=r"uninitialized LazyBatchNorm1d; call model\(x\) once"):
            objective(model, x, y)
    model(x)
    objective(model, x, y).backward()


class LoRA(nn.Module):
    """Merges its update into the weight in eval mode and subtracts it in train mode, as loralib does."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(C, D), requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(2, D)), nn.Parameter(torch.randn(C, 2))
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * (self.b @ self.a).detach()
            self.merged = not mode
        return self

    def forward(self, x):
        update = 0 if self.merged else self.b @ self.a
        return F.linear(x.flatten(1), self.weight + update)


def test_modes_change_through_the_train_method():
    model = nn.Sequential(LoRA(), LoRA().eval())
    with eval_mode(model):
        assert [layer.merged for layer in model] == [True, True]
    assert [layer.merged for layer in model] == [False, True]
    assert [module.training for module in model.modules()] == [True, True, False]
    model.eval()
    model[1].train()
    with eval_mode(model):
        assert [layer.merged for layer in model] == [True, True]
    assert [layer.merged for layer in model] == [True, False]


def test_an_overridden_mode_is_respected_and_restored():
    class AlwaysOn(nn.Dropout):
        def train(self, mode=True):
            return super().train(True)

    model = nn.Sequential(AlwaysOn(), nn.Dropout())
    with eval_mode(model):
        assert [module.training for module in model.modules()] == [False, True, False]
    assert all(module.training for module in model.modules())


def test_lora_still_trains_after_a_smoothadv_step_and_certification():
    model = nn.Sequential(LoRA()).double()
    x, y = torch.rand(B, 1, 1, D, dtype=torch.double), data()[1]
    weight = model[0].weight.clone()
    mu.SmoothAdv(sigma=0.1, radius=0.2)(model, x, y).backward()
    assert all(p.grad.abs().sum() > 0 for p in (model[0].a, model[0].b))
    model.float()
    mu.Smooth(model, num_classes=C, sigma=0.5).certify(x[0].float(), n0=10, n=100, alpha=0.01, batch_size=50)
    assert not model[0].merged
    torch.testing.assert_close(model[0].weight.double(), weight, atol=1e-5, rtol=1e-5)


def test_smooth_uses_the_current_weights():
    """Like timm's LeViT, CachedBias drops its cache in `train()`; setting only flags would keep the old one."""
    model = CachedBias()
    smooth = mu.Smooth(model, num_classes=2, sigma=0.1)
    image = torch.zeros(1, 1, 1)
    assert smooth.predict(image, n=100, alpha=0.01, batch_size=50) == 0
    with torch.no_grad():
        model.bias.copy_(model.bias.flip(0))
    assert smooth.predict(image, n=100, alpha=0.01, batch_size=50) == 1


class CachedBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias, self.cache = nn.Parameter(torch.tensor([1.0, 0.0])), None

    def train(self, mode=True):
        if mode:
            self.cache = None
        return super().train(mode)

    def forward(self, x):
        if self.training:
            return x.flatten(1) * 0 + self.bias
        if self.cache is None:
            self.cache = self.bias.detach().clone()
        return x.flatten(1) * 0 + self.cache


class CountedLoss(nn.Module):
    """A loss that counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, output, target):
        self.calls += 1
        return F.cross_entropy(output, target, reduction="none")


def test_modules_that_a_loss_calls_are_found():
    class Trainer:
        def __init__(self):
            self.criterion = CountedLoss()

        def loss(self, output, target):
            return self.criterion(output, target)

    criterion, trainer, (x, y) = CountedLoss(), Trainer(), data()
    for loss in (lambda output, target: criterion(output, target), trainer.loss):
        MaxUp(Gaussian(SIGMA), m=M, loss_fn=loss).select(sequential(), x, y)
    assert criterion.calls == trainer.criterion.calls == 0


def test_a_layer_that_is_not_registered_is_named():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norms = nn.Linear(D, C), [nn.BatchNorm1d(D, dtype=torch.double)]

        def forward(self, x):
            return self.linear(self.norms[0](x))

    with pytest.warns(mu.MaxUpWarning) as caught:
        MaxUp(Gaussian(SIGMA), m=M).select(Hidden().double(), *data())
    assert any("attribute 'norms' of Hidden" in str(warning.message) for warning in caught)


def test_a_cache_that_the_first_pass_fills_is_fine():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.longest = nn.Linear(D, C), 0

        def forward(self, x):
            self.longest = max(self.longest, x.shape[1])
            return self.linear(x)

    MaxUp(Gaussian(SIGMA), m=M).select(Cached().double(), *data())  # warnings are errors here


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated", "ignore:the losses of the winners")
def test_torchscript_models_are_restored():
    model, (x, y) = torch.jit.script(sequential(nn.BatchNorm1d(D), nn.BatchNorm1d(D))), data()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    MaxUp(Gaussian(SIGMA), m=M).select(model, x, y)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name


def test_every_pass_of_smoothadv_starts_from_the_same_buffers():
    class Seeing(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(D, C)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            seen.append(float(self.calls))
            self.calls.data += 1
            return self.linear(x.flatten(1))

    seen, model = [], Seeing()
    mu.SmoothAdv(sigma=0.1, radius=0.2, steps=3)(model, torch.rand(B, 1, 1, D), data()[1])
    assert seen == [0, 0, 0, 0]
    assert model.calls == 1


class Owner:
    """Calls a head that it may replace."""

    def __init__(self):
        self.replace()

    def replace(self):
        self.head = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3))

    def forward(self, body, x):
        return self.head(body(x))


@pytest.mark.parametrize("settings", [{}, {"norm": "running"}, {"fast": True}], ids=str)
def test_a_module_that_forward_calls_may_be_replaced(settings):
    owner, body, x, y = Owner(), nn.Linear(5, 8), torch.rand(16, 5), torch.randint(3, (16,))
    objective = MaxUp(Gaussian(0.1), m=4, forward=owner.forward, **settings)
    for _ in range(2):
        objective(body, x, y)
        assert owner.head[0].num_batches_tracked == 1  # by the training pass
        owner.replace()


def test_modules_in_defaults_partials_containers_and_wrappers_are_found():
    def through(criterion, output, target):
        return criterion(output, target)

    criteria, (x, y) = [CountedLoss() for _ in range(5)], data()
    named = {"loss": criteria[0]}
    wrapped = functools.wraps(through)(lambda output, target, c=criteria[4]: c(output, target))
    losses = [
        lambda output, target: named["loss"](output, target),
        lambda output, target, c=criteria[1]: c(output, target),
        functools.partial(through, criteria[2]),
        lambda output, target: through(criteria[3], output, target),
        wrapped,
    ]
    for loss in losses:
        MaxUp(Gaussian(SIGMA), m=M, loss_fn=loss).select(sequential(), x, y)
    assert [int(criterion.calls) for criterion in criteria] == [0] * 5

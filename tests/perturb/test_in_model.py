import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import maxup as mu
from maxup.perturb.in_model import InModelPerturbation, PerturbHook, attach_to, in_model_parts
from tests.oracles import torchvision_v2


def test_a_hook_acts_only_with_a_draw_and_in_training():
    hook = PerturbHook(lambda inputs, output, draw: output + draw)
    assert hook(None, 1) == 1
    hook.draw = 10
    assert hook(None, 1) == 11
    assert hook.eval()(None, 1) == 1


def test_the_hook_receives_inputs_and_output():
    layer = nn.Linear(2, 2)
    hook = attach_to(layer, lambda inputs, output, draw: inputs * draw)
    hook.draw = 3
    x = torch.rand(4, 2)
    assert torch.equal(layer(x), 3 * x)


def test_containers_are_refused():
    with pytest.raises(ValueError, match="attach to a layer inside it"):
        attach_to(nn.Sequential(nn.Linear(2, 2)), lambda inputs, output, draw: output)


def test_subclasses_must_define_attach():
    with pytest.raises(NotImplementedError, match="must define attach"):
        InModelPerturbation().attach(nn.Linear(1, 1))


# --- attached to another model, or to a layer that is never called


def text_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(20, 6), nn.Flatten(), nn.Linear(5 * 6, 3)).double()


def words():
    g = torch.Generator().manual_seed(1)
    return torch.randint(20, (8, 5), generator=g), torch.randint(3, (8,), generator=g)


@pytest.mark.parametrize("objective", [mu.MaxUp, mu.Average])
@pytest.mark.parametrize("m", [1, 3])
def test_a_perturbation_attached_to_another_model_is_refused(objective, m):
    dropout = mu.EmbeddingDropout(0.5)
    dropout.attach(text_model())
    with pytest.raises(ValueError, match="attached to another model"):
        objective(dropout, m=m)(text_model(), *words())


class Unused(nn.Module):
    """As in T5, the named embedding is never called."""

    def __init__(self):
        super().__init__()
        self.shared, self.net = nn.Embedding(20, 6), text_model()

    def forward(self, x):
        return self.net(x)


def test_copies_with_equal_losses_warn_once():
    dropout = mu.EmbeddingDropout(0.5, layer="shared")
    model = dropout.attach(Unused())
    maxup = mu.MaxUp(dropout, m=4)
    with pytest.warns(mu.MaxUpWarning, match="all 4 copies of every example have the same loss"):
        maxup(model, *words())
    maxup(model, *words())  # warnings are errors here


# --- activation checkpointing runs a layer again in the backward pass


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.first, self.middle, self.last = (nn.Linear(*s) for s in ((5, 6), (6, 6), (6, 6), (6, 3)))
        self.reentrant = reentrant

    def part(self, x):
        return self.middle(self.first(x).tanh()).tanh()

    def forward(self, x):
        x = self.enter(x)  # reentrant checkpoints need an input that requires a gradient
        if self.reentrant is None:
            return self.last(self.part(x))
        return self.last(checkpoint(self.part, x, use_reentrant=self.reentrant))


def perturbations():
    yield mu.FeatureNoise(1.0, layer="middle")
    yield mu.ManifoldMixup(["middle", "first"], num_classes=3)
    yield mu.Compose(mu.Gaussian(0.1), mu.FeatureNoise(1.0, layer="first"))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # scoring runs without gradients
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("call", ["one call", "selected", "outside", "between", "m = 1"])
def test_checkpointing_gives_the_gradient_of_the_plain_model(reentrant, number, call):
    g = torch.Generator().manual_seed(1)
    x, y = torch.rand(8, 5, generator=g, dtype=torch.double), torch.randint(3, (8,), generator=g)
    found = []
    for how in (None, reentrant):
        perturbation = list(perturbations())[number]
        model = Checkpointed(how).double()
        for part in in_model_parts(perturbation):
            part.attach(model)
        maxup = mu.MaxUp(perturbation, m=1 if call == "m = 1" else 4, generator=torch.Generator().manual_seed(0))
        for _ in range(2):
            if call == "selected":
                with maxup.selected(model, x, y) as (worst_x, worst_y):
                    loss = mu.cross_entropy(model(worst_x), worst_y).mean()
            elif call in ("outside", "between"):  # a trainer calls backward later
                with maxup.selected(model, x, y) as (worst_x, worst_y):
                    output = model(worst_x)
                loss = mu.cross_entropy(output, worst_y).mean()
            else:
                loss = maxup(model, x, y)
            if call == "between":  # the same batch, with and without dropout, for a log
                with torch.no_grad():
                    model(x)
                model.eval()(x)
                model.train()
            loss.backward()
        found.append([p.grad for p in model.parameters()])
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(again, plain)


@pytest.mark.filterwarnings("ignore")  # of transformers, and of reentrant checkpoints in scoring
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_bert_whose_trainer_calls_backward(reentrant):
    torchvision_v2()  # transformers imports it
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    part = "bert.encoder.layer.1.intermediate.dense"
    for perturbation in (mu.FeatureNoise(1.0, layer=part), mu.ManifoldMixup([part], num_classes=3)):
        found = []
        for checkpointed in (False, True):
            torch.manual_seed(0)
            model = BertForSequenceClassification(BertConfig(**sizes, intermediate_size=8, num_labels=3)).train()
            if checkpointed:
                model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            perturbation.attach(model)
            maxup = mu.MaxUp(
                perturbation,
                m=3,
                forward=lambda model, ids: model(input_ids=ids).logits,
                generator=torch.Generator().manual_seed(0),
            )
            with maxup.selected(model, *words()) as (ids, labels):
                logits = model(input_ids=ids).logits
            found.append(gradient(model, mu.cross_entropy(logits, labels).mean()))
        for plain, again in zip(*found, strict=True):
            torch.testing.assert_close(again, plain)


def test_two_steps_before_a_backward_pass_are_refused():
    noise = mu.FeatureNoise(1.0, layer="middle")
    model = noise.attach(Checkpointed(False))
    x, y = torch.rand(8, 5), torch.randint(3, (8,))
    maxup = mu.MaxUp(noise, m=2)
    losses = [maxup(model, x, y), maxup(model, x, y)]
    with pytest.raises(RuntimeError, match="call backward after every step"):
        losses[0].backward()


def test_a_plain_pass_after_a_step_is_not_perturbed():
    noise = mu.FeatureNoise(1.0, layer="middle")
    model = noise.attach(Checkpointed(None))
    x, y = torch.rand(8, 5), torch.randint(3, (8,))
    before = model(x)
    mu.MaxUp(noise, m=2)(model, x, y).backward()
    assert torch.equal(model(x), before)


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters()]


def test_checkpointing_repeats_a_plain_pass_without_a_draw():
    """The draw of the previous step must not be used when the plain pass is repeated."""
    noise = mu.FeatureNoise(1.0, layer="middle")
    model = noise.attach(Checkpointed(False))
    batches = [(torch.rand(8, 5), torch.randint(3, (8,))) for _ in range(2)]
    mu.MaxUp(noise, m=2)(model, *batches[0]).backward()
    for x, y in batches:
        again = gradient(model, mu.cross_entropy(model(x), y).mean())
        model.reentrant = None
        plain = gradient(model, mu.cross_entropy(model(x), y).mean())
        model.reentrant = False
        for a, b in zip(again, plain, strict=True):
            torch.testing.assert_close(a, b)


def test_one_loss_from_a_plain_and_a_perturbed_pass():
    found = []
    for reentrant in (None, False):
        torch.manual_seed(2)
        noise = mu.FeatureNoise(1.0, layer="middle")
        model = noise.attach(Checkpointed(reentrant))
        (x, y), (other, _) = [(torch.rand(8, 5), torch.randint(3, (8,))) for _ in range(2)]
        maxup = mu.MaxUp(noise, m=2, generator=torch.Generator().manual_seed(0))
        maxup(model, x, y).backward()
        found.append(gradient(model, maxup(model, x, y) + mu.cross_entropy(model(other), y).mean()))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(RuntimeError, match="do not run the same batch with and without"):
        (maxup(model, x, y) + mu.cross_entropy(model(x), y).mean()).backward()


def test_a_step_without_backward_is_harmless():
    noise = mu.FeatureNoise(1.0, layer="middle")
    model, maxup = noise.attach(Checkpointed(False)), mu.MaxUp(noise, m=2)
    for step in range(4):
        loss = maxup(model, torch.rand(8, 5), torch.randint(3, (8,)))
        if step != 1:
            loss.backward()
    loss = maxup(model, torch.rand(8, 5), torch.randint(3, (8,)))
    loss.backward(retain_graph=True)
    loss.backward()


class Again(torch.autograd.Function):
    """Checkpointing as other libraries write it: the forward pass runs again in backward."""

    @staticmethod
    def forward(ctx, part, x):
        ctx.part = part
        ctx.save_for_backward(x)
        return part(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            torch.autograd.backward(ctx.part(x), gradient)
        return None, x.grad


def test_custom_checkpointing():
    found = []
    for custom in (False, True):
        noise = mu.FeatureNoise(1.0, layer="middle")
        model = noise.attach(Checkpointed(None))
        if custom:
            part = model.part
            model.part = lambda x, part=part: Again.apply(part, x)
        torch.manual_seed(2)
        x, y = torch.rand(8, 5), torch.randint(3, (8,))
        maxup = mu.MaxUp(noise, m=3, generator=torch.Generator().manual_seed(0))
        found.append(gradient(model, maxup(model, x, y)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_a_plain_pass_before_the_first_perturbed_one():
    noise = mu.FeatureNoise(1.0, layer="middle")
    model, maxup = noise.attach(Checkpointed(False)), mu.MaxUp(noise, m=2)
    (x, y), (other, _) = [(torch.rand(8, 5), torch.randint(3, (8,))) for _ in range(2)]
    (mu.cross_entropy(model(other), y).mean() + maxup(model, x, y)).backward()
    with pytest.raises(RuntimeError, match="the same batch with and without"):
        (mu.cross_entropy(model(x), y).mean() + maxup(model, x, y)).backward()


def test_a_layer_with_many_calls_and_two_backward_passes():
    class Repeated(Checkpointed):
        def part(self, x):
            for _ in range(40):
                x = self.middle(x).tanh()
            return x

    noise = mu.FeatureNoise(0.1, layer="middle")
    model, maxup = noise.attach(Repeated(False)), mu.MaxUp(noise, m=2)
    losses = [maxup(model, torch.rand(8, 5), torch.randint(3, (8,))) for _ in range(2)]
    for loss in losses:
        torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
    sum(losses).backward()


def test_a_saved_model_holds_no_draws():
    dropout = mu.EmbeddingDropout(0.5)
    model = dropout.attach(text_model())
    before = len(pickle.dumps(model))
    maxup = mu.MaxUp(dropout, m=4)
    for _ in range(3):
        maxup(model, *words()).backward()
    model.zero_grad()
    assert len(pickle.dumps(model)) == before


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised by the compiler
def test_a_checkpoint_around_a_compiled_block():
    found = []
    for compiled in (False, True):
        noise = mu.FeatureNoise(1.0, layer="middle")
        model = noise.attach(Checkpointed(False))
        if compiled:
            model.middle.compile(backend="eager")
        torch.manual_seed(2)
        x, y = torch.rand(8, 5), torch.randint(3, (8,))
        maxup = mu.MaxUp(noise, m=3, generator=torch.Generator().manual_seed(0))
        found.append(gradient(model, maxup(model, x, y)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)

"""The doctor's examination: does MaxUp do to this model what it promises? One finding a line."""

import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from maxup import theory
from maxup.batch import batch_size
from maxup.diagnostics.inputs import Inputs
from maxup.errors import MaxUpWarning, format_error
from maxup.isolation import called_modules, drop_probability, preserve_state
from maxup.losses import mean_loss
from maxup.objectives.maxup import MaxUp
from maxup.perturb.in_model import clear
from maxup.perturb.noise import Gaussian
from maxup.snapshot import Snapshot, changed, snapshot

M = 4
ROUNDS = 5
SLOW = 1.5  # times the usual ratio


@dataclass
class Finding:
    """One line of the report."""

    level: str
    """ok, attention or wrong."""
    text: str

    def __str__(self) -> str:
        return f"{self.level:<10} {self.text}"


def run_checks(inputs: Inputs) -> Iterator[Finding]:
    """All findings, in order; where the model cannot be run at all, that alone."""
    yield from _mode(inputs.model)
    try:
        with preserve_state(inputs.model, inputs.batch):
            _maxup(inputs, 1).run(inputs.model, *inputs.batch)
    except Exception as error:
        yield Finding("wrong", f"one pass over the batch failed: {format_error(error)}")
        return
    for check in (_copies, _repeats, _trace, _gap, _baseline, _replay, _cost, _layers, _penalty):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MaxUpWarning)  # the findings say the same
                findings = list(check(inputs))
            yield from findings
        except Exception as error:
            yield Finding("wrong", f"the check of {check.__name__.strip('_')} failed: {format_error(error)}")


def _mode(model: nn.Module) -> Iterator[Finding]:
    if not model.training:
        yield Finding("attention", "the model is in evaluation mode; call model.train() to see it as training does")
    if not any(p.requires_grad for p in model.parameters()):
        yield Finding("wrong", "no parameter of the model requires a gradient: there is nothing to train")


def _copies(inputs: Inputs) -> Iterator[Finding]:
    if inputs.by_default:
        sigma = inputs.perturbation.sigma
        yield Finding("ok", f"no perturbation is given: the copies have Gaussian noise of deviation {sigma:.3g}")


def _repeats(inputs: Inputs) -> Iterator[Finding]:
    """Two passes with the same random numbers must agree: else the model remembers, or draws where none can see."""
    with preserve_state(inputs.model, inputs.batch) as rewind, torch.no_grad():
        outputs = []
        for _ in range(2):
            rewind()
            outputs.append(
                [
                    leaf.clone()
                    for leaf in tree_leaves(inputs.forward(inputs.model, inputs.batch[0]))
                    if isinstance(leaf, Tensor)
                ]
            )
    if all(_close(a, b) for a, b in zip(*outputs, strict=True)):
        yield Finding("ok", "two passes with the same random numbers agree")
    else:
        yield Finding(
            "wrong",
            "two passes over the same batch with the same random numbers differ: the forward pass remembers something "
            "outside the model's buffers, or draws from a random stream of its own",
        )


def _trace(inputs: Inputs) -> Iterator[Finding]:
    before = _snapshot(inputs)
    with _maxup(inputs, M).selected(inputs.model, *inputs.batch):
        pass
    left = changed(before, _snapshot(inputs))
    if left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        text = (
            f"selecting left a trace: {', '.join(left[:3])}{more}; a step passes the model {M + 1} times: do not count "
        )
        yield Finding("wrong", text + "or record in the forward pass, or keep it in a registered buffer")
    else:
        yield Finding("ok", "selecting left no trace: weights, buffers, gradients, flags, attributes, random streams")


def _gap(inputs: Inputs) -> Iterator[Finding]:
    with preserve_state(inputs.model, inputs.batch):
        outcome = _maxup(inputs, M).run(inputs.model, *inputs.batch)
    report, mean = outcome.report, float(outcome.losses.detach().mean())
    assert report is not None
    if not math.isfinite(mean):
        yield Finding("wrong", f"the loss is {mean}; mend the model, the loss or the data first")
    elif report.gap <= 0:
        yield Finding(
            "wrong", "all copies have the same loss: the perturbation changes nothing, or the model does not see it"
        )
    else:
        share = report.gap / max(abs(mean), 1e-12)
        level, more = (
            ("ok", "") if share > 1e-3 else ("attention", "; so small a gap changes training little: perturb more")
        )
        text = (
            f"the worst of {M} copies has a higher loss than the average one: gap {report.gap:.3g}, {100 * share:.2g} %"
        )
        yield Finding(level, f"{text} of the loss{more}")


def _baseline(inputs: Inputs) -> Iterator[Finding]:
    """m = 1 against the loop one would write without MaxUp: draw, apply, forward, mean loss."""
    with preserve_state(inputs.model, inputs.batch) as rewind, torch.no_grad():
        ours = _maxup(inputs, 1).run(inputs.model, *inputs.batch).loss
        rewind()
        device = tree_leaves(inputs.batch)[0].device
        try:
            x, y = inputs.perturbation.apply(
                inputs.batch, inputs.perturbation.draw(inputs.batch, Generator(device).manual_seed(0))
            )
            plain = mean_loss(inputs.loss_fn, inputs.loss_fn(inputs.forward(inputs.model, x), y), y)
        finally:
            clear(inputs.perturbation)
    if _close(ours, plain):
        yield Finding("ok", f"m = 1 is the baseline: both losses on the perturbed batch are {float(plain):.6g}")
    else:
        text = f"m = 1 gives the loss {float(ours):.9g}, but the plain loop {float(plain):.9g}"
        yield Finding("wrong", f"{text}: they differ by {abs(float(ours) - float(plain)):.2g}")


def _replay(inputs: Inputs) -> Iterator[Finding]:
    with preserve_state(inputs.model, inputs.batch):
        report = _maxup(inputs, M).run(inputs.model, *inputs.batch).report
    assert report is not None
    error = report.replay_error
    if report.replay_exact:
        yield Finding("ok", "what is trained on is what was scored, to the last bit")
    elif _norms(inputs.model):
        yield Finding(
            "attention",
            f"losses trained on and scored differ by up to {error:.2g}: BatchNorm normalizes the winners anew, among "
            "winners, as the method says; norm='running' scores with the running statistics instead",
        )
    elif error < 1e-4:
        yield Finding("attention", f"losses trained on and scored differ by up to {error:.2g}: rounding")
    else:
        yield Finding(
            "wrong", f"losses trained on and scored differ by up to {error:.2g}: the winners are not replayed"
        )


def _cost(inputs: Inputs) -> Iterator[Finding]:
    seconds: dict[int, list[float]] = {1: [], M: []}
    copying = []  # seconds of drawing and applying M copies
    generator = Generator(tree_leaves(inputs.batch)[0].device).manual_seed(0)
    saved = dict.fromkeys(seconds, 0)
    with _own_gradients(inputs.model), preserve_state(inputs.model, inputs.batch):
        for _ in range(ROUNDS + 1):  # the first to warm up
            for m in seconds:
                begun = time.perf_counter()
                with _counted() as bytes_saved:
                    loss = _maxup(inputs, m).run(inputs.model, *inputs.batch).loss
                loss.backward()
                if loss.is_cuda:
                    torch.cuda.synchronize()
                seconds[m].append(time.perf_counter() - begun)
                saved[m] = bytes_saved()
            begun = time.perf_counter()
            for _ in range(M):
                inputs.perturbation.apply(inputs.batch, inputs.perturbation.draw(inputs.batch, generator))
                clear(inputs.perturbation)
            if loss.is_cuda:
                torch.cuda.synchronize()
            copying.append(time.perf_counter() - begun)
    one, many, copies = (statistics.median(values[1:]) for values in (seconds[1], seconds[M], copying))
    usual = (M + 3) / 3
    memory = saved[M] / max(saved[1], 1)
    text = f"with m = {M} a step takes {many / one:.2f} times as long as with m = 1 (about {usual:.2g} is usual)"
    slow = many > SLOW * usual * one
    why = "; the model or batch is likely so small that a step is bound by overhead"
    if copies > many / 3:
        why = f"; making the copies takes {100 * copies / many:.0f} % of it: look for a cheaper perturbation"
    yield Finding("attention" if slow else "ok", text + (why if slow else ""))
    text = f"with m = {M} a step keeps {memory:.2f} times the memory for its backward pass"
    yield Finding("ok" if memory < 1.05 else "attention", text)


def _layers(inputs: Inputs) -> Iterator[Finding]:
    layers = [layer for layer in inputs.model.modules() if isinstance(layer, _BatchNorm)]
    active, n = _norms(inputs.model), batch_size(inputs.batch)
    if active:
        text = f"BatchNorm layers in training, {len(active)}: each copy is scored with its own batch's statistics; "
        text += "chunk > 1 and strategy='retain' are refused" + (
            f", and {n} examples are few for statistics" if n < 8 else ""
        )
        yield Finding("attention", text)
    elif layers:
        yield Finding("ok", f"BatchNorm layers, {len(layers)}, all with fixed statistics")
    dropout = [layer for layer in inputs.model.modules() if drop_probability(layer) > 0]
    dropping = [layer for layer in dropout if layer.training]
    if dropping:
        text = f"dropout layers, {len(dropping)}: all copies and the training pass share their masks; draw no random "
        yield Finding("attention", text + "numbers between select and your forward pass")
    elif dropout:
        yield Finding("ok", f"dropout layers, {len(dropout)}, all in evaluation mode, where they drop nothing")
    if not layers and not dropout:
        yield Finding("ok", "no BatchNorm and no dropout: nothing to mind")


def _penalty(inputs: Inputs) -> Iterator[Finding]:
    leaves = [leaf for leaf in tree_leaves(inputs.batch[0]) if isinstance(leaf, Tensor)]
    if not all(leaf.is_floating_point() for leaf in leaves):
        return
    sigma = inputs.perturbation.sigma if isinstance(inputs.perturbation, Gaussian) else 0.1 * float(leaves[0].std())
    found = theory.penalty(
        inputs.model, *inputs.batch, m=M, sigma=sigma, forward=inputs.forward, loss_fn=inputs.loss_fn
    )
    yield Finding("ok", f"for context, Theorem 1 with Gaussian copies of deviation {sigma:.3g}: {found}")


def _snapshot(inputs: Inputs) -> Snapshot:
    modules = [inputs.model, *called_modules(inputs.loss_fn, inputs.forward)]
    return snapshot(modules, {"forward": inputs.forward, "loss": inputs.loss_fn})


def _maxup(inputs: Inputs, m: int) -> MaxUp:
    device = tree_leaves(inputs.batch)[0].device
    generator = Generator(device).manual_seed(0)
    return MaxUp(inputs.perturbation, m=m, loss_fn=inputs.loss_fn, forward=inputs.forward, generator=generator)


def _norms(model: nn.Module) -> list[nn.Module]:
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.training]


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal; on a GPU, whose sums may change their order, to rounding."""
    if a.shape != b.shape:
        return False
    return torch.equal(a, b) if a.device.type == "cpu" else torch.allclose(a, b, rtol=1e-4, atol=1e-5)


@contextmanager
def _own_gradients(model: nn.Module) -> Iterator[None]:
    """Backward passes inside leave the gradients as they were."""
    before = [(p, p.grad) for p in model.parameters()]
    for p, _ in before:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in before:
            p.grad = grad


@contextmanager
def _counted() -> Iterator[Callable[[], int]]:
    """How many bytes autograd keeps for the backward pass, each storage once."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield lambda: sum(sizes.values())

"""The checks: does MaxUp do what it promises with this model? Each check yields findings."""

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
from maxup.batch import batch_size, device_of
from maxup.called_modules import called_modules
from maxup.diagnostics.inputs import Inputs
from maxup.dropout import drop_probability
from maxup.errors import MaxUpWarning, format_error
from maxup.isolation import preserve_state
from maxup.losses import mean_loss
from maxup.objectives.maxup import MaxUp
from maxup.perturb.in_model import clear
from maxup.perturb.noise import Gaussian
from maxup.snapshot import Snapshot, changed, snapshot

M = 4
ROUNDS = 5  # timed steps
SLOW = 1.5  # a step is slow above this multiple of a step with m = 1 plus M forward passes


@dataclass
class Finding:
    """The result of a check."""

    level: str
    """One of "ok", "note" (good to know), "warning" and "error"."""
    text: str
    error: Exception | None = None
    """What the model or the batch raised."""

    def __str__(self) -> str:
        return f"{self.level:<7} {self.text}"


def run_checks(inputs: Inputs) -> Iterator[Finding]:
    """Run all checks and yield their findings in order. If the model cannot run at all, yield only that finding."""
    yield from _mode(inputs.model)
    try:
        with preserve_state(inputs.model, inputs.batch):
            _maxup(inputs, 1).run(inputs.model, *inputs.batch)
    except Exception as error:
        yield Finding("error", f"a forward pass on the batch failed: {format_error(error)}", error)
        return
    for check in (_perturbation, _determinism, _side_effects, _gap, _baseline, _replay, _cost, _layers, _penalty):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MaxUpWarning)  # the findings cover these warnings
                findings = list(check(inputs))
            yield from findings
        except Exception as error:
            name = check.__name__.strip("_").replace("_", " ")
            yield Finding("error", f"the {name} check failed: {format_error(error)}", error)


def _mode(model: nn.Module) -> Iterator[Finding]:
    if not model.training:
        yield Finding("warning", "the model is in evaluation mode; call model.train() to check it as it is trained")
    if not any(p.requires_grad for p in model.parameters()):
        yield Finding("error", "no parameter of the model requires a gradient, so there is nothing to train")


def _perturbation(inputs: Inputs) -> Iterator[Finding]:
    if inputs.default_noise:
        sigma = inputs.perturbation.sigma
        yield Finding("ok", f"no perturbation was passed, so copies get Gaussian noise with sigma = {sigma:.3g}")


def _determinism(inputs: Inputs) -> Iterator[Finding]:
    """Compare two passes with the same random state. They differ if the model has hidden state or randomness."""
    with preserve_state(inputs.model, inputs.batch) as rewind, torch.no_grad():
        outputs: list[list[Tensor]] = []
        for _ in range(2):
            rewind()
            output = inputs.forward(inputs.model, inputs.batch[0])
            outputs.append([leaf.clone() for leaf in tree_leaves(output) if isinstance(leaf, Tensor)])
    if all(_close(a, b) for a, b in zip(*outputs, strict=True)):
        yield Finding("ok", "two passes with the same random state agree")
    else:
        yield Finding(
            "error",
            "two passes over the same batch with the same random state differ: the forward pass keeps state outside "
            "the model's buffers, or uses its own random generator",
        )


def _side_effects(inputs: Inputs) -> Iterator[Finding]:
    before = _snapshot(inputs)
    with _maxup(inputs, M).selected(inputs.model, *inputs.batch):
        pass
    names = changed(before, _snapshot(inputs))
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield Finding(
            "error",
            f"selection has side effects: it changed {', '.join(names[:3])}{more}; a step calls the model {M + 1} "
            "times, so do not update counters in forward, or keep them in registered buffers",
        )
    else:
        yield Finding(
            "ok",
            "selection has no side effects on weights, buffers, gradients, training flags, attributes or random states",
        )


def _gap(inputs: Inputs) -> Iterator[Finding]:
    with preserve_state(inputs.model, inputs.batch):
        outcome = _maxup(inputs, M).run(inputs.model, *inputs.batch)
    report, mean = outcome.report, float(outcome.losses.detach().mean())
    assert report is not None
    if not math.isfinite(mean):
        yield Finding("error", f"the loss is {mean}; fix the model, the loss or the data first")
    elif report.gap <= 0:
        yield Finding(
            "error", "all copies have the same loss: the perturbation changes nothing, or the model ignores it"
        )
    else:
        share = report.gap / max(abs(mean), 1e-12)
        small = share <= 1e-3
        text = f"the worst of {M} copies has a higher loss than the average copy: gap {report.gap:.3g}, "
        text += f"{100 * share:.2g} % of the loss"
        hint = "; such a small gap has little effect on training, so use a stronger perturbation"
        yield Finding("warning" if small else "ok", text + (hint if small else ""))


def _baseline(inputs: Inputs) -> Iterator[Finding]:
    """Compare m = 1 with a training loop without MaxUp: draw, apply, forward, mean loss."""
    with preserve_state(inputs.model, inputs.batch) as rewind, torch.no_grad():
        ours = _maxup(inputs, 1).run(inputs.model, *inputs.batch).loss
        rewind()
        try:
            draw = inputs.perturbation.draw(inputs.batch, _generator(inputs))
            x, y = inputs.perturbation.apply(inputs.batch, draw)
            plain = mean_loss(inputs.loss_fn, inputs.loss_fn(inputs.forward(inputs.model, x), y), y)
        finally:
            clear(inputs.perturbation)
    if _close(ours, plain):
        yield Finding("ok", f"m = 1 equals the baseline: both losses on the perturbed batch are {float(plain):.6g}")
    else:
        text = f"with m = 1 the loss is {float(ours):.9g}, but in a plain loop it is {float(plain):.9g}"
        yield Finding("error", f"{text}: they differ by {abs(float(ours) - float(plain)):.2g}")


def _replay(inputs: Inputs) -> Iterator[Finding]:
    with preserve_state(inputs.model, inputs.batch):
        report = _maxup(inputs, M).run(inputs.model, *inputs.batch).report
    assert report is not None
    text = f"losses in scoring and in the training pass differ by up to {report.replay_error:.2g}: "
    if report.replay_exact:
        yield Finding("ok", "the training pass reproduces the scored losses exactly")
    elif _norms(inputs.model):
        yield Finding(
            "note",
            text + "BatchNorm normalizes the batch of worst copies with its own statistics, as the method implies; "
            "norm='running' scores with the running statistics instead",
        )
    elif report.replay_error < 1e-4:
        yield Finding("note", text + "rounding")
    else:
        yield Finding("error", text + "the worst copies are not reproduced")


def _cost(inputs: Inputs) -> Iterator[Finding]:
    seconds: dict[int, list[float]] = {1: [], M: []}
    copying, forwards = [], []  # seconds to draw and apply M copies, and of a forward pass without a graph
    generator, objectives = _generator(inputs), {m: _maxup(inputs, m) for m in seconds}
    saved = dict.fromkeys(seconds, 0)
    with _preserve_gradients(inputs.model), preserve_state(inputs.model, inputs.batch):
        for _ in range(ROUNDS + 1):  # the first round is a warmup
            for m in seconds:
                start = time.perf_counter()
                with _saved_bytes() as bytes_saved:
                    loss = objectives[m].run(inputs.model, *inputs.batch).loss
                loss.backward()
                if loss.is_cuda:
                    torch.cuda.synchronize()
                seconds[m].append(time.perf_counter() - start)
                saved[m] = bytes_saved()
            start = time.perf_counter()
            for _ in range(M):
                inputs.perturbation.apply(inputs.batch, inputs.perturbation.draw(inputs.batch, generator))
                clear(inputs.perturbation)
            if loss.is_cuda:
                torch.cuda.synchronize()
            copying.append(time.perf_counter() - start)
            start = time.perf_counter()
            with torch.no_grad():
                inputs.loss_fn(inputs.forward(inputs.model, inputs.batch[0]), inputs.batch[1])
            if loss.is_cuda:
                torch.cuda.synchronize()
            forwards.append(time.perf_counter() - start)
    times = (seconds[1], seconds[M], copying, forwards)
    one, many, copies, forward = (statistics.median(values[1:]) for values in times)
    floor = 1 + M * forward / one
    slow = many > SLOW * floor * one
    text = f"a step with m = {M} takes {many / one:.2f} times as long as with m = 1 "
    text += f"({floor:.2f} is expected from {M} more forward passes)"
    reason = "; the model or batch is probably so small that overhead dominates"
    if copies > many / 3:
        reason = f"; {100 * copies / many:.0f} % of it is spent on making the copies, so use a cheaper perturbation"
    yield Finding("warning" if slow else "ok", text + (reason if slow else ""))
    memory = saved[M] / max(saved[1], 1)
    text = f"a step with m = {M} keeps {memory:.2f} times as much memory for backward as with m = 1"
    yield Finding("ok" if memory < 1.05 else "warning", text)


def _layers(inputs: Inputs) -> Iterator[Finding]:
    norms = [layer for layer in inputs.model.modules() if isinstance(layer, _BatchNorm)]
    active, n = _norms(inputs.model), batch_size(inputs.batch)
    if active:
        text = f"BatchNorm layers in training mode ({len(active)}): each copy is scored with its own batch statistics; "
        text += "chunk_size > 1 and strategy='retain' are not available"
        few = f", and {n} examples are few for batch statistics" if n < 8 else ""
        yield Finding("warning" if few else "note", text + few)
    elif norms:
        yield Finding("ok", f"BatchNorm layers ({len(norms)}), all with fixed statistics")
    dropout = [layer for layer in inputs.model.modules() if drop_probability(layer) > 0]
    dropping = [layer for layer in dropout if layer.training]
    if dropping:
        text = (
            f"dropout layers ({len(dropping)}): all copies and the training pass share their masks, so draw no random "
        )
        yield Finding("note", text + "numbers between select and your forward pass; dropout=False scores without them")
    elif dropout:
        yield Finding("ok", f"dropout layers ({len(dropout)}), all in evaluation mode, where they drop nothing")
    if not norms and not dropout:
        yield Finding("ok", "no BatchNorm and no dropout layers")


def _penalty(inputs: Inputs) -> Iterator[Finding]:
    leaves = [leaf for leaf in tree_leaves(inputs.batch[0]) if isinstance(leaf, Tensor)]
    if not all(leaf.is_floating_point() for leaf in leaves):
        return
    sigma = inputs.perturbation.sigma if isinstance(inputs.perturbation, Gaussian) else 0.1 * float(leaves[0].std())
    penalty = theory.penalty(
        inputs.model, *inputs.batch, m=M, sigma=sigma, forward=inputs.forward, loss_fn=inputs.loss_fn
    )
    yield Finding("ok", f"for context, Theorem 1 with Gaussian noise of sigma = {sigma:.3g}: {penalty}")


def _snapshot(inputs: Inputs) -> Snapshot:
    modules = [inputs.model, *called_modules(inputs.loss_fn, inputs.forward)]
    return snapshot(modules, {"forward": inputs.forward, "loss": inputs.loss_fn})


def _generator(inputs: Inputs) -> Generator:
    return Generator(device_of(inputs.batch)).manual_seed(0)


def _maxup(inputs: Inputs, m: int) -> MaxUp:
    generator = _generator(inputs)
    return MaxUp(inputs.perturbation, m=m, loss_fn=inputs.loss_fn, forward=inputs.forward, generator=generator)


def _norms(model: nn.Module) -> list[nn.Module]:
    """Return the BatchNorm layers in training mode."""
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.training]


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether tensors are equal. On a GPU, where the order of sums may vary, up to rounding."""
    if a.shape != b.shape:
        return False
    return torch.equal(a, b) if a.device.type == "cpu" else torch.allclose(a, b, rtol=1e-4, atol=1e-5)


@contextmanager
def _preserve_gradients(model: nn.Module) -> Iterator[None]:
    before = [(p, p.grad) for p in model.parameters()]
    for p, _ in before:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in before:
            p.grad = grad


@contextmanager
def _saved_bytes() -> Iterator[Callable[[], int]]:
    """Yield a function that returns how many bytes autograd saved for backward, counting each storage once."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield lambda: sum(sizes.values())

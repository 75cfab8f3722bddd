"""Measure a workload: time, peak memory and fidelity of every variant, in one process."""

import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from maxup.batch import Batch
from maxup.cuda.capture import CapturedStep, why_not_capturable
from maxup.cuda.graph import WARMUP, capture_graph
from maxup.errors import MaxUpError, NonFiniteError, RecipeError, error_message, format_error
from maxup.lab.bench.fidelity import Fidelity, measure_fidelity, to_record
from maxup.lab.bench.memory import peak_bytes
from maxup.lab.bench.profile import profile_step
from maxup.lab.bench.settings import DEFAULT, MAXUP, SIZES
from maxup.lab.bench.timing import floor, interleaved
from maxup.lab.bench.variants import Variant, make_variants, standard
from maxup.lab.bench.workload import Workload
from maxup.lab.environment import environment
from maxup.objectives.maxup import MaxUp
from maxup.perturb.in_model import clear
from maxup.scoring import allow_variants

FORWARD = "forward pass without a graph"
COPY = "drawing and applying one copy"
UNTRAINED = "the running statistics of BatchNorm are untrained, so less of the gap is kept; use --train_steps"
OTHER_COPIES = "no fidelity: it draws other copies than exact scoring"
Step = Callable[[Batch], Tensor]


def bench(
    work: Workload,
    *,
    ms: Sequence[int] = (2, 4, 8),
    names: Sequence[str] = DEFAULT,
    rounds: int | None = None,
    train_steps: int | None = None,
    compile: bool = False,
    captured: bool = False,
    profile: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure the standard step and variants of it.

    Args:
        work: The network, the batches and the perturbation.
        ms: Copies per example.
        names: Variants to measure besides the standard step.
        rounds: Rounds of timing. Default: by device.
        train_steps: Standard steps with AdamW before measuring, because the losses of an untrained network say little.
            Default: by device.
        compile: Compile the network with torch.compile.
        captured: Run every step as one CUDA graph.
        profile: Also record which kernels take the time of a step.
        say: Called with progress messages.

    Returns:
        The content of bench.json.
    """
    sizes = SIZES[work.device.type]
    rounds = sizes["rounds"] if rounds is None else rounds
    train_steps = sizes["train_steps"] if train_steps is None else train_steps
    ms = sorted(set(ms))
    untrained = not train_steps and any(
        layer.training and layer.running_mean is not None and not layer.running_mean.any()
        for layer in work.model.modules()
        if isinstance(layer, _BatchNorm)
    )
    check(work)
    if captured:
        _check_capturable(work)
    if compile:
        allow_variants()
        work.model.compile(dynamic=False)
    if train_steps:
        say(f"training for {train_steps} steps")
        train(work, train_steps)
    variants = make_variants(work, names, ms)
    optimizer = torch.optim.SGD(work.model.parameters(), lr=0.0, momentum=0.9, fused=work.device.type == "cuda")
    steps = {variant.key: _step(variant, optimizer) for variant in variants}
    notes: dict[str, str] = {}
    batch = work.batches(0)
    say("warming up")
    for key in list(steps):
        _attempt(work, steps, key, partial(steps[key], batch), notes)
    say("measuring fidelity")
    fidelity: dict[str, Fidelity | None] = {}
    for m in ms:
        running = [variant for variant in variants if variant.m == m and variant.key in steps]
        fidelity |= measure_fidelity(work, m, running, sizes["fidelity_batches"])
    notes |= {key: OTHER_COPIES for key, value in fidelity.items() if value is None}
    say("measuring memory")
    memory = {
        v.key: peak_bytes(partial(steps[v.key], batch), work.device) + v.kept() for v in variants if v.key in steps
    }
    if captured:
        say("capturing")
        for variant in variants:
            if variant.key in steps:
                steps[variant.key] = step = _capture(variant, steps[variant.key], notes)
                _attempt(work, steps, variant.key, partial(_repeat, step, batch, WARMUP + 2), notes)
    say("measuring time")
    timed: dict[str, Callable[[], object]] = {key: partial(step, batch) for key, step in steps.items()}
    timed[FORWARD] = _graphed(partial(_forward, work, batch), captured=captured)
    timed[COPY] = _graphed(partial(_copy, work, batch), captured=captured)
    seconds = interleaved(timed, rounds, work.device, calls=sizes["calls"])
    for v in (v for v in variants if v.key in steps):
        by_running = v.settings.get("norm") == "running" or v.settings.get("fast")
        found = [notes.get(v.key, ""), UNTRAINED if untrained and by_running else "", v.note()]
        if any(found):
            notes[v.key] = "; ".join(filter(None, found))
    if profile:
        say("profiling")
    profiles = {key: profile_step(timed[key], work.device) for key in steps} if profile else {}
    rows = [
        {
            "name": v.name,
            "m": v.m,
            "settings": {k: repr(value) for k, value in v.settings.items()},
            "seconds": seconds.get(v.key),
            "peak_bytes": memory.get(v.key),
            **to_record(fidelity.get(v.key)),
            **({"profile": profiles.get(v.key)} if profile else {}),
            "note": notes.get(v.key),
        }
        for v in variants
    ]
    return {
        "benchmark": "bench",
        **work.describe(),
        "device": work.device.type,
        "compile": compile,
        "step": "captured" if captured else "eager",
        "rounds": rounds,
        "calls_per_round": sizes["calls"],
        "train_steps": train_steps,
        "fidelity_batches": sizes["fidelity_batches"],
        "forward_seconds": seconds[FORWARD],
        "copy_seconds": seconds[COPY],
        "variants": rows,
        "environment": environment(on_gpu=work.device.type == "cuda"),
    }


def summarize(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with medians, ratios to the standard step of the same run, and the floor.

    The floor of a variant of MaxUp is the least cost of exact selection: one step, and m passes without a graph.
    """
    forward = statistics.median(result["forward_seconds"])
    base = result["variants"][0]
    standard = statistics.median(base["seconds"])

    def row(one: Mapping[str, Any]) -> dict[str, Any]:
        median = None if one["seconds"] is None else statistics.median(one["seconds"])
        peak = one["peak_bytes"]
        return dict(one) | {
            "median_seconds": median,
            "time_ratio": None if median is None else median / standard,
            "floor": floor(one["m"], forward, standard) if one["name"] in MAXUP else None,
            "memory_ratio": peak / base["peak_bytes"] if peak is not None and base["peak_bytes"] else None,
        }

    copy = statistics.median(result["copy_seconds"])
    return dict(result) | {
        "median_forward_seconds": forward,
        "median_copy_seconds": copy,
        "copy_ratio": copy / standard,
        "variants": [row(one) for one in result["variants"]],
    }


def check(work: Workload) -> None:
    """Raise an error with a clear message if the network, the batch, the loss and the perturbation do not match."""
    objective = MaxUp(work.perturbation, 1, loss_fn=work.loss_fn, forward=work.forward, generator=work.generator())
    try:
        with work.autocast():
            loss = objective(work.model, *work.batches(0))
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        if isinstance(error, torch.OutOfMemoryError | MaxUpError):
            raise
        raise RecipeError(f"a forward pass on the batch failed: {format_error(error)}") from error
    if not loss.requires_grad:
        raise RecipeError("the loss of the network has no gradient; give a network with parameters that are trained")


def _check_capturable(work: Workload) -> None:
    reason = why_not_capturable(
        work.model, device=work.device, processes=1, fixed_shapes=True, accumulate=1, precision=work.precision
    )
    if not all(isinstance(part, Tensor) for part in work.batches(0)):
        reason = reason or "x or y is not a tensor"
    if reason:
        raise RecipeError(f"steps cannot be captured as CUDA graphs: {reason}; use --step eager")


def train(work: Workload, steps: int) -> None:
    """Train with AdamW on one copy per example."""
    variant = standard(work)
    step = _step(variant, torch.optim.AdamW(work.model.parameters(), lr=1e-3))
    loss = torch.zeros(())
    for number in range(steps):
        loss = step(work.batches(number))
    if not math.isfinite(float(loss)):
        raise NonFiniteError(f"the loss became {float(loss)} in {steps} training steps; use --train_steps 0")


def _repeat(step: Step, batch: Batch, times: int) -> None:
    for _ in range(times):
        step(batch)


def _attempt(
    work: Workload, steps: dict[str, Step], key: str, action: Callable[[], object], notes: dict[str, str]
) -> None:
    """Run a variant. If it cannot run, remove it and note why: a check of MaxUp, the network, or out of memory."""
    try:
        action()
        return
    except (ValueError, TypeError, RuntimeError) as error:
        if key == next(iter(steps)):  # the standard step, to which the others are compared
            raise
        why = error_message(error) if isinstance(error, MaxUpError) else format_error(error)
        notes[key] = f"not measured: {why}"
    del steps[key]
    work.model.zero_grad()
    gc.collect()  # what the failed step allocated
    if work.device.type == "cuda":
        torch.cuda.empty_cache()


def _step(variant: Variant, optimizer: torch.optim.Optimizer) -> Step:
    def step(batch: Batch) -> Tensor:
        loss = variant.backward(batch)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def _capture(variant: Variant, step: Step, notes: dict[str, str]) -> Step:
    def say(reason: str) -> None:
        notes[variant.key] = reason

    def nothing() -> None:
        pass

    def generators() -> list[torch.Generator]:
        return [variant.generator]

    return CapturedStep(step, key=nothing, generators=generators, seed=nothing, replayed=nothing, say=say)


def _graphed(action: Callable[[], None], *, captured: bool) -> Callable[[], object]:
    return capture_graph(action).replay if captured else action


def _forward(work: Workload, batch: Batch) -> None:
    """Forward a batch without a graph, with the network as it is."""
    with torch.no_grad(), work.autocast():
        work.forward(work.model, batch[0])


def _copy(work: Workload, batch: Batch) -> None:
    """Draw one copy per example and apply it."""
    work.perturbation.apply(batch, work.perturbation.draw(batch, None))
    clear(work.perturbation)

"""Dynamic evaluation (Krause, Kahembwe, Murray and Renals, 2018): a model goes on learning from what it was tested on.

    predict a segment, then  w  <-  w  -  lr g / (RMS + eps)  +  decay (RMS / mean RMS) (w0 - w)

g is the segment's gradient, RMS the root mean square of the gradients over the training text, w0 the trained weights;
the factor of (w0 - w) is at most 1. The rate and the decay are chosen on the first part of the validation text.
"""

import hashlib
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from maxup.cuda.graph import record
from maxup.errors import InterruptedRunError
from maxup.lab.data.text import Text
from maxup.lab.data.windows import Windows
from maxup.lab.models.frozen import frozen_copy
from maxup.lab.progress import Progress
from maxup.lab.storage import atomic_io
from maxup.lab.tasks.language import perplexity

RATES = (3e-5, 5e-5, 7e-5, 1e-4)
DECAYS = (1e-3, 2e-3, 3e-3, 5e-3)
EPSILON = 2e-5
SEGMENT = 5  # words between updates
TUNED_ON = 5_000  # words at the start of the validation text, and at most a quarter of it
COLUMNS = 100  # of the training text, for the statistics
FILE = "dynamic.json"
DIVERGED = 1e9  # a loss for what is not finite, which JSON does not know


def dynamic_evaluation(
    model: Any,
    text: Text,
    folder: Path,
    *,
    rates: tuple[float, ...] = RATES,
    decays: tuple[float, ...] = DECAYS,
    tuned_on: int = TUNED_ON,
    asked: Callable[[], bool] = lambda: False,
    quiet: bool = False,
) -> dict[str, float]:
    """Choose rate and decay on a part of the validation text, then evaluate all of it and the test text once.

    What is done is kept in the folder's dynamic.json, for every model, text and grid apart: the same call goes on with
    the part that was not finished.

    Args:
        model: A trained model; it stays as it is.
        text: What it was trained on.
        folder: The run's.
        rates: Learning rates to try.
        decays: Decays to try with each.
        tuned_on: Words at the start of the validation text to try them on, at most a quarter of it.
        asked: Whether to stop, asked after every segment; an InterruptedRunError then says how to go on.
        quiet: Show no progress.

    Returns:
        Perplexities of validation and test, and the rate and the decay they were found with.
    """
    model = frozen_copy(model).requires_grad_().eval()
    tensors = [*model.parameters(), text.train, text.validation, text.test]
    key = f"{_fingerprint(tensors)} {rates} {decays} {tuned_on} {EPSILON} {SEGMENT} {COLUMNS}"
    done = _read(folder / FILE).get(key, {})
    grid = {f"lr {lr:g} decay {decay:g}": (lr, decay) for lr in rates for decay in decays}
    names, tuned_on = ("validation", "test"), max(2, min(tuned_on, len(text.validation) // 4))
    if any(name not in done for name in (*grid, *names)):
        train = _windows(text.train, max(1, min(COLUMNS, len(text.train) // (2 * SEGMENT))), model)
        words = len(grid) * tuned_on + len(text.validation) + len(text.test)
        with Progress(train.steps(1) + words // SEGMENT, quiet=quiet) as progress:

            def tell(what: str, words: int) -> None:
                if asked():
                    raise InterruptedRunError(
                        f"stopped in dynamic evaluation; the parts that are done are kept in {folder / FILE}: the same "
                        "command goes on from there"
                    )
                progress.done += 1
                if progress.due():
                    progress.show(progress.done, f"dynamic evaluation: {what}", words, "tokens")

            rms = statistics(model, train, lambda: tell("statistics", len(train.columns) * SEGMENT))
            for name in (*grid, *names):
                if name in done:
                    continue
                part = text.validation[:tuned_on] if name in grid else getattr(text, name)
                lr, decay = grid[name] if name in grid else grid[min(grid, key=done.__getitem__)]
                loss = adapt(model, rms, part, lr, decay, tell=partial(tell, name, SEGMENT))
                done[name] = loss if math.isfinite(loss) else DIVERGED
                atomic_io.write_json(folder / FILE, _read(folder / FILE) | {key: done})
    lr, decay = grid[min(grid, key=done.__getitem__)]
    found = {f"{name}_dynamic_perplexity": perplexity(done[name]) for name in names}
    return found | {"dynamic_lr": lr, "dynamic_decay": decay}


def statistics(model: Any, windows: Windows, tell: Callable[[], None] = lambda: None) -> list[Tensor]:
    """The root mean square of every weight's gradient over the segments of a text."""
    parameters = list(model.parameters())
    squares = [torch.zeros_like(p) for p in parameters]
    hidden, count = model.start(len(windows.columns)), 0
    for _, tokens, target in windows:
        _, hidden, gradients = _learn(model, tokens, target, hidden, parameters)
        torch._foreach_addcmul_(squares, gradients, gradients)
        count += 1
        tell()
    return [(s / count).sqrt() for s in squares]


def adapt(
    model: Any,
    rms: list[Tensor],
    text: Tensor,
    lr: float,
    decay: float,
    *,
    epsilon: float = EPSILON,
    tell: Callable[[], None] = lambda: None,
) -> float:
    """The mean loss on a text, each segment predicted before it is learnt from; the weights are put back at the end."""
    parameters = list(model.parameters())
    mean = torch.stack([r.mean() for r in rms]).mean()
    before = [p.detach().clone() for p in parameters]
    pulls = [(decay * r / mean).clamp_max(1) for r in rms]
    scales = [lr / (r + epsilon) for r in rms]
    windows, hidden = _windows(text, 1, model), model.start(1)
    carried = [part for pair in hidden for part in pair]
    device = windows.columns.device
    total = torch.zeros((), dtype=torch.double, device=device)
    fixed = torch.zeros(2, 1, SEGMENT, dtype=torch.long, device=device)  # the words and targets that a recording reads

    def segment(tokens: Tensor, target: Tensor) -> None:
        loss, ends, gradients = _learn(model, tokens, target, hidden, parameters)
        total.add_(loss * target.numel())
        with torch.no_grad():
            torch._foreach_lerp_(parameters, before, pulls)
            torch._foreach_addcmul_(parameters, gradients, scales, -1)
            torch._foreach_copy_(carried, [part for pair in ends for part in pair])

    def put_back() -> None:
        with torch.no_grad():
            torch._foreach_copy_(parameters, before)
            torch._foreach_zero_([*carried, total])

    try:
        replay = None
        if device.type == "cuda":  # thousands of small steps, alike but for the words
            replay = record(lambda: segment(*fixed)).replay
            put_back()
        for _, tokens, target in windows:
            if replay is None or target.shape != fixed[1].shape:  # the last may be shorter
                segment(tokens, target)
            else:
                torch.stack([tokens, target], out=fixed)
                replay()
            tell()
        return float(total) / (windows.columns.shape[1] - 1)
    finally:
        put_back()


def _learn(
    model: Any, tokens: Tensor, target: Tensor, hidden: Any, parameters: list[Tensor]
) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
    """A segment's mean loss, the state after it, and the gradient."""
    read = model(tokens, hidden)
    loss = F.cross_entropy(model.decode(read.output).flatten(0, 1), target.flatten())
    gradients = torch.autograd.grad(loss, parameters)
    return loss.detach(), [(h.detach(), c.detach()) for h, c in read.hidden], gradients


def _windows(text: Tensor, columns: int, model: Any) -> Windows:
    return Windows(text, columns, SEGMENT, device=model.bias.device, seed=None)


def _fingerprint(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(str(tensor.shape).encode() + tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, dict[str, float]]:
    """The parts that are done, by what they are of; none where the file is of no use."""
    try:
        held = atomic_io.parse(path.name, atomic_io.read(path))
        return {key: losses for key, losses in held.items() if all(type(v) is float for v in losses.values())}
    except (OSError, ValueError, RecursionError, AttributeError):  # the last where it is no dict of dicts
        return {}

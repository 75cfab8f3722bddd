"""Dynamic evaluation (Krause, Kahembwe, Murray and Renals, 2018): the model adapts to the text that it predicts.

    predict a segment, then  w  <-  w  -  lr g / (RMS + eps)  +  decay (RMS / mean RMS) (w0 - w)

g is the gradient of the segment, RMS the root mean square of the gradients over the training text, and w0 the trained
weights. The factor of (w0 - w) is at most 1. Learning rate and decay are chosen on the start of the validation text.
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

from maxup.cuda.graph import capture_graph
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
TUNED_ON = 5_000  # words at the start of the validation text, at most a quarter of it
COLUMNS = 100  # columns of the training text, for the gradient statistics
FILE = "dynamic.json"
DIVERGED = 1e9  # stands for a loss that is not finite, which JSON cannot represent


def dynamic_evaluation(
    model: Any,
    text: Text,
    folder: Path,
    *,
    rates: tuple[float, ...] = RATES,
    decays: tuple[float, ...] = DECAYS,
    tuned_on: int = TUNED_ON,
    should_stop: Callable[[], bool] = lambda: False,
    quiet: bool = False,
) -> dict[str, float]:
    """Choose learning rate and decay on a part of the validation text, then evaluate the validation and test text.

    Finished parts are saved in dynamic.json, separately for each model, text and grid. The same call resumes.

    Args:
        model: A trained model. It is not changed.
        text: The text that it was trained on.
        folder: The run folder.
        rates: Learning rates to try.
        decays: Decays to try with each learning rate.
        tuned_on: Number of words of the validation text to try them on, at most a quarter of it.
        should_stop: Called after every segment. If it returns True, an InterruptedRunError is raised.
        quiet: Show no progress.

    Returns:
        The perplexities of the validation and test text, and the learning rate and decay that were chosen.
    """
    model = frozen_copy(model).requires_grad_().eval()
    tensors = [*model.parameters(), text.train, text.validation, text.test]
    key = f"{_fingerprint(tensors)} {rates} {decays} {tuned_on} {EPSILON} {SEGMENT} {COLUMNS}"
    done = _read(folder / FILE).get(key, {})
    grid = {f"lr {lr:g} decay {decay:g}": (lr, decay) for lr in rates for decay in decays}
    names, tuned_on = ("validation", "test"), max(2, min(tuned_on, len(text.validation) // 4))
    parts = dict.fromkeys(grid, text.validation[:tuned_on]) | {name: getattr(text, name) for name in names}
    if left := [name for name in parts if name not in done]:
        train = _windows(text.train, max(1, min(COLUMNS, len(text.train) // (2 * SEGMENT))), model)
        segments = sum(_windows(parts[name], 1, model).steps(1) for name in left)
        with Progress(train.steps(1) + segments, quiet=quiet) as progress:

            def advance(what: str, words: int) -> None:
                if should_stop():
                    raise InterruptedRunError(
                        f"stopped in dynamic evaluation; finished parts are saved in {folder / FILE}, and the same "
                        "command resumes"
                    )
                progress.done += 1
                if progress.due():
                    progress.show(progress.done, f"dynamic evaluation: {what}", words, "tokens")

            rms = statistics(model, train, lambda: advance("statistics", len(train.columns) * SEGMENT))
            for name in left:
                lr, decay = grid[name] if name in grid else grid[min(grid, key=done.__getitem__)]
                loss = adapt(model, rms, parts[name], lr, decay, advance=partial(advance, name, SEGMENT))
                done[name] = loss if math.isfinite(loss) else DIVERGED
                atomic_io.write_json(folder / FILE, _read(folder / FILE) | {key: done})
    lr, decay = grid[min(grid, key=done.__getitem__)]
    perplexities = {f"{name}_dynamic_perplexity": perplexity(done[name]) for name in names}
    return perplexities | {"dynamic_lr": lr, "dynamic_decay": decay}


def statistics(model: Any, windows: Windows, advance: Callable[[], None] = lambda: None) -> list[Tensor]:
    """Return the root mean square of the gradient of every weight over the segments of a text."""
    parameters = list(model.parameters())
    squares = [torch.zeros_like(p) for p in parameters]
    hidden, count = model.start(len(windows.columns)), 0
    for _, tokens, target in windows:
        _, hidden, gradients = _learn(model, tokens, target, hidden, parameters)
        torch._foreach_addcmul_(squares, gradients, gradients)
        count += 1
        advance()
    return [(s / count).sqrt() for s in squares]


def adapt(
    model: Any,
    rms: list[Tensor],
    text: Tensor,
    lr: float,
    decay: float,
    *,
    advance: Callable[[], None] = lambda: None,
) -> float:
    """Return the mean loss on a text. Each segment is predicted, then learned from. The weights are restored."""
    parameters = list(model.parameters())
    mean = torch.stack([r.mean() for r in rms]).mean()
    before = [p.detach().clone() for p in parameters]
    pulls = [(decay * r / mean).clamp_max(1) for r in rms]
    scales = [lr / (r + EPSILON) for r in rms]
    windows, hidden = _windows(text, 1, model), model.start(1)
    carried = [part for pair in hidden for part in pair]
    device = windows.columns.device
    total = torch.zeros((), dtype=torch.double, device=device)
    fixed = torch.zeros(2, 1, SEGMENT, dtype=torch.long, device=device)  # inputs of the CUDA graph: words and targets

    def segment(tokens: Tensor, target: Tensor) -> None:
        loss, ends, gradients = _learn(model, tokens, target, hidden, parameters)
        total.add_(loss * target.numel())
        with torch.no_grad():
            torch._foreach_lerp_(parameters, before, pulls)
            torch._foreach_addcmul_(parameters, gradients, scales, -1)
            torch._foreach_copy_(carried, [part for pair in ends for part in pair])

    def restore() -> None:
        with torch.no_grad():
            torch._foreach_copy_(parameters, before)
            torch._foreach_zero_([*carried, total])

    try:
        replay = None
        if device.type == "cuda":  # thousands of small steps that differ only in the words
            replay = capture_graph(lambda: segment(*fixed)).replay
            restore()
        for _, tokens, target in windows:
            if replay is None or target.shape != fixed[1].shape:  # the last segment may be shorter
                segment(tokens, target)
            else:
                torch.stack([tokens, target], out=fixed)
                replay()
            advance()
        return float(total) / (windows.columns.shape[1] - 1)
    finally:
        restore()


def _learn(
    model: Any, tokens: Tensor, target: Tensor, hidden: Any, parameters: list[Tensor]
) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
    """Return the mean loss of a segment, the hidden state after it, and the gradient."""
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
    """Return the finished parts by key, or {} if the file is missing or invalid."""
    try:
        held = atomic_io.parse(path.name, atomic_io.read(path))
        return {key: losses for key, losses in held.items() if all(type(v) is float for v in losses.values())}
    except (OSError, ValueError, RecursionError, AttributeError):  # AttributeError: not a dict of dicts
        return {}

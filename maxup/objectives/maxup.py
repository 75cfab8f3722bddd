"""MaxUp (Gong, Ren, Ye and Liu, 2020): train on the worst of m perturbed copies of every example.

    min_theta  E_x [ max_{i <= m} L(x'_i, theta) ],    x'_1 ... x'_m ~ P(.|x) i.i.d.        (eq. 2)

    grad max_i L(x'_i, theta)  =  grad L(x'_i*, theta),    i* = argmax_i L(x'_i, theta)     (eq. 3)

So: score m copies without a graph, keep the draw of the worst, and train on the copy rebuilt from that draw.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from maxup.checks import (
    MaxUpWarning,
    batch_size,
    check_choice,
    check_knobs,
    check_perturbation,
    check_whole,
    is_capturing,
    leaves,
    refuse_batch_norm,
)
from maxup.objectives.base import Forward, Loss, Objective, Outcome, bare, call, cross_entropy
from maxup.objectives.worst import Worst
from maxup.perturb.attach import attached, check_attached
from maxup.perturb.draws import Batch, Draw, is_batched
from maxup.shared_masks import Recorded, record, shared_masks
from maxup.side_effects import autocast


class MaxUp(Objective):
    """The worst of m perturbed copies.

    Args:
        perturbation: P(.|x), an object with `draw(batch, generator)` and `apply(batch, draw)`.
        m: Copies of every example, or a function of the step that says how many; 1 is standard augmentation.
        norm: Train-mode BatchNorm scores a copy with the statistics of its own "batch", or with the "running" ones.
        strategy: "recompute" forwards the winners again; "retain" keeps the graphs of all copies in one wide batch.
        chunk: Copies scored in one forward pass.
        masks: "shared" gives all copies of an example the same dropout masks, so that they differ by the perturbation
            alone; "independent", with "retain" only, draws masks for every copy and takes the maximum over both.
        dtype: Precision of scoring, by autocast; default the caller's.
        rank: Compare copies by "loss", or by "kl", which subtracts the entropy of mixed labels.
        forward: How the model is called, `forward(model, x) -> output`.
        loss: `loss(output, target) -> (B,)`.
        generator: Source of the draws; default its own, which obeys `torch.manual_seed`.

    Example:
        >>> from maxup import Gaussian
        >>> model, x, y = torch.nn.Linear(5, 3), torch.rand(8, 5), torch.randint(3, (8,))
        >>> maxup = MaxUp(Gaussian(0.1), m=4)
        >>> x, y = maxup.select(model, x, y)
        >>> torch.nn.functional.cross_entropy(model(x), y).backward()
    """

    def __init__(
        self,
        perturbation: Any,
        m: int | Callable[[int], int] = 4,
        *,
        norm: str = "batch",
        strategy: str = "recompute",
        chunk: int = 1,
        masks: str = "shared",
        dtype: torch.dtype | None = None,
        rank: str = "loss",
        forward: Forward = call,
        loss: Loss = cross_entropy,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(check_perturbation(perturbation), m, loss=loss, forward=forward, generator=generator)
        self.norm = check_choice("norm", norm, "batch", "running")
        self.strategy = check_choice("strategy", strategy, "recompute", "retain")
        self.rank = check_choice("rank", rank, "loss", "kl")
        self.chunk, self.dtype = check_whole("chunk", chunk), dtype
        self.masks = check_choice("masks", masks, "shared", "independent")
        check_knobs(strategy, norm, chunk, dtype, rank, masks, custom_loss=loss is not cross_entropy)
        self._recorded: dict[Any, Recorded] = {}  # by the batch's shapes: what one copy draws at random

    def select(self, model: Any, x: Any, y: Any) -> Batch:
        """The worst of m copies of every example, for the training loop you already have."""
        if attached(self.perturbation):
            raise TypeError(
                "this perturbation acts inside the model, where select cannot leave it; "
                "use loss = maxup(model, x, y), or: with maxup.selected(model, x, y) as (x, y)"
            )
        with self.selected(model, x, y) as worst:
            return worst

    @contextmanager
    def selected(self, model: Any, x: Any, y: Any) -> Iterator[Batch]:
        """`select` as a context: inside it, perturbations attached to the model are at their winners too."""
        if self.strategy == "retain":
            raise ValueError("strategy='retain' is for the one call loss = maxup(model, x, y); select recomputes")
        with self._step(x, y) as (batch, generator):
            yield self._copy(batch, self._search(model, batch, generator).draw)

    def run(self, model: Any, x: Any, y: Any) -> Outcome:
        """The loss of eq. 2, the winners' output and draw, and a report for whoever asks."""
        with self._step(x, y) as (batch, generator):
            if self.strategy == "retain":
                worst, trained = self._retain(model, batch, generator)
            else:
                worst = self._search(model, batch, generator)
                trained = self._forward(model, batch, [worst.draw])
            output, target, losses = trained
            return Outcome(self._mean(losses, target), losses, output, target, worst)

    def _search(self, model: Any, batch: Batch, generator: Generator) -> Worst:
        """i* of eq. 3 as a running maximum: only the worst draw so far is kept, so memory does not grow with m."""
        m, worst = self.copies(), Worst(self.rank)
        check_attached(self.perturbation, model)
        if m == 1:
            (worst.draw,) = self._draws(batch, generator, 1)
            return worst
        model = bare(model)
        if self.chunk > 1:
            running = self.norm == "running"
            refuse_batch_norm(model, f"chunk={self.chunk}", "use norm='running' or chunk=1", running=running)
        first = self._unscored and not is_capturing(leaves(batch)[0].device)
        together = first and not any(isinstance(layer, _BatchNorm) and layer.training for layer in model.modules())
        with self._untraced(model, batch, self.norm) as rewind, torch.no_grad(), autocast(batch, self.dtype):
            for start in range(0, m, self.chunk):  # chunk is 1 unless asked otherwise
                worst.see(*self._score(model, batch, generator, min(self.chunk, m - start), rewind))
            if first:
                _warn_of_ties(worst)
            if together:
                rewind()
                _warn_of_others(worst, self._forward(model, batch, [worst.draw])[2])
        return worst

    def _score(
        self, model: Any, batch: Batch, generator: Generator, copies: int, rewind: Callable[[], None]
    ) -> tuple[list[Draw], Tensor, Any]:
        """Draw copies and find their losses. A function of its own, so that nothing of a copy outlives it."""
        draws = self._draws(batch, generator, copies)  # x'_i ~ P(.|x)
        recorded = self._record(model, batch, draws, rewind) if copies > 1 else []
        rewind()  # all copies, and the caller's own forward pass, see the same dropout masks and state
        with shared_masks(recorded, copies, batch_size(batch), "use chunk=1"):
            _, target, losses = self._forward(model, batch, draws)  # L(x'_i, theta)
        return draws, losses, target

    def _record(self, model: Any, batch: Batch, draws: list[Draw], rewind: Callable[[], None]) -> Recorded:
        """The random operations of a pass over one copy, which the copies of a wide pass share."""
        shapes = model.training, *(leaf.shape for leaf in leaves(batch))
        if shapes not in self._recorded:
            rewind()
            with record() as recorded:
                self._forward(model, batch, draws[:1])
            self._recorded[shapes] = recorded.operations
        return self._recorded[shapes]

    def _retain(self, model: Any, batch: Batch, generator: Generator) -> tuple[Worst, Any]:
        """The same maximum with all graphs kept: one wide batch, of which the winners' rows are trained on."""
        m, worst, n = self.copies(), Worst(self.rank), batch_size(batch)
        check_attached(self.perturbation, model)
        if m > 1:
            refuse_batch_norm(model, "strategy='retain'", "use strategy='recompute'")
        draws = self._draws(batch, generator, m)
        recorded: Recorded = []
        if m > 1 and self.masks == "shared":
            with self._untraced(bare(model), batch, "batch") as rewind, torch.no_grad():
                recorded = self._record(bare(model), batch, draws, rewind)
        with shared_masks(recorded, m, n, "use strategy='recompute', or masks='independent'"):
            output, target, losses = self._forward(model, batch, draws)  # (m * B, ...)
        worst.see(draws, losses, target)
        if self._first:
            _warn_of_ties(worst)
        assert worst.copy is not None
        rows = worst.copy * n + torch.arange(n, device=losses.device)  # (B,)

        def winners(leaf: Any) -> Any:  # index_select, whose gradient costs less than that of leaf[rows]
            return leaf.index_select(0, rows) if is_batched(leaf) and len(leaf) == m * n else leaf

        return worst, tree_map(winners, (output, target, losses))


def _warn_of_others(worst: Worst, losses: Tensor) -> None:
    """Warn of winners whose losses change when the winners of all examples are one batch: they are not replayed."""
    assert worst.copy is not None
    scored = torch.stack(worst.losses).gather(0, worst.copy[None])[0]  # (B,)
    low = torch.is_autocast_enabled(losses.device.type) or losses.dtype in (torch.float16, torch.bfloat16)
    error = (losses - scored).abs()
    if bool((error > (0.1 if low else 0.01) * (1 + scored.abs())).any()):
        warnings.warn(
            f"the losses of the winners differ by up to {float(error.max()):.2g} from what they were chosen by: the "
            "model or the loss mixes the examples of a batch, or draws random numbers that depend on the data, so the "
            "gradient is not exactly that of the worst copies",
            MaxUpWarning,
            stacklevel=2,
        )


def _warn_of_ties(worst: Worst) -> None:
    """Warn of copies that all have the same loss: training then costs m times as much for nothing."""
    losses = torch.stack(worst.losses)  # (m, B)
    if len(losses) > 1 and bool((losses == losses[0]).all()):
        warnings.warn(
            f"all {len(losses)} copies of every example have the same loss: the perturbation changes nothing that the "
            "model sees; check its strength, and for one inside the model that its layer is called",
            MaxUpWarning,
            stacklevel=2,
        )

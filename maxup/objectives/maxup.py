"""MaxUp (Gong, Ren, Ye and Liu, 2020): train on the worst of m perturbed copies of every example.

    min_theta  E_x [ max_{i <= m} L(x'_i, theta) ],    x'_1 ... x'_m ~ P(.|x) i.i.d.        (eq. 2)

    grad max_i L(x'_i, theta)  =  grad L(x'_i*, theta),    i* = argmax_i L(x'_i, theta)     (eq. 3)

So: score m copies without a graph, keep the draw of the worst, and train on the copy rebuilt from that draw.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from maxup.batch import Batch, Draw, batch_size, is_batched, leaves
from maxup.isolation import autocast, refuse_dropout
from maxup.objectives.base import Forward, LossFn, Objective, Outcome, bare, call, cross_entropy
from maxup.objectives.running_max import RunningMax
from maxup.objectives.shared_masks import WidePasses, warn_of_change
from maxup.perturb.in_model import check_attached, in_model_parts
from maxup.validate import (
    check_choice,
    check_perturbation,
    check_settings_agree,
    check_whole,
    is_capturing,
    refuse_batch_norm,
    warn,
)

PATIENCE = 8  # batches in which a network may ignore its input


class MaxUp(Objective):
    """The worst of m perturbed copies.

    Args:
        perturbation: P(.|x), an object with `draw(batch, generator)` and `apply(batch, draw)`.
        m: Copies of every example, or a function of the step that says how many; 1 is standard augmentation.
        norm: Train-mode BatchNorm scores a copy with the statistics of its own "batch", or with the "running" ones.
        strategy: "recompute" forwards the winners again; "retain" keeps the graphs of all copies in one wide batch.
        chunk_size: Copies scored in one forward pass.
        masks: "shared" gives all copies of an example the same dropout masks, so that they differ by the perturbation
            alone; "independent", with "retain" only, draws masks for every copy and takes the maximum over both.
        dtype: Precision of scoring, by autocast; default the caller's.
        score: Compare copies by "loss", or by "kl", which subtracts the entropy of mixed labels.
        forward: How the model is called, `forward(model, x) -> output`.
        loss_fn: `loss_fn(output, target) -> (B,)`.
        generator: Source of the draws; default its own, which obeys `torch.manual_seed`.

    Example:
        >>> from maxup import Gaussian
        >>> model, x, y = torch.nn.Linear(5, 3), torch.rand(8, 5), torch.randint(3, (8,))
        >>> objective = MaxUp(Gaussian(0.1), m=4)
        >>> x, y = objective.select(model, x, y)
        >>> torch.nn.functional.cross_entropy(model(x), y).backward()
    """

    def __init__(
        self,
        perturbation: Any,
        m: int | Callable[[int], int] = 4,
        *,
        norm: str = "batch",
        strategy: str = "recompute",
        chunk_size: int = 1,
        masks: str = "shared",
        dtype: torch.dtype | None = None,
        score: str = "loss",
        forward: Forward = call,
        loss_fn: LossFn = cross_entropy,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(check_perturbation(perturbation), m, loss_fn=loss_fn, forward=forward, generator=generator)
        self.norm = check_choice("norm", norm, "batch", "running")
        self.strategy = check_choice("strategy", strategy, "recompute", "retain")
        self.score = check_choice("score", score, "loss", "kl")
        self.chunk_size, self.dtype = check_whole("chunk_size", chunk_size), dtype
        self.masks = check_choice("masks", masks, "shared", "independent")
        check_settings_agree(strategy, norm, chunk_size, dtype, score, masks, custom_loss=loss_fn is not cross_entropy)
        retain = strategy == "retain"
        self._wide = WidePasses("use strategy='recompute', or masks='independent'" if retain else "use chunk_size=1")
        self._ties: int | None = 0  # batches whose copies all tied so far; None once that is settled

    def select(self, model: Any, x: Any, y: Any) -> Batch:
        """The worst of m copies of every example, for the training loop you already have."""
        if in_model_parts(self.perturbation):
            raise TypeError(
                "this perturbation acts inside the model, where select cannot leave it; "
                "use loss = objective(model, x, y), or: with objective.selected(model, x, y) as (x, y)"
            )
        with self.selected(model, x, y) as worst:
            return worst

    @contextmanager
    def selected(self, model: Any, x: Any, y: Any) -> Iterator[Batch]:
        """`select` as a context: inside it, perturbations attached to the model are at their winners too."""
        if self.strategy == "retain":
            raise ValueError("strategy='retain' is for the one call loss = objective(model, x, y); select recomputes")
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

    def _search(self, model: Any, batch: Batch, generator: Generator) -> RunningMax:
        """i* of eq. 3 as a running maximum: only the worst draw so far is kept, so memory does not grow with m."""
        m, worst = self.copies(), RunningMax(self.score)
        check_attached(self.perturbation, model)
        if m == 1:
            (worst.draw,) = self._draws(batch, generator, 1)
            return worst
        model = bare(model)
        if self.chunk_size > 1:
            running = self.norm == "running"
            refuse_batch_norm(
                model, f"chunk_size={self.chunk_size}", "use norm='running' or chunk_size=1", running=running
            )
        first = self._unscored and not is_capturing(leaves(batch)[0].device)
        together = first and not any(isinstance(layer, _BatchNorm) and layer.training for layer in model.modules())
        with self._preserve_state(model, batch, self.norm) as rewind, torch.no_grad(), autocast(batch, self.dtype):
            for start in range(0, m, self.chunk_size):  # chunk_size is 1 unless asked otherwise
                worst.update(*self._score(model, batch, generator, min(self.chunk_size, m - start), rewind))
            if together:
                rewind()
                assert worst.copy is not None
                scored = torch.stack(worst.losses)  # (m, B)
                chosen, losses = scored.gather(0, worst.copy[None])[0], self._forward(model, batch, [worst.draw])[2]
                warn_of_change(chosen, losses, scored, "the winners", "in one batch of winners")
        self._look_for_ties(worst)
        return worst

    def _score(
        self, model: Any, batch: Batch, generator: Generator, copies: int, rewind: Callable[[], None]
    ) -> tuple[list[Draw], Tensor, Any]:
        """Draw copies and find their losses. A function of its own, so that nothing of a copy outlives it."""
        draws = self._draws(batch, generator, copies)  # x'_i ~ P(.|x)
        if copies == 1 or is_capturing(leaves(batch)[0].device):
            rewind()  # all copies, and the caller's own forward pass, see the same dropout masks and state
            _, target, losses = self._forward(model, batch, draws)  # L(x'_i, theta)
            return draws, losses, target
        kind = self._wide.kind(model, batch)
        if kind not in self._wide.known:
            self._wide.learn(kind, model, lambda: self._forward(model, batch, draws[:1])[2], rewind)
        rewind()
        wide = partial(self._forward, model, batch, draws)
        _, target, losses = self._wide.run(kind, model, wide, copies, batch_size(batch))
        return draws, losses, target

    def _look_for_ties(self, worst: RunningMax) -> None:
        """Warn once of copies that all have the same loss: training then costs m times as much for nothing.

        If all examples have the same loss too, the network may ignore its input only at the start, as with a last layer
        of zeros: then wait for some more batches.
        """
        if self._ties is None or len(worst.losses) < 2 or is_capturing(worst.losses[0].device):
            return
        losses = torch.stack(worst.losses)  # (m, B)
        tied = bool((losses == losses[0]).all())
        self._ties = self._ties + 1 if tied else None
        if tied and (self._ties == PATIENCE or not bool((losses == losses[0, 0]).all())):
            self._ties = None
            warn(
                f"all {len(losses)} copies of every example have the same loss: the perturbation changes nothing that "
                "the model sees; check its strength, and for one inside the model that its layer is called"
            )

    def _retain(self, model: Any, batch: Batch, generator: Generator) -> tuple[RunningMax, Any]:
        """The same maximum with all graphs kept: one wide batch, of which the winners' rows are trained on."""
        m, worst, n = self.copies(), RunningMax(self.score), batch_size(batch)
        check_attached(self.perturbation, model)
        if m > 1:
            refuse_batch_norm(model, "strategy='retain'", "use strategy='recompute'")
        draws = self._draws(batch, generator, m)
        wide = partial(self._forward, model, batch, draws)
        capturing, network = is_capturing(leaves(batch)[0].device), bare(model) if m > 1 else model
        if capturing and m > 1 and self.masks == "shared":
            refuse_dropout(network)
        if m == 1 or self.masks == "independent" or capturing:  # a capture cannot read the random streams
            output, target, losses = wide()  # (m * B, ...)
        else:
            kind = self._wide.kind(network, batch)
            if kind not in self._wide.known:
                with self._preserve_state(network, batch, "batch") as rewind, torch.no_grad():
                    one = partial(self._forward, network, batch, draws[:1])
                    self._wide.learn(kind, network, lambda: one()[2], rewind)
            output, target, losses = self._wide.run(kind, network, wide, m, n)
        worst.update(draws, losses, target)
        self._look_for_ties(worst)
        assert worst.copy is not None
        rows = worst.copy * n + torch.arange(n, device=losses.device)  # (B,)

        def winners(leaf: Any) -> Any:  # index_select, whose gradient costs less than that of leaf[rows]
            return leaf.index_select(0, rows) if is_batched(leaf) and len(leaf) == m * n else leaf

        return worst, tree_map(winners, (output, target, losses))

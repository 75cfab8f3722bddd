"""MaxUp (Gong, Ren, Ye and Liu, 2020): train on the worst of m perturbed copies of every example.

    min_theta  E_x [ max_{i <= m} L(x'_i, theta) ],    x'_1 ... x'_m ~ P(.|x) i.i.d.        (eq. 2)

    grad max_i L(x'_i, theta)  =  grad L(x'_i*, theta),    i* = argmax_i L(x'_i, theta)     (eq. 3)

`MaxUp._select_worst` finds i*: `_score` scores m copies without a graph and passes them to `RunningMax.update`, which
chooses the worst copy, the *winner*. `MaxUp.run` then rebuilds the winner from its draw and trains on it. `fast` and
`shortlist` replace this selection by a cheaper, approximate one, `_select_approximately`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from maxup.batch import Batch, Draw, batch_size, device_of, is_batched
from maxup.cuda.selection import CapturedSelection
from maxup.dropout import refuse_dropout
from maxup.isolation import autocast, preserve_state
from maxup.objectives.auto_strategy import AutoStrategy
from maxup.objectives.base import Forward, LossFn, Objective, Outcome, call_model, cross_entropy, unwrap
from maxup.objectives.fast_scoring import CHECK_EVERY, FastScoring, Scoring, halve, share_of_gap
from maxup.objectives.running_max import RunningMax, to_scores
from maxup.objectives.sanity import GapCheck, TieCheck, warn_if_winners_change
from maxup.objectives.shortlist import FirstOrder, Shortlist, check_inputs, check_same_shapes
from maxup.objectives.wide_passes import WidePasses
from maxup.perturb.base import parts_with_state, remember_draws
from maxup.perturb.in_model import check_attached, in_model_parts
from maxup.scoring import ScoringCompiler
from maxup.validate import (
    check_bool,
    check_choice,
    check_perturbation,
    check_positive_int,
    check_settings_agree,
    is_capturing,
    refuse_batch_norm,
    warn,
)


class MaxUp(Objective):
    """The worst of m perturbed copies of every example.

    Args:
        perturbation: P(.|x), an object with `draw(batch, generator)` and `apply(batch, draw)`.
        m: Copies per example, or a function of the step that returns it. m=1 is standard augmentation.
        norm: Statistics that train-mode BatchNorm uses to score a copy: "batch" or "running".
        strategy: "recompute" forwards the winners again. "retain" keeps the graphs of all copies, as one wide batch.
            "auto" measures both in the first step of every shape, and uses the faster one. `select` always recomputes.
        chunk_size: Copies per scoring pass.
        masks: "shared" gives all copies of an example the same dropout masks, so that copies differ only by the
            perturbation. "independent" draws masks per copy and maximizes over both; it needs "retain".
        dropout: Whether dropout is active while copies are scored. False is cheaper, because scoring draws no masks,
            and approximate. The training pass always has dropout.
        compile: Compile the scoring passes (see `maxup.scoring`). The training pass runs as it is.
        capture: Run selection as one CUDA graph, which removes the cost of launching its kernels (see
            `maxup.cuda.selection`). It keeps the memory of its passes. On a CPU it changes nothing.
        fast: Score with running statistics and without dropout, and images of at least 96 x 96 pixels at half their
            height and width. On a GPU, passes are compiled, with at least 4 copies each. At half size, and with
            BatchNorm or dropout, this is approximate. Every 500 steps, the copies are also scored with
            `fast=False`, and `gap_kept` compares the two selections.
        shortlist: Score only this many copies: those with the highest first-order estimate of the loss, from one
            gradient with respect to the unperturbed input (see `maxup.objectives.shortlist`). Approximate. Use it with
            small noise and a large m. It is checked like `fast`.
        dtype: Precision of scoring, by autocast. Default: the caller's.
        score: What to compare copies by: "loss", or "kl", which subtracts the entropy of mixed labels. "easiest"
            selects the copy with the lowest loss, as a control: is training on the *worst* copy what helps?
        forward: How to call the model, `forward(model, x) -> output`.
        loss_fn: Loss per example, `loss_fn(output, target) -> (B,)`.
        generator: Source of the draws. Default: a new one, seeded by `torch.manual_seed`.

    Example:
        >>> from maxup import Gaussian
        >>> model, x, y = torch.nn.Linear(5, 3), torch.rand(8, 5), torch.randint(3, (8,))
        >>> objective = MaxUp(Gaussian(0.1), m=4)
        >>> x, y = objective.select(model, x, y)
        >>> torch.nn.functional.cross_entropy(model(x), y).backward()
    """

    forward_shares_masks = False  # whether `forward` itself gives all copies of an example the same masks

    def __init__(
        self,
        perturbation: Any,
        m: int | Callable[[int], int] = 4,
        *,
        norm: str = "batch",
        strategy: str = "recompute",
        chunk_size: int = 1,
        masks: str = "shared",
        dropout: bool = True,
        compile: bool = False,
        capture: bool = False,
        fast: bool = False,
        shortlist: int | None = None,
        dtype: torch.dtype | None = None,
        score: str = "loss",
        forward: Forward = call_model,
        loss_fn: LossFn = cross_entropy,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(check_perturbation(perturbation), m, loss_fn=loss_fn, forward=forward, generator=generator)
        self.norm = check_choice("norm", norm, "batch", "running")
        self.strategy = check_choice("strategy", strategy, "recompute", "retain", "auto")
        self.score = check_choice("score", score, "loss", "kl", "easiest")
        self.chunk_size, self.dtype = check_positive_int("chunk_size", chunk_size), dtype
        self.masks = check_choice("masks", masks, "shared", "independent")
        self.dropout = check_bool("dropout", dropout)
        self.compile, self.fast = check_bool("compile", compile), check_bool("fast", fast)
        self.capture = check_bool("capture", capture)
        self.shortlist = None if shortlist is None else check_positive_int("shortlist", shortlist)
        check_settings_agree(self, custom_loss=loss_fn is not cross_entropy)
        if shortlist is not None and in_model_parts(perturbation):
            raise ValueError(
                "shortlist ranks copies by the gradient with respect to x, but the perturbation acts inside the model; "
                "remove shortlist"
            )
        if capture and (parts := parts_with_state(perturbation)):
            raise ValueError(
                f"capture=True replays fixed kernels, but the draws of {type(parts[0]).__name__} do not depend on the "
                "generator alone; remove capture=True"
            )
        instead = (
            "use strategy='recompute', or masks='independent'"
            if strategy == "retain"
            else f"use chunk_size=1{' or dropout=False' if dropout else ''}"
        )
        self._wide = WidePasses(instead)
        self._ties, self._gap_check = TieCheck(), GapCheck()
        self._compiler, self._captured = ScoringCompiler(), CapturedSelection()
        self._gap_kept: Tensor | None = None
        self._fast = FastScoring()
        self._strategies = AutoStrategy()

    @property
    def gap_kept(self) -> float | None:
        """Share of the loss gap that `fast` or `shortlist` kept in the last check: 1 is exact, 0 is random."""
        return None if self._gap_kept is None else float(self._gap_kept)

    @property
    def graph_bytes(self) -> int:
        """GPU memory that `capture` keeps for its graph; 0 while selection is not captured."""
        return self._captured.bytes_kept

    @property
    def why_eager(self) -> str:
        """Why selection is not captured although `capture` is set, or ""."""
        on_cpu = self.capture and self.generator is not None and self.generator.device.type != "cuda"
        reason = self._captured.reason or ("the batch is not on a GPU" if on_cpu else "")
        return reason and f"selection runs eagerly, because {reason}"

    def needs_eager(self) -> bool:
        """Whether this step also scores exactly to check the selection, which cannot run in a CUDA graph."""
        if not self._is_approximate(self.copies()):
            return False
        before = range(max(0, self.step - CHECK_EVERY), self.step)
        first = callable(self.m) and not any(self._is_approximate(self.m(step)) for step in before)
        return first or self.step % CHECK_EVERY == 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, with `gap_kept` and the strategies of "auto" if they were measured."""
        state = super().state_dict()
        if self._gap_kept is not None:
            state["gap_kept"] = self.gap_kept
        if self._strategies.chosen:
            state["strategies"] = dict(self._strategies.chosen)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict()`."""
        super().load_state_dict(state)
        kept = state.get("gap_kept")
        self._gap_kept = None if kept is None else torch.tensor(float(kept))
        self._strategies.chosen = dict(state.get("strategies", {}))

    def select(self, model: Any, x: Any, y: Any) -> Batch:
        """Return the winners, the worst of m copies of every example, to train on in your loop."""
        if in_model_parts(self.perturbation):
            raise TypeError(
                "this perturbation acts inside the model, so select cannot return its copies; use "
                "loss = objective(model, x, y), or: with objective.selected(model, x, y) as (x, y)"
            )
        with self.selected(model, x, y) as worst:
            return worst

    @contextmanager
    def selected(self, model: Any, x: Any, y: Any) -> Iterator[Batch]:
        """`select` as a context manager. Inside it, in-model perturbations apply the winners' draws."""
        if self.strategy == "retain":
            raise ValueError("strategy='retain' works with loss = objective(model, x, y) only, not with select")
        with self._step(x, y) as (batch, generator):
            yield self._copy(batch, self._select_worst(model, batch, generator).draw)

    def run(self, model: Any, x: Any, y: Any) -> Outcome:
        """Return the loss of eq. 2, with the winners' outputs, draws and a report on demand."""
        with self._step(x, y) as (batch, generator):
            if self.strategy == "auto":
                return self._run_auto(model, batch, generator)
            return self._run(self.strategy, model, batch, generator)

    def _run(self, strategy: str, model: Any, batch: Batch, generator: Generator) -> Outcome:
        if strategy == "retain":
            worst, trained = self._retain(model, batch, generator)
        else:
            worst = self._select_worst(model, batch, generator)  # i*
            trained = self._forward(model, batch, [worst.draw])  # L(x'_i*, theta), with a graph
        output, target, losses = trained
        return Outcome(self._mean(losses, target), losses, output, target, worst)

    def _run_auto(self, model: Any, batch: Batch, generator: Generator) -> Outcome:
        """Run the faster strategy for this batch, measured if it is new.

        Measuring restores gradients, buffers and random states. Hooks of the model are called, too.
        """
        m = self.copies()
        if is_capturing(device_of(batch)):
            return self._run(self._strategies.get(batch, m), model, batch, generator)
        module, rewind = unwrap(model), remember_draws(self.perturbation, generator)
        weights = [weight for weight in module.parameters() if weight.requires_grad]

        def measure(strategy: str) -> None:
            rewind()
            with preserve_state(module, batch):
                loss = self._run(strategy, module, batch, generator).loss
                torch.autograd.grad(loss, weights, allow_unused=True)

        strategy = "recompute"
        if m > 1 and weights and torch.is_grad_enabled():
            first, self._first_batch = self._first_batch, False  # checks of the first batch would be timed
            ties, self._ties.ties = self._ties.ties, None  # the same copies would be counted many times
            try:
                strategy = self._strategies.choose(batch, m, measure)
            finally:
                self._first_batch, self._ties.ties = first, ties
            rewind()
        try:
            return self._run(strategy, model, batch, generator)
        except ValueError:  # the model has changed: it has BatchNorm in training mode now, for example
            if strategy == "recompute":
                raise
            self._strategies.set(batch, m, "recompute")
            rewind()
            return self._run("recompute", model, batch, generator)

    def _select_worst(self, model: Any, batch: Batch, generator: Generator) -> RunningMax:
        """Find i* of eq. 3 per example: draw and score m copies, and keep the draw of the worst one."""
        check_attached(self.perturbation, model)
        if self.shortlist is not None:
            check_inputs(batch[0])
        if self.copies() == 1:
            worst = RunningMax(self.score)
            (worst.draw,) = self._draws(batch, generator, 1)
            return worst
        model = unwrap(model)
        select = partial(self._select_eagerly, model, generator=generator)
        if self._can_capture(device_of(batch)):
            worst = self._select_captured(select, model, batch, generator)
        else:
            worst = select(batch)
        if worst.shortlist is None:  # the best copies of a shortlist may be the same
            self._ties.update(worst)
        return worst

    def _select_eagerly(self, model: Any, batch: Batch, generator: Generator) -> RunningMax:
        if self._is_approximate(self.copies()):
            return self._select_approximately(model, batch, generator)
        return self._score(model, batch, generator, self._scoring)

    def _can_capture(self, device: torch.device) -> bool:
        return self.capture and device.type == "cuda" and not (is_capturing(device) or self.needs_eager())

    def _select_captured(
        self, select: Callable[[Batch], RunningMax], model: Any, batch: Batch, generator: Generator
    ) -> RunningMax:
        """Select by a CUDA graph, if possible. Once it turns out not to be, warn."""
        before, called = self.why_eager, (model, *self._other_modules(model))
        worst = self._captured(
            select,
            batch,
            generator,
            kind=(*called, self.depends_on()),  # not their ids, which new modules may have again
            modules=lambda: [m for root in called for m in root.modules()],
            remember=partial(remember_draws, self.perturbation, generator),
            dropout=self.dropout and not self.fast,
        )
        if self.why_eager != before:
            warn(f"capture=True: {self.why_eager}")
        return worst

    @property
    def _scoring(self) -> Scoring:
        """Exact scoring, with the settings of this objective."""
        return Scoring(self.norm, self.chunk_size, self.dropout, self.compile)

    def _score(
        self, model: Any, batch: Batch, generator: Generator, how: Scoring, draws: list[Draw] | None = None
    ) -> RunningMax:
        """Draw and score m copies, or score `draws`, `how.chunk_size` at a time."""
        if how.chunk_size > 1:
            instead = "use norm='running' or chunk_size=1"
            refuse_batch_norm(model, f"chunk_size={how.chunk_size}", instead, running=how.norm == "running")
        m = self.copies() if draws is None else len(draws)
        worst, forward = RunningMax(self.score), partial(self._forward, prepare=halve) if how.half else self._forward
        check_winners = self._should_check_winners(model, batch)
        compiled = self._compiler.compile(model, dropout=how.dropout) if how.compile else nullcontext(model)
        with (
            compiled as scored,
            self._preserve_state(model, batch, how.norm, dropout=how.dropout) as rewind,
            torch.no_grad(),
            autocast(batch, self.dtype),
        ):
            for start in range(0, m, how.chunk_size):
                copies = min(how.chunk_size, m - start)
                given = None if draws is None else draws[start : start + copies]
                worst.update(*self._score_chunk(scored, batch, generator, copies, rewind, forward, given))
            if check_winners:
                rewind()
                warn_if_winners_change(worst, forward(scored, batch, [worst.draw])[2])
        return worst

    def _score_chunk(
        self,
        model: Any,
        batch: Batch,
        generator: Generator,
        copies: int,
        rewind: Callable[[], None],
        forward: Callable[..., tuple[Any, Any, Tensor]],
        draws: list[Draw] | None = None,
    ) -> tuple[list[Draw], Tensor, Any]:
        """Draw copies and compute their losses. A separate function frees its tensors before the next copies."""
        draws = draws or self._draws(batch, generator, copies)  # x'_i ~ P(.|x)
        if copies == 1 or is_capturing(device_of(batch)):
            rewind()  # all copies, and the training pass, see the same dropout masks and state
            _, target, losses = forward(model, batch, draws)  # L(x'_i, theta)
        else:
            isolated = nullcontext(rewind)
            others = self._other_modules(model)
            _, target, losses = self._wide.run(
                forward, model, batch, draws, isolated=isolated, rewind=rewind, others=others
            )
        return draws, losses, target

    def _retain(self, model: Any, batch: Batch, generator: Generator) -> tuple[RunningMax, Any]:
        """Select from one wide batch with its graph. Return the winners, and their output, target and losses."""
        m, worst, size = self.copies(), RunningMax(self.score), batch_size(batch)
        check_attached(self.perturbation, model)
        capturing = is_capturing(device_of(batch))
        if m > 1:
            refuse_batch_norm(model, "strategy='retain'", "use strategy='recompute'")
        draws = self._draws(batch, generator, m)
        if capturing and m > 1 and self.masks == "shared":
            refuse_dropout(unwrap(model))
        independent = self.masks == "independent" or self.forward_shares_masks
        if m == 1 or independent or capturing:  # a capture cannot read the random states
            output, target, losses = self._forward(model, batch, draws)  # (m * B, ...)
        else:
            isolated, others = self._preserve_state(unwrap(model), batch, "batch"), self._other_modules(unwrap(model))
            output, target, losses = self._wide.run(
                self._forward, model, batch, draws, isolated=isolated, others=others
            )
        worst.update(draws, losses, target)
        self._ties.update(worst)
        assert worst.copy is not None
        rows = worst.copy * size + torch.arange(size, device=losses.device)  # (B,)

        def winners(leaf: Any) -> Any:  # the gradient of index_select is cheaper than that of leaf[rows]
            return leaf.index_select(0, rows) if is_batched(leaf) and len(leaf) == m * size else leaf

        return worst, tree_map(winners, (output, target, losses))

    def _should_check_winners(self, model: Any, batch: Batch) -> bool:
        """Whether to check that winners keep their losses when batched together: once, without train-mode BatchNorm."""
        if not self._first_scoring or is_capturing(device_of(batch)):
            return False
        layers = (layer for root in (model, *self._other_modules(model)) for layer in root.modules())
        return not any(isinstance(layer, _BatchNorm) and layer.training for layer in layers)

    def _is_approximate(self, m: int) -> bool:
        """Whether a step with m copies does not score all of them exactly."""
        return m > 1 if self.fast else self.shortlist is not None and m > self.shortlist

    def _select_approximately(self, model: Any, batch: Batch, generator: Generator) -> RunningMax:
        """Find the winners by `fast` or `shortlist`. In some steps, also score exactly, and return those winners."""
        capturing = is_capturing(device_of(batch))
        rewind = None if capturing else remember_draws(self.perturbation, generator)
        if self.fast:
            score = partial(self._score, model, batch, generator)
            may_halve = not in_model_parts(self.perturbation)  # features of half the size would get other noise
            worst = self._fast.score(
                score, model, batch, rewind, chunk_size=self.chunk_size, compile=self.compile, may_halve=may_halve
            )
        else:
            kept = self._make_shortlist(model, batch, generator)
            worst = self._score(model, batch, generator, self._scoring, kept.draws)
            worst.shortlist = kept.copies
        if rewind is None or not self.needs_eager():
            return worst
        rewind()  # the same copies again
        exact = self._score(model, batch, generator, replace(self._scoring, chunk_size=1))
        assert worst.copy_of_all is not None
        exact.gap_kept = self._gap_kept = share_of_gap(exact.all_scores, worst.copy_of_all)
        setting = "fast=True" if self.fast else f"shortlist={self.shortlist}"
        self._gap_check.update(self._gap_kept, setting, batch_size(batch))
        return exact

    def _make_shortlist(self, model: Any, batch: Batch, generator: Generator) -> Shortlist:
        """Draw m copies, and keep the draws of those with the highest losses to first order."""
        assert self.shortlist is not None
        kept = Shortlist(self.shortlist)
        with (
            self._preserve_state(model, batch, self.norm, dropout=self.dropout, check=False) as rewind,
            torch.no_grad(),
            autocast(batch, self.dtype),
        ):
            estimate = None
            for _ in range(self.copies()):
                (draw,) = self._draws(batch, generator, 1)
                copy = self._copy(batch, draw)
                if estimate is None:
                    check_same_shapes(batch[0], copy[0])
                    rewind()  # the dropout masks of the training pass
                    losses = partial(self._losses, size=batch_size(batch))
                    estimate = FirstOrder(batch, partial(self.forward, model), losses)
                kept.update(draw, to_scores(self.score, estimate(copy), copy[1]))
        return kept

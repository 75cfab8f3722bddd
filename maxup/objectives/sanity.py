"""Warnings about a selection that runs but cannot do what the user wants."""

import torch
from torch import Tensor

from maxup.objectives.running_max import RunningMax
from maxup.validate import is_capturing, warn

PATIENCE = 8  # batches during which an untrained network may ignore its input
SMALL = 16  # examples below which the share of the loss gap is noisy
LOW = 0.25  # share of the loss gap below which an approximate selection is close to a random one


class TieCheck:
    """Warn once if all copies have the same loss: training then costs m times as much for nothing.

    If all examples also have the same loss, the network may only be untrained (for example, a zero-initialized last
    layer), so wait a few batches before warning. Do not warn if all losses are 0: the network then fits every copy.
    """

    def __init__(self) -> None:
        self.ties: int | None = 0  # number of batches so far, all of them ties; None once decided

    def update(self, worst: RunningMax) -> None:
        """Check the losses of one selection."""
        if self.ties is None or len(worst.losses) < 2 or is_capturing(worst.losses[0].device):
            return
        losses = torch.stack(worst.losses)  # (m, B)
        tied = bool((losses == losses[0]).all())
        self.ties = self.ties + 1 if tied else None
        if tied and (self.ties == PATIENCE or not bool((losses == losses[0, 0]).all())):
            self.ties = None
            if bool(losses.any()):
                warn(
                    f"all {len(losses)} copies of every example have the same loss, so the perturbation changes "
                    "nothing that the model sees; check its strength, and for an in-model perturbation that its layer "
                    "is called"
                )


class GapCheck:
    """Warn once if an approximate selection keeps little of the loss gap in two checks in a row.

    One check is not enough, because an untrained network ranks copies badly. Small batches are not checked, because
    their share of the gap is noisy.
    """

    def __init__(self) -> None:
        self.low = self.warned = False

    def update(self, kept: Tensor, setting: str, size: int) -> None:
        """Check the share of the gap that `setting` kept in a batch of this size. NaN (all copies tie) is not low."""
        before, self.low = self.low, size >= SMALL and bool(kept < LOW)
        if self.low and before and not self.warned:
            self.warned = True
            warn(
                f"{setting} kept {float(kept):.2f} of the loss gap, less than {LOW:g} in two checks in a row: it "
                f"selects almost at random (0 is random, 1 is exact); remove {setting}; to save time, use a smaller m"
            )


def warn_if_winners_change(worst: RunningMax, losses: Tensor) -> None:
    """Warn if the winners' losses (B,) change when they are batched together."""
    assert worst.copy is not None
    scored = torch.stack(worst.losses)  # (m, B)
    chosen = scored.gather(0, worst.copy[None])[0]  # (B,)
    warn_if_losses_change(chosen, losses, scored, "the winners", "when they are batched together")


def warn_if_losses_change(before: Tensor, after: Tensor, losses: Tensor, what: str, when: str) -> None:
    """Warn if losses depend on the other examples of a batch.

    Args:
        before: Losses of the examples in one batch, (B,).
        after: Losses of the same examples in another batch, (B,).
        losses: Losses of all copies, (k, B). A change matters in proportion to how much the copies differ.
        what: Whose losses they are, for the warning.
        when: In which batch they changed, for the warning.
    """
    low = torch.is_autocast_enabled(after.device.type) or after.dtype in (torch.float16, torch.bfloat16)
    rounding = 0.05 if low else 1e-5 if after.device.type == "cpu" else 2e-3  # TF32, and kernels that depend on size
    error = (after - before).abs()
    spread = (losses.amax(0) - losses.amin(0)).mean()
    if bool((error > rounding * (1 + before.abs())).any()) and bool(error.mean() > 0.02 * spread):
        warn(
            f"the losses of {what} change by up to {float(error.max()):.2g} {when}: the model or the loss mixes the "
            "examples of a batch, or draws random numbers that depend on the data, so the gradient is not exactly the "
            "gradient of the worst copies"
        )

"""Windows of text for truncated backpropagation through time. Their lengths depend only on (seed, epoch, position)."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from maxup.errors import DataError
from maxup.lab.data.loader import check_position, check_state
from maxup.rng import make_generator

SHORTEST, SPREAD, HALVED = 5, 5.0, 0.05


class Windows:
    """Iterate over a text for one epoch. Yields `(starts, tokens, targets)`.

    The text is cut into columns of equal length; the rest is dropped. A window has L tokens per column, (B, L). Its
    targets are the tokens that follow, (B, L). `starts` are the positions of its first tokens in the text, (B,).
    Windows are consecutive, so a model's hidden state carries over. L is bptt with probability 0.95, otherwise
    bptt / 2, plus N(0, 5^2), and at least 5.

    As in `Loader`, the state is `epoch` and `position`, the number of windows yielded in this epoch.

    Args:
        tokens: The text, (N,).
        columns: Number of columns, over all processes.
        bptt: Approximate mean length of a window.
        seed: Seed of the lengths. None makes all of them bptt.
        world_size: Number of processes. Each has the same number of columns.
        part: "training", "validation" or "test", for the error message if the text is too short.
    """

    fixed_shapes = False  # lengths vary

    def __init__(
        self,
        tokens: Tensor,
        columns: int,
        bptt: int,
        *,
        device: torch.device | str,
        seed: int | None,
        rank: int = 0,
        world_size: int = 1,
        part: str = "training",
    ) -> None:
        if columns % world_size:
            raise DataError(f"batch_size={columns} cannot be shared evenly by {world_size} processes")
        n, share = len(tokens) // columns, columns // world_size
        if n < 2:
            setting = "batch_size" if part == "training" else f"language.{part}_columns"
            most = len(tokens) // 2
            advice = f"set {setting} to {most}{' or less' if most > 1 else ''}" if most else "use a longer text"
            raise DataError(
                f"the {part} text has {len(tokens):,} tokens, too few for {setting}={columns} columns of at least 2; "
                f"{advice}"
            )
        mine = slice(rank * share, (rank + 1) * share)
        self.columns = tokens[: n * columns].view(columns, n)[mine].to(device)  # (B, n)
        self.starts = (torch.arange(columns)[mine] * n).to(device)  # (B,)
        self.bptt, self.seed = bptt, seed
        self.epoch = self.position = 0
        self._done = [0]  # windows before each epoch, filled on demand
        self._counted = (-1, 0)  # an epoch and the number of its windows

    def lengths(self, epoch: int) -> list[int]:
        """Return the lengths of the windows of an epoch."""
        n = self.columns.shape[1] - 1  # tokens with a target
        if self.seed is None:
            drawn = torch.full((n // self.bptt + 1,), self.bptt)
        else:
            generator = make_generator("windows", self.seed, epoch)
            u = torch.rand(n // SHORTEST + 1, generator=generator)
            z = torch.randn(n // SHORTEST + 1, generator=generator)
            mean = torch.where(u < HALVED, self.bptt / 2, float(self.bptt))
            drawn = (mean + SPREAD * z).long().clamp_min(SHORTEST)
        ends = drawn.cumsum(0).clamp_max(n)
        lengths = torch.diff(ends, prepend=torch.zeros(1, dtype=torch.long))
        return [length for length in lengths.tolist() if length]

    def steps(self, epochs: int) -> int:
        """Return the number of windows in the first epochs."""
        while len(self._done) <= epochs:
            self._done.append(self._done[-1] + len(self.lengths(len(self._done) - 1)))
        return self._done[epochs]

    def __len__(self) -> int:
        """Return the number of windows in this epoch."""
        if self._counted[0] != self.epoch:
            self._counted = (self.epoch, len(self.lengths(self.epoch)))
        return self._counted[1]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        lengths = self.lengths(self.epoch)
        start = sum(lengths[: self.position])
        for length in lengths[self.position :]:
            self.position += 1  # before the yield: a state saved during this window resumes after it
            tokens, targets = (self.columns[:, start + i : start + i + length] for i in (0, 1))
            yield self.starts + start, tokens, targets
            start += length
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue where another instance with the same arguments stopped."""
        check_state(state)
        check_position(state["position"], len(self.lengths(state["epoch"])), f"windows of epoch {state['epoch']}")
        self.epoch, self.position = state["epoch"], state["position"]

"""Windows of a text for truncated back-propagation through time, of lengths that (seed, epoch, position) decide."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from maxup.errors import DataError
from maxup.rng import make_generator

SHORTEST, SPREAD, HALVED = 5, 5.0, 0.05


class Windows:
    """Iterate once over a text cut into columns that are read side by side: `(starts, tokens, targets)`.

    A window is (B, L) tokens of every column and the (B, L) tokens that follow them; `starts` says where in the text
    each begins. Windows follow each other, so a model's state is carried from one to the next; what does not fill the
    columns evenly is left out. L is bptt with probability 0.95, else half of it, plus N(0, 5^2), and at least 5.

    As with images, `epoch` and `position`, the number of windows handed out, are the whole state.

    Args:
        tokens: The text, (N,).
        columns: How many columns, over all processes.
        bptt: Mean length of a window, nearly.
        device: Where they live.
        seed: Decides the lengths; None makes them all bptt.
        rank: Which of the processes this is.
        world_size: How many there are, each with as many columns.
        part: "training", "validation" or "test", for the sentence where the text is too short.

    Example:
        >>> windows = Windows(torch.arange(100), 2, 20, device="cpu", seed=None)
        >>> [(starts.tolist(), x[:, -1].tolist(), y[:, -1].tolist()) for starts, x, y in windows][1:]
        [([20, 70], [39, 89], [40, 90]), ([40, 90], [48, 98], [49, 99])]
    """

    fixed_shapes = False  # lengths differ

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
            raise DataError(
                f"the {len(tokens):,} tokens of the {part} text do not fill {setting}={columns} columns of at least 2; "
                f"set {setting} to {len(tokens) // 2} or less"
            )
        mine = slice(rank * share, (rank + 1) * share)
        self.columns = tokens[: n * columns].view(columns, n)[mine].to(device)  # (B, n)
        self.starts = (torch.arange(columns)[mine] * n).to(device)  # (B,)
        self.bptt, self.seed = bptt, seed
        self.epoch = self.position = 0
        self._done = [0]  # windows before each epoch, as far as asked for

    def lengths(self, epoch: int) -> list[int]:
        """The lengths of an epoch's windows."""
        n = self.columns.shape[1] - 1  # tokens that have a next one
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
        """Windows of the first epochs together."""
        while len(self._done) <= epochs:
            self._done.append(self._done[-1] + len(self.lengths(len(self._done) - 1)))
        return self._done[epochs]

    def __len__(self) -> int:
        """Windows of this epoch."""
        return self.steps(self.epoch + 1) - self.steps(self.epoch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        lengths = self.lengths(self.epoch)
        start = sum(lengths[: self.position])
        for length in lengths[self.position :]:
            self.position += 1  # before it is handed out: a state saved while it is used goes on after it
            tokens, targets = (self.columns[:, start + i : start + i + length] for i in (0, 1))
            yield self.starts + start, tokens, targets
            start += length
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Where it is."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to where another with the same arguments was."""
        self.epoch, self.position = int(state["epoch"]), int(state["position"])

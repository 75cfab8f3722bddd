"""AWD-LSTM (Merity, Keskar and Socher, 2018): an LSTM language model with every connection dropped in its own way.

Words in, hidden states out; `decode` turns these into scores of the next word. Batch first everywhere: (B, T).
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import _VF, Tensor, nn
from torch.nn import functional as F

from maxup.lab.limits import check_model_args

Hidden = list[tuple[Tensor, Tensor]]


class Read(NamedTuple):
    """What the model made of a window of words."""

    output: Tensor
    """The last layer's states after dropout, (B, T, D), from which `decode` predicts the next words."""
    raw: Tensor
    """The same before dropout."""
    hidden: Hidden
    """Where to go on: state and cell of every layer, (B, H) each."""
    columns: int
    """Rows with masks of their own; the rows beyond are further copies of them."""


class AWDLSTM(nn.Module):
    """An LSTM language model whose output words share the vectors of its input words.

    Word-embedding dropout is not in here: it is the perturbation `EmbeddingDropout`, attached to `words`.

    Args:
        words: Size of the vocabulary.
        embedding: Length of a word vector.
        hidden: Size of the inner layers; the last one has the size of a word vector.
        layers: Number of LSTM layers.
        input_dropout: Of the word vectors; like all dropout here but weight drop, the same at every step of a window.
        hidden_dropout: Between layers.
        output_dropout: Of the last layer's states.
        weight_drop: Probability of dropping a recurrent weight, drawn once for a forward pass.
        noise: Standard deviation of Gaussian noise on word vectors.

    Example:
        >>> model = AWDLSTM(words=100, embedding=8, hidden=16, layers=2)
        >>> read = model(torch.randint(100, (4, 7)), model.start(4))
        >>> read.output.shape, model.decode(read.output).shape
        (torch.Size([4, 7, 8]), torch.Size([4, 7, 100]))
    """

    def __init__(
        self,
        words: int,
        *,
        embedding: int = 400,
        hidden: int = 1150,
        layers: int = 3,
        input_dropout: float = 0.4,
        hidden_dropout: float = 0.25,
        output_dropout: float = 0.4,
        weight_drop: float = 0.5,
        noise: float = 0.0,
    ) -> None:
        super().__init__()
        check_model_args(embedding=embedding, hidden=hidden, layers=layers, weight_drop=weight_drop, noise=noise)
        check_model_args(input_dropout=input_dropout, hidden_dropout=hidden_dropout, output_dropout=output_dropout)
        self.input_dropout, self.hidden_dropout, self.output_dropout = input_dropout, hidden_dropout, output_dropout
        self.weight_drop, self.noise = weight_drop, noise
        sizes = [embedding, *[hidden] * (layers - 1), embedding]
        self.words = nn.Embedding(words, embedding)
        self.layers = nn.ModuleList(nn.LSTM(n, k) for n, k in pairwise(sizes))
        self.bias = nn.Parameter(torch.zeros(words))
        nn.init.uniform_(self.words.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor, hidden: Hidden | None = None, columns: int | None = None) -> Read:
        """Read a window.

        Args:
            tokens: (B, T).
            hidden: Where the last window ended; default `start(B)`.
            columns: In a wide batch of several copies of each column: how many columns there are. All copies of a
                column get the same dropout masks and noise. Default B.
        """
        columns, hidden = columns or len(tokens), hidden or self.start(len(tokens))
        x = self.words(tokens).transpose(0, 1)  # (T, B, D)
        if self.training and self.noise:
            x = x + self.noise * _repeat(torch.randn_like(x[:, :columns]), x)
        x = self._locked(x, self.input_dropout, columns)
        ends = []
        for number, (layer, (h, c)) in enumerate(zip(self.layers, hidden, strict=True), 1):
            state = (h[None].contiguous(), c[None].contiguous())  # (1, B, H) each
            # With biases, 1 layer, no dropout of its own, in one direction, time first. What torch calls training is
            # whether cuDNN gets ready for a backward pass; scoring does too, to compute what training will.
            ready = self.training or torch.is_grad_enabled()
            raw, h, c = _VF.lstm(x, state, self._weights(layer), True, 1, 0.0, ready, False, False)
            ends.append((h[0], c[0]))
            x = self._locked(raw, self.hidden_dropout if number < len(self.layers) else self.output_dropout, columns)
        return Read(x.transpose(0, 1), raw.transpose(0, 1), ends, columns)

    def decode(self, output: Tensor) -> Tensor:
        """Scores of the next word, (..., D) -> (..., V): how alike its vector is, and how common it is."""
        return F.linear(output, self.words.weight, self.bias)

    def start(self, columns: int) -> Hidden:
        """The state before the first word."""
        shapes = [(columns, layer.hidden_size) for layer in self.layers if isinstance(layer, nn.LSTM)]
        return [(self.bias.new_zeros(shape), self.bias.new_zeros(shape)) for shape in shapes]

    def _weights(self, layer: nn.Module) -> list[Tensor]:
        """The four weights of a layer, in training with some of the recurrent ones dropped.

        They come as parts of one piece of memory, in cuDNN's order, as its fused kernel wants them. The piece is a
        function of the raw weights, so gradients reach these, and nothing is kept from one pass to the next.
        """
        assert isinstance(layer, nn.LSTM)
        if not (self.training and self.weight_drop):
            return layer._flat_weights  # type: ignore[return-value]  # nn.LSTM keeps its parameters in one piece
        into, recurrent, *biases = (w for w in layer._flat_weights if w is not None)
        weights = [into, F.dropout(recurrent, self.weight_drop), *biases]
        piece = torch.cat([w.flatten() for w in weights])
        parts = piece.split([w.numel() for w in weights])
        return [part.view_as(w) for part, w in zip(parts, weights, strict=True)]

    def _locked(self, x: Tensor, p: float, columns: int) -> Tensor:
        """Dropout with one mask for all steps of a window: x is (T, B, D)."""
        if not self.training or not p:
            return x
        mask = torch.empty_like(x[:1, :columns]).bernoulli_(1 - p) / (1 - p)  # (1, columns, D)
        return x * _repeat(mask, x)


def _repeat(values: Tensor, like: Tensor) -> Tensor:
    """The same for every copy of a column: (_, columns, D) -> (_, B, D)."""
    copies = like.shape[1] // values.shape[1]
    return values if copies == 1 else values.repeat(1, copies, 1)


def adversarial_scores(scores: Tensor, target: Tensor, output: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Adversarial softmax (Wang, Gong and Liu, 2019): the target's word vector at its worst within a ball.

    Over all |d| <= epsilon |w_y|, the score (w_y + d) h is lowest at d = -epsilon |w_y| h / |h|: so the target's score
    is lowered by epsilon |w_y| |h|. The ball's radius counts as given: no gradient goes through |w_y|.

    Args:
        scores: (..., V); changed in place.
        target: (...).
        output: h, (..., D).
        weight: Word vectors, (V, D).
        epsilon: Relative radius of the ball.
    """
    radius = epsilon * weight.detach().norm(dim=1)[target]  # (...)
    lower = radius * output.norm(dim=-1)
    return scores.scatter_add_(-1, target[..., None], -lower[..., None].to(scores.dtype))

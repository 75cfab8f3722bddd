"""AWD-LSTM (Merity, Keskar and Socher, 2018): an LSTM language model with several kinds of dropout.

The model maps tokens to hidden states, and `decode` maps these to the logits of the next word. All tensors are batch
first: (B, T).
"""

from itertools import pairwise
from typing import Annotated, NamedTuple

import torch
from torch import _VF, Tensor, nn
from torch.nn import functional as F

from maxup.lab.limits import DROP, SIZE, Limit

Hidden = list[tuple[Tensor, Tensor]]


class LSTMOutput(NamedTuple):
    """Output of the model for a window of tokens."""

    output: Tensor
    """States of the last layer after dropout, (B, T, D), the input of `decode`."""
    raw: Tensor
    """States of the last layer before dropout, (B, T, D)."""
    hidden: Hidden
    """State and cell of every layer after the window, (B, H) each."""
    columns: int
    """Number of columns. Rows after the first `columns` are further copies with the same dropout masks."""


class AWDLSTM(nn.Module):
    """An LSTM language model with tied input and output embeddings.

    Embedding dropout is not part of the model. It is the perturbation `EmbeddingDropout` on the layer `words`.

    Args:
        words: Size of the vocabulary.
        embedding: Size of a word embedding.
        hidden: Size of the LSTM layers. The last one has the size of a word embedding.
        layers: Number of LSTM layers.
        input_dropout: Dropout of the word embeddings. This and the next two use one mask for all steps of a window.
        hidden_dropout: Dropout between layers.
        output_dropout: Dropout of the last layer's states.
        weight_drop: Probability of dropping a recurrent weight, drawn once per forward pass.
        noise: Standard deviation of Gaussian noise on the word embeddings.
    """

    def __init__(
        self,
        words: int,
        *,
        embedding: Annotated[int, SIZE] = 400,
        hidden: Annotated[int, SIZE] = 1150,
        layers: Annotated[int, Limit(1, 100, whole=True)] = 3,
        input_dropout: Annotated[float, DROP] = 0.4,
        hidden_dropout: Annotated[float, DROP] = 0.25,
        output_dropout: Annotated[float, DROP] = 0.4,
        weight_drop: Annotated[float, DROP] = 0.5,
        noise: Annotated[float, Limit(0, 1e6)] = 0.0,
    ) -> None:
        super().__init__()
        self.input_dropout, self.hidden_dropout, self.output_dropout = input_dropout, hidden_dropout, output_dropout
        self.weight_drop, self.noise = weight_drop, noise
        sizes = [embedding, *[hidden] * (layers - 1), embedding]
        self.words = nn.Embedding(words, embedding)
        self.layers = nn.ModuleList(nn.LSTM(n, k) for n, k in pairwise(sizes))
        self.bias = nn.Parameter(torch.zeros(words))
        nn.init.uniform_(self.words.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor, hidden: Hidden | None = None, columns: int | None = None) -> LSTMOutput:
        """Run the LSTM on a window.

        Args:
            tokens: Tokens, (B, T).
            hidden: `hidden` of the previous window. Default: `start(B)`.
            columns: Number of columns, if the batch has several copies of each. All copies of a column get the same
                dropout masks and noise. Default: B.
        """
        columns, hidden = columns or len(tokens), hidden or self.start(len(tokens))
        x = self.words(tokens).transpose(0, 1)  # (T, B, D)
        if self.training and self.noise:
            x = x + self.noise * _repeat(torch.randn_like(x[:, :columns]), x)
        x = self._locked(x, self.input_dropout, columns)
        ends = []
        for number, (layer, (h, c)) in enumerate(zip(self.layers, hidden, strict=True), 1):
            state = (h[None].contiguous(), c[None].contiguous())  # (1, B, H) each
            # Arguments: has_biases, num_layers, dropout, train, bidirectional, batch_first. In cuDNN, `train` reserves
            # memory for a backward pass. Scoring sets it too, so that it computes exactly what training will.
            train = self.training or torch.is_grad_enabled()
            raw, h, c = _VF.lstm(x, state, self._weights(layer), True, 1, 0.0, train, False, False)
            ends.append((h[0], c[0]))
            x = self._locked(raw, self.hidden_dropout if number < len(self.layers) else self.output_dropout, columns)
        return LSTMOutput(x.transpose(0, 1), raw.transpose(0, 1), ends, columns)

    def decode(self, output: Tensor) -> Tensor:
        """Return the logits of the next word, (..., D) -> (..., V)."""
        return F.linear(output, self.words.weight, self.bias)

    def start(self, columns: int) -> Hidden:
        """Return the initial hidden state."""
        shapes = [(columns, layer.hidden_size) for layer in self.layers if isinstance(layer, nn.LSTM)]
        return [(self.bias.new_zeros(shape), self.bias.new_zeros(shape)) for shape in shapes]

    def _weights(self, layer: nn.Module) -> list[Tensor]:
        """Return the four weights of a layer. In training, some recurrent weights are dropped.

        The weights are views of one contiguous tensor in cuDNN's order, which its fused kernel needs. That tensor is
        computed from the raw weights, so gradients reach them, and nothing is kept between forward passes.
        """
        assert isinstance(layer, nn.LSTM)
        if not (self.training and self.weight_drop):
            return layer._flat_weights  # type: ignore[return-value]  # nn.LSTM keeps its parameters contiguous
        input_weight, recurrent, *biases = (w for w in layer._flat_weights if w is not None)
        weights = [input_weight, F.dropout(recurrent, self.weight_drop), *biases]
        flat = torch.cat([w.flatten() for w in weights])
        parts = flat.split([w.numel() for w in weights])
        return [part.view_as(w) for part, w in zip(parts, weights, strict=True)]

    def _locked(self, x: Tensor, p: float, columns: int) -> Tensor:
        """Apply dropout with one mask for all steps of a window. x is (T, B, D)."""
        if not self.training or not p:
            return x
        mask = torch.empty_like(x[:1, :columns]).bernoulli_(1 - p) / (1 - p)  # (1, columns, D)
        return x * _repeat(mask, x)


def _repeat(values: Tensor, like: Tensor) -> Tensor:
    """Repeat values for every copy of a column: (_, columns, D) -> (_, B, D)."""
    copies = like.shape[1] // values.shape[1]
    return values if copies == 1 else values.repeat(1, copies, 1)


def adversarial_scores(scores: Tensor, target: Tensor, output: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Adversarial softmax (Wang, Gong and Liu, 2019): perturb the target's embedding to its worst within a ball.

    Over all |d| <= epsilon |w_y|, the logit (w_y + d) h is lowest at d = -epsilon |w_y| h / |h|. So the target's logit
    decreases by epsilon |w_y| |h|. The radius is a constant: no gradient goes through |w_y|.

    Args:
        scores: Logits, (..., V); changed in place.
        target: Target words, (...).
        output: h, (..., D).
        weight: Word embeddings, (V, D).
        epsilon: Relative radius of the ball.
    """
    radius = epsilon * weight.detach().norm(dim=1)[target]  # (...)
    decrease = radius * output.norm(dim=-1)
    return scores.scatter_add_(-1, target[..., None], -decrease[..., None].to(scores.dtype))

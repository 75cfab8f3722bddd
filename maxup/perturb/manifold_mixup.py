"""Manifold Mixup (Verma et al., 2019): mix examples inside the network."""

import weakref
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

from maxup.batch import Batch, expand_like, get_leaves, leaves, set_leaves
from maxup.errors import a_type
from maxup.perturb.base import integers
from maxup.perturb.in_model import InModelPerturbation, attach_to, find_layer
from maxup.perturb.mixup import beta, blend, mix_labels, partners
from maxup.validate import ABOVE_0, check_num_classes, check_real


class ManifoldMixup(InModelPerturbation):
    """Mix the output h of a random layer, and the labels: h' = w * h + (1 - w) * h[partner], w ~ Beta(alpha, alpha).

    The draw is `partner`, (B,) indices of other examples, `weight`, (B,), and `layer`, (B,). As in the paper, a batch
    is mixed at one layer, so all entries of `layer` are equal. All copies of a batch share the layer, so that an
    example's partner is unmixed in the training pass as it was in scoring. Each batch and each step draws a new layer.
    Deviation from the paper: weights and partners are drawn per example, not one weight per batch.

    Do not put a crop before it in a `Compose`: the partner is then cropped as in its winner, so with m > 1 the
    training pass may differ slightly from scoring. Augment the batch before MaxUp instead.

    Args:
        layers: Names of the layers to choose from, as in `model.named_modules()`. "input" is x itself. The paper uses
            the input and the first blocks of a ResNet.
        num_classes: Number of classes. Required if targets are class ids.
        alpha: Parameter of the Beta distribution. Default: 2, as in the paper for CIFAR.
        key: Entry of x that "input" mixes. Default: every floating-point leaf.

    Example:
        >>> from maxup import MaxUp
        >>> mixup = ManifoldMixup(["input", "0", "1"], num_classes=2)
        >>> model = mixup.attach(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)))
        >>> MaxUp(mixup, m=4)(model, torch.rand(6, 5), torch.tensor([0, 1, 0, 1, 0, 1])).backward()
    """

    def __init__(
        self,
        layers: Sequence[str],
        num_classes: int | None = None,
        *,
        alpha: float = 2.0,
        key: Hashable | None = None,
    ) -> None:
        listed = layers if isinstance(layers, list | tuple) else [layers]
        self.layers = [str(layer) for layer in listed]  # YAML may read "1" as a number
        are_names = all(isinstance(layer, str | int) for layer in listed)
        if not are_names or set(self.layers) <= {"input"} or len(set(self.layers)) < len(self.layers):
            raise ValueError(
                f"ManifoldMixup(layers={layers!r}): name at least one layer of the model, each once; "
                "to mix only the input, use MixUp"
            )
        self.num_classes, self.key = check_num_classes("ManifoldMixup", num_classes), key
        self.alpha = check_real("ManifoldMixup", "alpha", alpha, "above 0 and finite", ABOVE_0)
        self._chosen: tuple[weakref.ref[Tensor], Tensor] | None = None  # the batch and its layer

    def attach(self, model: nn.Module) -> nn.Module:
        named = [(n, name) for n, name in enumerate(self.layers) if name != "input"]
        inside = [(n, find_layer(model, name, "ManifoldMixup")) for n, name in named]
        self.hooks = tuple(attach_to(layer, partial(mix_hidden, number=n)) for n, layer in inside)
        return model

    def draw(self, batch: Batch, generator: Generator | None) -> dict[str, Tensor]:
        self._require_hooks()
        like = leaves(batch)[0]
        layer = integers((1,), len(self.layers), like, generator)
        if self._chosen is not None and self._chosen[0]() is like:
            layer = self._chosen[1]
        self._chosen = weakref.ref(like), layer
        partner, weight = partners(like, generator, "ManifoldMixup"), beta(self.alpha, like, generator)
        return {"layer": layer.expand(len(like)), "partner": partner, "weight": weight}

    def apply(self, batch: Batch, draw: dict[str, Tensor]) -> Batch:
        x, y = super().apply(batch, draw)
        if "input" in self.layers:
            number = self.layers.index("input")
            x = set_leaves(
                x, [mix_hidden(leaf, leaf, draw, number=number) for leaf in get_leaves(x, self.key)], self.key
            )
        return x, mix_labels(y, draw["partner"], draw["weight"], self.num_classes, "ManifoldMixup")

    def __call__(self, x: Any, y: Any = None, *, generator: Generator | None = None) -> Batch:
        self.clear()
        return super().__call__(x, y, generator=generator)

    def clear(self) -> None:
        """Clear the draw, and forget the layer: the step is over."""
        super().clear()
        self._chosen = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_chosen": None}  # copies and pickles start fresh


def mix_hidden(inputs: Tensor, hidden: Tensor, draw: dict[str, Tensor], number: int) -> Tensor:
    """Blend each example whose layer has this number with its partner."""
    partner = draw["partner"]
    if not isinstance(hidden, Tensor) or len(hidden) != len(partner) or not hidden.is_floating_point():
        what = f"{hidden.dtype} of {tuple(hidden.shape)}" if isinstance(hidden, Tensor) else a_type(hidden)
        raise ValueError(
            f"ManifoldMixup mixes a floating-point tensor of {len(partner)} examples, but a layer returned {what}; "
            "name another layer"
        )
    mixed = blend(hidden, hidden[partner], draw["weight"])
    return torch.where(expand_like(draw["layer"] == number, hidden), mixed, hidden)

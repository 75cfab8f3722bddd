"""CutMix (Yun et al., 2019), the perturbation of the paper's ImageNet experiments."""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_map

from maxup.batch import Batch, set_leaves
from maxup.perturb.base import Perturbation, images, integers
from maxup.perturb.cutout import boxes
from maxup.perturb.masks import change_masks, is_spatial
from maxup.perturb.mixup import beta, mix_labels, partners
from maxup.validate import ABOVE_0, check_num_classes, check_real


class CutMix(Perturbation):
    """Paste a box of another image into each image, and mix the labels in proportion to the areas.

    The draw is `partner`, (B,) indices of other images, and `box`, (B, 4) integers: top, left, bottom, right (the last
    two exclusive), clipped to the image. A box of relative area 1 - w, w ~ Beta(alpha, alpha), has its center uniform
    over the pixels. Labels are weighted by the area after clipping. Integer masks (B, H, W) in y are not mixed: inside
    the box they are the partner's.

    Args:
        num_classes: Number of classes. Required if targets are class ids.
        alpha: Parameter of the Beta distribution. Default: 1, as in the paper, which is uniform.
        key: Entry of x that holds the images. Default: every floating-point leaf, all with the same draw.

    Example:
        >>> x, y = CutMix(num_classes=10)(torch.rand(8, 3, 32, 32), torch.arange(8))
        >>> x.shape, y.shape
        (torch.Size([8, 3, 32, 32]), torch.Size([8, 10]))
    """

    def __init__(self, num_classes: int | None = None, *, alpha: float = 1.0, key: Hashable | None = None) -> None:
        self.num_classes, self.key = check_num_classes("CutMix", num_classes), key
        self.alpha = check_real("CutMix", "alpha", alpha, "above 0 and finite", ABOVE_0)

    def draw(self, batch: Batch, generator: Generator | None) -> dict[str, Tensor]:
        leaf = images(batch[0], self.key, "CutMix")[0]
        partner = partners(leaf, generator, "CutMix")
        side = (1 - beta(self.alpha, leaf, generator)).sqrt()  # (B,), relative to the image's side
        corners = []
        for size in leaf.shape[-2:]:
            half = (side * (size / 2)).long()
            center = integers((len(leaf),), size, leaf, generator)
            corners.append(torch.stack([center - half, center + half]).clamp(0, size))  # (2, B)
        return {"partner": partner, "box": torch.stack(corners, dim=1).flatten(0, 1).T}

    def apply(self, batch: Batch, draw: dict[str, Tensor]) -> Batch:
        x, _ = batch
        partner, box = draw["partner"], draw["box"]
        leaves = images(x, self.key, "CutMix")
        height, width = leaves[0].shape[-2:]
        area = (box[:, 2:] - box[:, :2]).prod(1).to(torch.promote_types(leaves[0].dtype, torch.float32))
        weight = 1 - area / (height * width)  # (B,), share of the image itself
        inside = boxes(box, height, width)

        def paste(tensor: Tensor) -> Tensor:
            return torch.where(inside, tensor[partner], tensor)

        def mix(leaf: Any) -> Any:
            return leaf if is_spatial(leaf) else mix_labels(leaf, partner, weight, self.num_classes, "CutMix")

        y = tree_map(mix, change_masks(batch, self.key, (height, width), paste, "CutMix"))
        return set_leaves(x, [paste(leaf) for leaf in leaves], self.key), y

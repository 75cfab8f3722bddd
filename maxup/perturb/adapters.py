"""Adapters for other libraries' augmentations: any callable (torchvision v2, kornia), and views made by CPU workers."""

import weakref
from collections.abc import Callable, Hashable
from functools import partial
from importlib import import_module
from numbers import Number
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten
from torch.utils.data import Dataset

from maxup.batch import Batch, get_leaves, is_batched, set_leaves
from maxup.errors import a_type
from maxup.perturb.base import Perturbation, draw_seeds
from maxup.perturb.masks import is_mask, is_spatial, is_tv_tensor
from maxup.rng import seed_globals
from maxup.validate import check_int, is_list_of_dicts, warn


class Transform(Perturbation):
    """Use any random transform as a perturbation. The draw is the transformed batch.

    The transform may use the global random generators (torch, Python, numpy). It runs on a fork of them that is seeded
    from the generator, so draws are reproducible and the global generators do not advance.

    Args:
        transform: `x -> x'`, or `(x, y) -> (x', y')` with `labels=True`.
        batched: If False, call the transform once per example. Use this for torchvision v2, which draws once per call.
            If True, call it once per batch. Use this for transforms that draw per example, such as kornia's.
        labels: Whether the transform takes and returns y too, a pytree of tensors with the batch first. The default
            leaves y unchanged and warns if y has three dimensions or more, as masks and boxes do. False does not warn.
            torchvision v2 transforms move integer masks and tv_tensors in y; they come back as plain tensors.
        key: Entry of x to transform. Default: the only floating-point leaf.

    Example:
        >>> def brighten(image):
        ...     return image * torch.rand(())
        >>> x, y = Transform(brighten)(torch.ones(4, 3, 8, 8), torch.zeros(4))
        >>> len(x[:, 0, 0, 0].unique())
        4
    """

    def __init__(
        self,
        transform: Callable[..., Any],
        *,
        batched: bool = False,
        labels: bool | None = None,
        key: Hashable | None = None,
    ) -> None:
        if not callable(transform):
            raise TypeError(f"Transform expects a callable, but got {a_type(transform)}")
        self.transform, self.batched, self.labels, self.key = transform, batched, labels, key

    def draw(self, batch: Batch, generator: Generator | None) -> list[Any]:
        x, y = batch
        leaves = get_leaves(x, self.key)
        if len(leaves) != 1:
            raise ValueError(
                f"Transform changes one tensor of x, but x has {len(leaves)} floating-point tensors; name one with key="
            )
        leaf = leaves[0]
        seed = int(draw_seeds((), leaf, generator))
        if self.labels:
            y = self._wrap_masks(leaf, y)
        elif self.labels is None and leaf.ndim == 4:
            _warn_about(y)
        with seed_globals(seed, leaf.device):
            result = self._per_batch(leaf, y) if self.batched else self._per_example(leaf, y)
        return result if self.labels else result[:1]

    def apply(self, batch: Batch, draw: list[Any]) -> Batch:
        x, y = batch
        return set_leaves(x, draw[:1], self.key), (draw[1] if self.labels else y)

    def _call(self, x: Tensor, y: Any) -> Batch:
        if not self.labels:
            return self.transform(x), None
        pair = self.transform(x, y)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"the transform returned {a_type(pair)}; with labels=True it must return the pair (x, y)")
        return pair[0], pair[1]

    def _per_batch(self, x: Tensor, y: Any) -> list[Any]:
        new, y = self._call(x, y)
        if not isinstance(new, Tensor):
            raise TypeError(f"the transform returned {a_type(new)}; it must return a tensor")
        return tree_map_only(Tensor, lambda leaf: leaf.as_subclass(Tensor), [new, y])  # tv_tensors to plain tensors

    def _per_example(self, x: Tensor, y: Any) -> list[Any]:
        targets = unbatch(y, len(x)) if self.labels else [None] * len(x)
        pairs = [self._call(image, target) for image, target in zip(x, targets, strict=True)]
        images = _stack([image for image, _ in pairs])
        if x.ndim == 4 and images.shape[1:] == (1, *x.shape[1:]):
            raise ValueError(
                f"the transform returned shape {tuple(images.shape[1:])} for one image of shape {tuple(x.shape[1:])}; "
                "if it expects a batch, pass batched=True"
            )
        return [images, rebatch([target for _, target in pairs], y) if self.labels else None]

    def _wrap_masks(self, x: Tensor, y: Any) -> Any:
        """Wrap masks as tv_tensors if the transform is torchvision's, which moves nothing else with the image."""
        is_torchvision = str(getattr(self.transform, "__module__", "")).startswith("torchvision.transforms.v2")
        if not is_torchvision or x.ndim != 4:
            return y

        def wrap(leaf: Any) -> Any:
            if type(leaf) is not Tensor or not is_spatial(leaf):
                return leaf
            if not is_mask(leaf, x.shape[-2:]):
                raise ValueError(
                    f"torchvision would not move y of {leaf.dtype} and shape {tuple(leaf.shape)} with the images; pass "
                    "a function that wraps y as a tv_tensor and then calls the transform on one image"
                )
            return import_module("torchvision.tv_tensors").Mask(leaf)

        return tree_map(wrap, y)


class Views(Perturbation):
    """Use views that already exist: x is (B, V, ...), V views per example, as `ViewsDataset` returns them.

    The draw is the index of a view, (B,). Consecutive draws for the same batch take its views in order, so m = V scores
    each view once, and m = 1 takes the first. A batch is identified by its tensor x: selecting again from the same
    tensor continues with the next view.

    Args:
        key: Entry of x that holds the views. Default: every floating-point leaf.

    Example:
        >>> from maxup import MaxUp
        >>> objective = MaxUp(Views(), m=4)
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 2))
        >>> x, y = objective.select(model, torch.rand(8, 4, 3), torch.tensor([0, 1] * 4))
        >>> x.shape
        torch.Size([8, 3])
    """

    def __init__(self, *, key: Hashable | None = None) -> None:
        self.key = key
        self._view = 0
        self._last_x: Callable[[], Tensor | None] = lambda: None  # a weak reference

    def draw(self, batch: Batch, generator: Generator | None) -> Tensor:
        x = self._stacked(batch[0])[0]
        self._view = (self._view + 1) % x.shape[1] if self._last_x() is x else 0
        self._last_x = weakref.ref(x)
        return torch.full((len(x),), self._view, device=x.device)

    def remember_draws(self) -> Callable[[], None]:
        """Return a function that goes back to the view after which this was called."""
        view, last_x = self._view, self._last_x

        def restore() -> None:
            self._view, self._last_x = view, last_x

        return restore

    def apply(self, batch: Batch, draw: Tensor) -> Batch:
        x, y = batch
        example = torch.arange(len(draw), device=draw.device)
        return set_leaves(x, [leaf[example, draw] for leaf in self._stacked(x)], self.key), y

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Views, key=self.key), ()  # copies and pickles start at the first view

    def _stacked(self, x: Any) -> list[Tensor]:
        leaves = get_leaves(x, self.key)
        if any(leaf.ndim < 2 for leaf in leaves):
            raise ValueError(
                "Views expects x of shape (B, V, ...), V views per example; wrap the dataset in ViewsDataset"
            )
        return leaves


class ViewsDataset(Dataset[tuple[Tensor, Any]]):
    """Return m random views of each example, so that augmentation stays in the DataLoader's CPU workers.

    Use it with `MaxUp(Views(), m=m)`. A batch then holds m views per example, (B, m, ...).

    Args:
        dataset: Map-style dataset of pairs (image, label).
        transform: Random transform of one image that returns a tensor. The input may be a PIL image.
        m: Number of views per example.

    Example:
        >>> data = [(torch.rand(3, 8, 8), 0), (torch.rand(3, 8, 8), 1)]
        >>> views = ViewsDataset(data, lambda image: image * torch.rand(()), m=4)
        >>> x, y = next(iter(torch.utils.data.DataLoader(views, batch_size=2)))
        >>> x.shape
        torch.Size([2, 4, 3, 8, 8])
    """

    def __init__(self, dataset: Any, transform: Callable[[Any], Tensor], m: int) -> None:
        self.dataset, self.transform, self.m = dataset, transform, check_int("ViewsDataset", "m", m, 1)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        item = self.dataset[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise TypeError(f"ViewsDataset expects items (image, label), but item {index} is {a_type(item)}")
        return _stack([self.transform(item[0]) for _ in range(self.m)]), item[1]


def unbatch(y: Any, n: int) -> list[Any]:
    """Split a batch y of tensors (n, ...) into the targets of each example. tv_tensors keep their type."""
    leaves, spec = tree_flatten(y)
    for leaf in leaves:
        if is_list_of_dicts(y, n) or not is_batched(leaf) or len(leaf) != n:
            what = f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else a_type(leaf)
            raise TypeError(
                f"Transform(labels=True) expects y to hold tensors of {n} examples, but y holds {what}; stack the "
                "targets, and pad them if examples differ, as in boxes (B, N, 4)"
            )

    def select(leaf: Tensor, i: int) -> Tensor:
        return import_module("torchvision.tv_tensors").wrap(leaf[i], like=leaf) if is_tv_tensor(leaf) else leaf[i]

    return [tree_unflatten([select(leaf, i) for leaf in leaves], spec) for i in range(n)]


def rebatch(targets: list[Any], y: Any) -> Any:
    """Stack the targets of all examples into a batch of plain tensors. `y` is the batch before the transform."""
    (before, old_spec), (_, spec) = tree_flatten(y), tree_flatten(targets[0])
    if any(tree_flatten(target)[1] != spec for target in targets):
        raise TypeError(
            "the transform returned targets of different structures; return the same structure for every example"
        )
    device = next((leaf.device for leaf in before if isinstance(leaf, Tensor)), None)
    tensors = [tree_map_only(Number, partial(torch.as_tensor, device=device), target) for target in targets]
    new = [_stack(list(parts)) for parts in zip(*map(tree_leaves, tensors), strict=True)]
    if old_spec == spec:  # torchvision turns one box (4,) into (1, 4)
        boxes = [is_tv_tensor(b) and n.shape == (len(b), 1, *b.shape[1:]) for n, b in zip(new, before, strict=True)]
        new = [n.squeeze(1) if box else n for n, box in zip(new, boxes, strict=True)]
    return tree_unflatten(new, spec)


def _warn_about(y: Any) -> None:
    for leaf in tree_leaves(y):
        if is_spatial(leaf):
            warn(
                f"Transform changes x but not y, which holds {leaf.dtype} of shape {tuple(leaf.shape)}; pass "
                "labels=True if the transform moves pixels, so that y moves too, or labels=False if it does not"
            )


def _stack(images: list[Any]) -> Tensor:
    """Stack the results of a transform, which must be tensors of one shape."""
    if not all(isinstance(image, Tensor) and image.shape == images[0].shape for image in images):
        kinds = {str(tuple(i.shape)) if isinstance(i, Tensor) else a_type(i) for i in images}
        raise TypeError(f"the transform must return tensors of one shape, but returned {', '.join(sorted(kinds))}")
    return torch.stack(images)

"""Other people's augmentations: any callable (torchvision v2 and kornia among them), and views made by CPU workers."""

import random
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from numbers import Number
from typing import Any

import numpy
import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten
from torch.utils.data import Dataset

from maxup.batch import Batch, get_leaves, is_batched, set_leaves
from maxup.perturb.base import Perturbation, integers
from maxup.perturb.masks import is_mask, is_spatial, is_tv_tensor
from maxup.rng import remember_rng
from maxup.validate import is_list_of_dicts, warn


class Transform(Perturbation):
    """A random transform written elsewhere, as a perturbation. The draw is its result.

    The transform takes its randomness from the global streams (torch, Python, numpy); it runs on a fork of them, seeded
    from the generator, so draws are repeatable and the caller's streams do not move.

    Args:
        transform: `x -> x'`, or `(x, y) -> (x', y')` with `labels=True`.
        batched: False calls it once for every example, which is right for torchvision v2 (it draws once a call); True
            calls it once for the batch, right for what draws for every example by itself, as kornia does.
        labels: Whether the transform takes and returns y too, a pytree of tensors with the batch first. The default
            does not, and warns if y has three dimensions or more, as masks and boxes do; False does not warn.
            torchvision v2's transforms move integer masks and tv_tensors in y; they come back as plain tensors.
        key: Which entry of x to transform; default every floating leaf.

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
            raise TypeError(f"Transform wants a callable, but got a {type(transform).__name__}")
        self.transform, self.batched, self.labels, self.key = transform, batched, labels, key

    def draw(self, batch: Batch, generator: Generator | None) -> list[Any]:
        x, y = batch
        found = get_leaves(x, self.key)
        if len(found) != 1:
            raise ValueError(f"Transform changes one tensor of x, but {len(found)} are floating; name one with key=")
        seed = int(integers((), 2**62, found[0], generator))
        if self.labels:
            y = self._wrapped(found[0], y)
        elif self.labels is None and found[0].ndim == 4:
            _warn_of(y)
        with forked_random(seed, found[0].device):
            result = self._batched(found[0], y) if self.batched else self._one_by_one(found[0], y)
        return result if self.labels else result[:1]

    def apply(self, batch: Batch, draw: list[Any]) -> Batch:
        x, y = batch
        return set_leaves(x, draw[:1], self.key), (draw[1] if self.labels else y)

    def _call(self, x: Tensor, y: Any) -> Batch:
        if not self.labels:
            return self.transform(x), None
        pair = self.transform(x, y)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                f"the transform returned a {type(pair).__name__}; with labels=True it must return the pair (x, y)"
            )
        return pair[0], pair[1]

    def _batched(self, x: Tensor, y: Any) -> list[Any]:
        new, y = self._call(x, y)
        if not isinstance(new, Tensor):
            raise TypeError(f"the transform returned a {type(new).__name__}; it must return a tensor")
        return tree_map_only(Tensor, lambda leaf: leaf.as_subclass(Tensor), [new, y])  # tv_tensors to plain ones

    def _one_by_one(self, x: Tensor, y: Any) -> list[Any]:
        targets = examples(y, len(x)) if self.labels else [None] * len(x)
        pairs = [self._call(image, target) for image, target in zip(x, targets, strict=True)]
        images = _stack([image for image, _ in pairs])
        if x.ndim == 4 and images.shape[1:] == (1, *x.shape[1:]):
            raise ValueError(
                f"the transform returned {tuple(images.shape[1:])} for one image {tuple(x.shape[1:])}, as those for "
                "batches do; pass batched=True"
            )
        return [images, join([target for _, target in pairs], y) if self.labels else None]

    def _wrapped(self, x: Tensor, y: Any) -> Any:
        """Wrap masks for torchvision, which moves only tv_tensors with the image, and refuse what it would leave."""
        theirs = str(getattr(self.transform, "__module__", "")).startswith("torchvision.transforms.v2")
        if not theirs or x.ndim != 4:
            return y

        def wrapped(leaf: Any) -> Any:
            if type(leaf) is not Tensor or not is_spatial(leaf):
                return leaf
            if not is_mask(leaf, x.shape[-2:]):
                raise ValueError(
                    f"torchvision would not move y of {leaf.dtype} and shape {tuple(leaf.shape)} with the images; wrap "
                    "it as one of tv_tensors in a function of yours that calls the transform for one image"
                )
            return import_module("torchvision.tv_tensors").Mask(leaf)

        return tree_map(wrapped, y)


class Views(Perturbation):
    """The copies are already made: x is (B, V, ...), V views of every example, as `ViewsDataset` delivers them.

    The draw is the number of a view, (B,): consecutive draws for a batch take its views in turn, so m = V draws see
    each once, and m = 1 sees the first. A batch is known by its tensor x: the same tensor, selected from again, goes on
    with its next view, so m = 1 in turn sees all of them.

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
        self.turn = 0
        self.batch: Callable[[], Tensor | None] = lambda: None

    def draw(self, batch: Batch, generator: Generator | None) -> Tensor:
        x = self._stacked(batch[0])[0]
        self.turn = (self.turn + 1) % x.shape[1] if self.batch() is x else 0
        self.batch = weakref.ref(x)
        return torch.full((len(x),), self.turn, device=x.device)

    def apply(self, batch: Batch, draw: Tensor) -> Batch:
        x, y = batch
        example = torch.arange(len(draw), device=draw.device)
        return set_leaves(x, [leaf[example, draw] for leaf in self._stacked(x)], self.key), y

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Views, key=self.key), ()  # copies and pickles start anew

    def _stacked(self, x: Any) -> list[Tensor]:
        found = get_leaves(x, self.key)
        if any(leaf.ndim < 2 for leaf in found):
            raise ValueError("Views wants x with the views second, (B, V, ...); wrap the data set in ViewsDataset")
        return found


class ViewsDataset(Dataset[tuple[Tensor, Any]]):
    """A data set whose items are m random views of an example: augmentation stays in the DataLoader's CPU workers.

    Pair it with `MaxUp(Views(), m=m)`: a batch then holds m views of every example, (B, m, ...).

    Args:
        dataset: Map-style data set of pairs (image, label).
        transform: Random transform of one image, returning a tensor (PIL images are fine as input).
        m: Views of every example.

    Example:
        >>> data = [(torch.rand(3, 8, 8), 0), (torch.rand(3, 8, 8), 1)]
        >>> views = ViewsDataset(data, lambda image: image * torch.rand(()), m=4)
        >>> x, y = next(iter(torch.utils.data.DataLoader(views, batch_size=2)))
        >>> x.shape
        torch.Size([2, 4, 3, 8, 8])
    """

    def __init__(self, dataset: Any, transform: Callable[[Any], Tensor], m: int) -> None:
        if not isinstance(m, int) or m < 1:
            raise ValueError(f"ViewsDataset(m={m!r}): m must be a whole number, 1 or more")
        self.dataset, self.transform, self.m = dataset, transform, m

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        item = self.dataset[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise TypeError(f"ViewsDataset wants items (image, label), but item {index} is a {type(item).__name__}")
        return _stack([self.transform(item[0]) for _ in range(self.m)]), item[1]


def examples(y: Any, n: int) -> list[Any]:
    """The targets of each example: a batch y of tensors (n, ...), taken apart. What is one of tv_tensors stays one.

    Example:
        >>> examples({"box": torch.tensor([[1, 2], [3, 4]])}, 2)
        [{'box': tensor([1, 2])}, {'box': tensor([3, 4])}]
    """
    leaves, spec = tree_flatten(y)
    for leaf in leaves:
        if is_list_of_dicts(y, n) or not is_batched(leaf) or len(leaf) != n:
            what = f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
            raise TypeError(
                f"Transform(labels=True) wants y as tensors of {n} examples, but y holds {what}; stack the targets, "
                "padded where examples differ, as in boxes (B, N, 4)"
            )

    def one(leaf: Tensor, i: int) -> Tensor:
        return import_module("torchvision.tv_tensors").wrap(leaf[i], like=leaf) if is_tv_tensor(leaf) else leaf[i]

    return [tree_unflatten([one(leaf, i) for leaf in leaves], spec) for i in range(n)]


def join(targets: list[Any], y: Any) -> Any:
    """The new targets of all examples as a batch of plain tensors; `y` is the batch before.

    Example:
        >>> join([{"box": torch.tensor([1, 2])}, {"box": torch.tensor([3, 4])}], None)
        {'box': tensor([[1, 2],
                [3, 4]])}
    """
    (before, old), (_, spec) = tree_flatten(y), tree_flatten(targets[0])
    if any(tree_flatten(target)[1] != spec for target in targets):
        raise TypeError("the transform returned targets of several structures; return the same one for every example")
    device = next((leaf.device for leaf in before if isinstance(leaf, Tensor)), None)
    numbers = [tree_map_only(Number, partial(torch.as_tensor, device=device), target) for target in targets]
    new = [_stack(list(parts)) for parts in zip(*map(tree_leaves, numbers), strict=True)]
    if old == spec:  # torchvision makes (1, 4) of one box (4,)
        boxes = [is_tv_tensor(b) and n.shape == (len(b), 1, *b.shape[1:]) for n, b in zip(new, before, strict=True)]
        new = [n.squeeze(1) if box else n for n, box in zip(new, boxes, strict=True)]
    return tree_unflatten(new, spec)


def _warn_of(y: Any) -> None:
    for leaf in tree_leaves(y):
        if is_spatial(leaf):
            warn(
                f"Transform changes x and leaves y, which holds {leaf.dtype} of shape {tuple(leaf.shape)}; pass "
                "labels=True if the transform moves pixels, so that it moves y too, and labels=False if it does not"
            )


def _stack(images: list[Any]) -> Tensor:
    """Results of a transform, joined: tensors of one shape."""
    if not all(isinstance(image, Tensor) and image.shape == images[0].shape for image in images):
        kinds = {str(tuple(i.shape)) if isinstance(i, Tensor) else f"a {type(i).__name__}" for i in images}
        raise TypeError(f"the transform must return tensors of one shape, but returned {', '.join(sorted(kinds))}")
    return torch.stack(images)


@contextmanager
def forked_random(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global streams inside (of torch on the CPU and this device, Python, numpy); put them back at the end."""
    rewind = remember_rng([device])
    torch.default_generator.manual_seed(seed)
    if device.type not in ("cpu", "meta"):
        module = torch.get_device_module(device)
        with module.device(device):  # this one only: the others would not be put back
            module.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        rewind()

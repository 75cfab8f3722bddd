import contextlib
import copy
import pickle
import random

import kornia.augmentation as kornia
import numpy
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import maxup as mu
from maxup.rng import seed_globals
from tests.oracles import torchvision_v2
from tests.tiny import CLASSES, batch, generator, net


def test_torchvision_draws_per_example_and_is_reproducible():
    v2 = torchvision_v2()
    x, y = torch.rand(8, 3, 16, 16), torch.arange(8)
    x[1] = x[0]
    transform = mu.Transform(v2.RandomCrop(16, padding=4))
    first, _ = transform(x, y, generator=generator())
    assert torch.equal(first, transform(x, y, generator=generator())[0])
    assert not torch.equal(first[0], first[1])  # torchvision alone would crop all images the same way


def test_kornia_draws_per_example():
    x = torch.rand(8, 3, 16, 16)
    x[1] = x[0]
    out, _ = mu.Transform(kornia.RandomRotation(30.0, p=1.0), batched=True)(x, generator=generator())
    assert out.shape == x.shape
    assert not torch.equal(out[0], out[1])


def test_torchvision_cutmix_changes_labels_too():
    v2 = torchvision_v2()
    x, y = batch(dtype=torch.float32)
    transform = mu.Transform(v2.CutMix(num_classes=CLASSES), batched=True, labels=True)
    outcome = mu.MaxUp(transform, 3, generator=generator()).run(net(dtype=torch.float32), x, y)
    assert outcome.target.shape == (len(y), CLASSES)
    assert outcome.report.label_entropy > 0
    assert outcome.report.replay_exact


def test_labels_per_example():
    swap = mu.Transform(lambda image, label: (-image, label + 1), labels=True)
    x, y = swap(torch.ones(3, 2), torch.tensor([0, 1, 2]))
    assert y.tolist() == [1, 2, 3]
    assert x.unique().tolist() == [-1]


def tv_tensors_with_points():
    from torchvision import tv_tensors

    if not hasattr(tv_tensors, "KeyPoints"):
        pytest.skip("this torchvision has no KeyPoints")
    return tv_tensors


def boxes_and_points(n=4, seed=0):
    """Padded targets of n images of 8 by 12 pixels: three boxes each; the last is padding."""
    g = generator(seed)
    corner = torch.randint(4, (n, 3, 2), generator=g)
    boxes = torch.cat([corner, corner + 1 + torch.randint(4, (n, 3, 2), generator=g)], dim=2).float()  # left, top, ...
    boxes[:, 2] = 0
    classes = torch.tensor([1, 2, -1]).expand(n, 3)
    mask = torch.randint(5, (n, 8, 12), generator=g)
    return {"boxes": boxes, "classes": classes, "mask": mask, "points": corner[:, :2].float()}


def mirrored(y):
    """The reference: targets of images, 12 pixels wide, that were flipped horizontally."""
    left, top, right, bottom = y["boxes"].unbind(-1)
    boxes = torch.stack([12 - right, top, 12 - left, bottom], dim=-1)
    points = torch.stack([11 - y["points"][..., 0], y["points"][..., 1]], dim=-1)
    return {"boxes": boxes, "classes": y["classes"], "mask": y["mask"].flip(-1), "points": points}


@pytest.mark.parametrize("where", ["alone", "selected"])
def test_torchvision_moves_boxes_masks_and_points(where):
    """A function that wraps padded targets: some images are flipped, and exactly their targets move."""
    v2 = torchvision_v2()
    tv_tensors = tv_tensors_with_points()
    flip, size = v2.RandomHorizontalFlip(), (8, 12)

    def move(image, y):
        boxes = tv_tensors.BoundingBoxes(y["boxes"], format="XYXY", canvas_size=size)
        points = tv_tensors.KeyPoints(y["points"], canvas_size=size)
        y = {**y, "boxes": boxes, "mask": tv_tensors.Mask(y["mask"]), "points": points}
        return flip(image, y)

    x, y = torch.rand(16, 3, 8, 12, generator=generator()), boxes_and_points(16)
    perturb = mu.Transform(move, labels=True)
    if where == "alone":
        new_x, new_y = perturb(x, y, generator=generator(1))
    else:
        model = torch.nn.Conv2d(3, 5, 1)
        maxup = mu.MaxUp(
            perturb, 2, generator=generator(1), loss_fn=lambda o, t: t["boxes"][:, 0, 0] + o.flatten(1).mean(1)
        )
        new_x, new_y = maxup.select(model, x, y)
    flipped = (new_x != x).flatten(1).any(1)
    assert 0 < flipped.sum() < 16
    assert torch.equal(new_x, torch.where(flipped.view(-1, 1, 1, 1), x.flip(-1), x))
    assert new_y.keys() == y.keys()
    for key, moved in mirrored(y).items():
        assert type(new_y[key]) is torch.Tensor
        assert torch.equal(new_y[key], torch.where(flipped.view(-1, *[1] * (moved.ndim - 1)), moved, y[key])), key


def test_tv_tensors_in_y_keep_their_type_for_the_transform():
    """Masks and points come as a batch. A batch of boxes has one box per image, the most torchvision supports."""
    v2 = torchvision_v2()
    tv_tensors = tv_tensors_with_points()
    size, plain = (8, 12), boxes_and_points()
    plain["boxes"] = plain["boxes"][:, 0]
    y = (
        tv_tensors.BoundingBoxes(plain["boxes"], format="XYXY", canvas_size=size),
        tv_tensors.KeyPoints(plain["points"], canvas_size=size),
        {"mask": tv_tensors.Mask(plain["mask"]), "classes": plain["classes"]},
    )
    x = torch.rand(4, 3, 8, 12)
    for flip in (
        mu.Transform(v2.RandomHorizontalFlip(1.0), labels=True),
        mu.Compose(mu.Gaussian(0), mu.Transform(v2.RandomHorizontalFlip(1.0), labels=True)),
    ):
        new_x, (boxes, points, rest) = flip(x, y)
        expected = mirrored(plain)
        assert torch.equal(new_x, x.flip(-1))
        assert torch.equal(boxes, expected["boxes"])
        assert torch.equal(points, expected["points"])
        assert torch.equal(rest["mask"], expected["mask"])
        assert torch.equal(rest["classes"], plain["classes"])
        assert {type(leaf) for leaf in (boxes, points, *rest.values())} == {torch.Tensor}


def test_masks_may_change_their_shape():
    """Images that are not square, rotated by 90 degrees."""
    v2 = torchvision_v2()
    x, mask = torch.rand(4, 3, 8, 12), torch.randint(5, (4, 8, 12))
    turn = mu.Transform(v2.RandomRotation((90, 90), expand=True), labels=True)
    new_x, new_mask = turn(x, mask)
    assert torch.equal(new_x, x.rot90(1, (2, 3)))
    assert torch.equal(new_mask, mask.rot90(1, (1, 2)))


@pytest.mark.parametrize("batched", [False, True])
def test_plain_masks_move_with_torchvision_transforms(batched):
    """torchvision moves only one plain tensor of a pair, the image."""
    v2 = torchvision_v2()
    x, mask = torch.rand(4, 3, 8, 12), torch.randint(5, (4, 8, 12))
    flip = mu.Transform(v2.RandomHorizontalFlip(1.0), batched=batched, labels=True)
    new_x, new = flip(x, {"mask": mask, "class": torch.arange(4)})
    assert torch.equal(new_x, x.flip(-1))
    assert torch.equal(new["mask"], mask.flip(-1))
    assert torch.equal(new["class"], torch.arange(4))
    for other in (torch.rand(4, 8, 12), torch.rand(4, 3, 4)):
        with pytest.raises(
            ValueError, match=r"torchvision would not move .*; pass a function that wraps y as a tv_tensor"
        ):
            flip(x, {"boxes": other})


def test_a_transform_that_leaves_masks_unchanged_warns():
    x, mask = torch.rand(4, 3, 8, 12), torch.randint(5, (4, 8, 12))
    message = r"^Transform changes x but not y, which holds torch.int64 of shape \(4, 8, 12\); pass labels=True if"
    with pytest.warns(mu.MaxUpWarning, match=message):
        mu.Transform(lambda image: image.flip(-1))(x, mask)
    mu.Transform(lambda image: 2 * image, labels=False)(x, mask)
    mu.Transform(lambda image: 2 * image)(x, torch.arange(4))
    mu.Transform(lambda image: 2 * image)(x, torch.rand(4, 12))


def test_targets_without_a_batch_dimension_are_refused():
    x = torch.rand(2, 3, 8, 8)
    both = mu.Transform(lambda image, y: (image, y), labels=True)
    detection = [
        {"boxes": torch.rand(2, 4), "labels": torch.ones(2)},
        {"boxes": torch.rand(2, 4), "labels": torch.ones(2)},
    ]
    for y in (None, [1, 2], {"a": torch.zeros(3)}, {"a": torch.tensor(1.0)}, detection):
        with pytest.raises(TypeError, match=r"expects y to hold tensors of 2 examples, .*; stack the targets, and pad"):
            both(x, y)
    with pytest.raises(TypeError, match=r"must return the pair \(x, y\)"):
        mu.Transform(lambda image, y: image[0, 0, 0], labels=True)(x, torch.zeros(2))
    with pytest.raises(TypeError, match=r"one shape, but returned \(1,\), \(2,\)"):
        mu.Transform(lambda image, y: (image, torch.zeros(int(y))), labels=True)(x, torch.tensor([1, 2]))
    with pytest.raises(TypeError, match="tensors of one shape, but returned a str"):
        mu.Transform(lambda image, y: (image, {"a": "b"}), labels=True)(x, torch.zeros(2))
    with pytest.raises(TypeError, match="targets of different structures"):
        mu.Transform(lambda image, y: (image, {int(y): y}), labels=True)(x, torch.arange(2))


def test_a_list_of_dicts_must_be_padded():
    x = torch.rand(2, 3, 8, 8)
    y = [{"boxes": torch.rand(n, 4), "labels": torch.ones(n)} for n in (1, 3)]
    for targets in (y, tuple(y), [y[0] | {"boxes": torch.rand(2, 4), "labels": torch.ones(2)}] * 2):
        with pytest.raises(TypeError, match=r"y is a .* of 2 dicts, one per example; .*padded"):
            mu.MaxUp(mu.Gaussian(0.1)).select(torch.nn.Flatten(), x, targets)


def test_the_transform_uses_a_fork_of_the_global_generators():
    def transform(image):
        return image + torch.rand(()) + random.random() + float(numpy.random.rand())

    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    x = torch.zeros(2, 1)
    perturb = mu.Transform(transform)
    a, b = (perturb(x, generator=generator(s))[0] for s in (0, 1))
    assert torch.equal(a, perturb(x, generator=generator(0))[0])
    assert not torch.equal(a, b)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == numpy.random.get_state()[1]).all()


@pytest.mark.parametrize("stream", [lambda: float(torch.rand(())), random.random, lambda: float(numpy.random.rand())])
def test_every_global_generator_is_seeded_for_the_transform(stream):
    perturb = mu.Transform(lambda image: image + stream())
    a, b = (perturb(torch.zeros(2, 1), generator=generator(s))[0] for s in (0, 1))
    assert not torch.equal(a, b)
    assert not torch.equal(a[0], a[1])


def test_invalid_transforms_are_refused():
    with pytest.raises(TypeError, match="expects a callable, but got an int"):
        mu.Transform(3)
    with pytest.raises(TypeError, match="tensors of one shape, but returned a NoneType"):
        mu.Transform(lambda x: None)(torch.zeros(2, 2))
    with pytest.raises(
        ValueError,
        match=r"returned shape \(1, 3, 8, 8\) for one image of shape \(3, 8, 8\).*expects a batch, pass batched=True",
    ):
        mu.Transform(lambda image: image[None])(torch.zeros(2, 3, 8, 8))
    with pytest.raises(TypeError, match="returned a str"):
        mu.Transform(lambda x: "no", batched=True)(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="x has 2 floating-point tensors; name one with key="):
        mu.Transform(lambda x: x)({"a": torch.zeros(2), "b": torch.zeros(2)})


def test_views_come_from_workers_and_each_is_scored_once():
    data = [(torch.full((3, 8, 8), float(i), dtype=torch.float64), i % CLASSES) for i in range(6)]
    views = mu.ViewsDataset(data, lambda image: image + torch.randn(()), m=4)
    x, y = next(iter(DataLoader(views, batch_size=6, num_workers=2)))
    assert x.shape == (6, 4, 3, 8, 8)
    assert len(x[:, :, 0, 0, 0].flatten().unique()) == 24
    model = net()
    outcome = mu.MaxUp(mu.Views(), m=4).run(model, x, y)
    losses = torch.stack([mu.cross_entropy(model(x[:, v]), y) for v in range(4)])
    torch.testing.assert_close(outcome.losses, losses.amax(0))
    first, _ = mu.MaxUp(mu.Views(), m=1).select(model, x.clone(), y)
    assert torch.equal(first, x[:, 0])


def test_the_same_tensor_continues_with_its_next_view():
    x, y = torch.arange(8.0).view(2, 4, 1), torch.zeros(2)
    views = mu.Views()
    seen = [views(x, y)[0][0].item() for _ in range(5)]
    assert seen == [0, 1, 2, 3, 0]
    assert views(x.clone(), y)[0][0].item() == 0


def test_only_the_given_device_is_seeded(monkeypatch):
    """With a fake of a machine with two GPUs."""
    seeded, entered = [], []

    class Fake:
        current = 0

        @contextlib.contextmanager
        def device(self, device):
            entered.append(device.index)
            before, self.current = self.current, device.index
            yield
            self.current = before

        def manual_seed(self, seed):
            seeded.append((self.current, seed))

        def get_rng_state(self, device):
            return device.index

        def set_rng_state(self, state, device):
            seeded.append((device.index, f"back to {state}"))

    fake = Fake()
    monkeypatch.setattr(torch, "get_device_module", lambda device: fake)
    with seed_globals(7, torch.device("cuda", 1)):
        assert seeded == [(1, 7)]
    assert seeded == [(1, 7), (1, "back to 1")]


def photographs(n=8, size=20):
    numbers = numpy.random.default_rng(0)
    arrays = [numbers.integers(256, size=(size, size, 3), dtype=numpy.uint8) for _ in range(n)]
    return [(Image.fromarray(array), i % CLASSES) for i, array in enumerate(arrays)]


def timm_transform():
    torchvision_v2()
    from timm.data import create_transform

    return create_transform(8, is_training=True, auto_augment="rand-m9-mstd0.5", re_prob=0.25)


def albumentations_transform():
    albumentations = pytest.importorskip("albumentations")
    from albumentations.pytorch import ToTensorV2

    parts = [albumentations.RandomResizedCrop((8, 8)), albumentations.RandomBrightnessContrast(p=1.0)]
    pipeline = albumentations.Compose([*parts, albumentations.Normalize(), ToTensorV2()])

    def view(image):
        pipeline.set_random_seed(int(torch.randint(2**31, ())))  # as its docs recommend
        return pipeline(image=numpy.asarray(image))["image"]

    return view


@pytest.mark.parametrize("pipeline", [timm_transform, albumentations_transform])
def test_views_from_pipelines_of_other_libraries(pipeline):
    """Views differ between workers and epochs, are reproducible with torch.manual_seed, and the worst is selected."""
    one = photographs(1)[0]
    views = mu.ViewsDataset([one] * 8, pipeline(), m=4)
    loader = DataLoader(views, batch_size=4, num_workers=2)
    epochs = [torch.cat([x for x, _ in loader]) for _ in range(2)]
    assert epochs[0].shape == (8, 4, 3, 8, 8)
    assert len(torch.stack(epochs).flatten(0, 2).flatten(1).unique(dim=0)) == 64  # all views of one image differ
    torch.manual_seed(1)
    first, _ = next(iter(loader))
    torch.manual_seed(1)
    again, y = next(iter(loader))
    assert torch.equal(first, again)
    model = net(dtype=torch.float32)
    worst, _ = mu.MaxUp(mu.Views(), m=4).select(model, first, y)
    losses = torch.stack([mu.cross_entropy(model(first[:, v]), y) for v in range(4)])
    assert torch.equal(worst, first[torch.arange(4), losses.argmax(0)])


def test_views_can_be_copied_and_refuse_invalid_input():
    views = mu.Views()
    views(torch.zeros(2, 4, 3))
    copy.deepcopy(views)(torch.zeros(2, 4, 3))
    pickle.loads(pickle.dumps(views))(torch.zeros(2, 4, 3))
    with pytest.raises(ValueError, match=r"\(B, V, \.\.\.\)"):
        views(torch.zeros(2))
    with pytest.raises(ValueError, match="m=0"):
        mu.ViewsDataset([], lambda x: x, 0)
    with pytest.raises(TypeError, match=r"expects items \(image, label\), but item 0 is a dict"):
        mu.ViewsDataset([{"image": 1, "label": 2}], lambda x: x, 2)[0]

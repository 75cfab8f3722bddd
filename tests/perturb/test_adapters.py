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
from maxup.perturb.adapters import forked_random
from tests.oracles import torchvision_v2
from tests.tiny import CLASSES, batch, generator, net


def test_torchvision_draws_for_every_example_and_repeats():
    v2 = torchvision_v2()
    x, y = torch.rand(8, 3, 16, 16), torch.arange(8)
    x[1] = x[0]
    transform = mu.Transform(v2.RandomCrop(16, padding=4))
    first, _ = transform(x, y, generator=generator())
    assert torch.equal(first, transform(x, y, generator=generator())[0])
    assert not torch.equal(first[0], first[1])  # torchvision alone would crop the batch alike


def test_kornia_draws_by_itself():
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


def test_labels_by_example():
    swap = mu.Transform(lambda image, label: (-image, label + 1), labels=True)
    x, y = swap(torch.ones(3, 2), torch.tensor([0, 1, 2]))
    assert y.tolist() == [1, 2, 3]
    assert x.unique().tolist() == [-1]


def test_global_streams_do_not_move_but_drive_the_transform():
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
def test_every_global_stream_is_seeded_for_the_transform(stream):
    perturb = mu.Transform(lambda image: image + stream())
    a, b = (perturb(torch.zeros(2, 1), generator=generator(s))[0] for s in (0, 1))
    assert not torch.equal(a, b)
    assert not torch.equal(a[0], a[1])


def test_transforms_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match="wants a callable, but got a int"):
        mu.Transform(3)
    with pytest.raises(TypeError, match="tensors of one shape, but returned a NoneType"):
        mu.Transform(lambda x: None)(torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"returned \(1, 3, 8, 8\) for one image \(3, 8, 8\).*; pass batched=True"):
        mu.Transform(lambda image: image[None])(torch.zeros(2, 3, 8, 8))
    with pytest.raises(TypeError, match="returned a str"):
        mu.Transform(lambda x: "no", batched=True)(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="2 are floating; name one with key="):
        mu.Transform(lambda x: x)({"a": torch.zeros(2), "b": torch.zeros(2)})


def test_views_come_from_workers_and_each_is_seen_once():
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


def test_the_same_tensor_again_goes_on_with_its_next_view():
    x, y = torch.arange(8.0).view(2, 4, 1), torch.zeros(2)
    views = mu.Views()
    seen = [views(x, y)[0][0].item() for _ in range(5)]
    assert seen == [0, 1, 2, 3, 0]
    assert views(x.clone(), y)[0][0].item() == 0


def test_only_the_device_at_hand_is_seeded(monkeypatch):
    """On a stand-in for a machine with two GPUs, of which one is put back."""
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
    with forked_random(7, torch.device("cuda", 1)):
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
        pipeline.set_random_seed(int(torch.randint(2**31, ())))  # as the docs say
        return pipeline(image=numpy.asarray(image))["image"]

    return view


@pytest.mark.parametrize("pipeline", [timm_transform, albumentations_transform])
def test_other_libraries_pipelines_make_the_views(pipeline):
    """Different in every view, worker and epoch; the same again after torch.manual_seed; the worst is trained on."""
    one = photographs(1)[0]
    views = mu.ViewsDataset([one] * 8, pipeline(), m=4)
    loader = DataLoader(views, batch_size=4, num_workers=2)
    epochs = [torch.cat([x for x, _ in loader]) for _ in range(2)]
    assert epochs[0].shape == (8, 4, 3, 8, 8)
    assert len(torch.stack(epochs).flatten(0, 2).flatten(1).unique(dim=0)) == 64  # of one image
    torch.manual_seed(1)
    first, _ = next(iter(loader))
    torch.manual_seed(1)
    again, y = next(iter(loader))
    assert torch.equal(first, again)
    model = net(dtype=torch.float32)
    worst, _ = mu.MaxUp(mu.Views(), m=4).select(model, first, y)
    losses = torch.stack([mu.cross_entropy(model(first[:, v]), y) for v in range(4)])
    assert torch.equal(worst, first[torch.arange(4), losses.argmax(0)])


def test_views_can_be_copied_and_say_what_they_want():
    views = mu.Views()
    views(torch.zeros(2, 4, 3))
    copy.deepcopy(views)(torch.zeros(2, 4, 3))
    pickle.loads(pickle.dumps(views))(torch.zeros(2, 4, 3))
    with pytest.raises(ValueError, match=r"\(B, V, \.\.\.\)"):
        views(torch.zeros(2))
    with pytest.raises(ValueError, match="m=0"):
        mu.ViewsDataset([], lambda x: x, 0)
    with pytest.raises(TypeError, match=r"wants items \(image, label\), but item 0 is a dict"):
        mu.ViewsDataset([{"image": 1, "label": 2}], lambda x: x, 2)[0]

"""Test images for many networks are those of `maxup eval --robustness`: corrupted by index, and attacked in a ball."""

import pytest
import torch
from torch.nn import functional as F

from benchmarks.robust_images import RADIUS, RobustImages
from maxup.lab.robustness.corruptions import CORRUPTIONS
from maxup.lab.robustness.measure import STEPS

N = 30


@pytest.fixture
def images():
    x, y = torch.randint(256, (N, 3, 8, 8), dtype=torch.uint8), torch.randint(3, (N,))
    return RobustImages(x, y, normalize, "cpu")


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)).eval()


def normalize(pixels):
    return 2 * pixels - 1


def losses(model, images, pixels):
    return F.cross_entropy(model(normalize(pixels)), images.labels, reduction="none")


def test_accuracy_on_corrupted_images_is_a_mean_over_strengths(images, model):
    found = images.measure(model, model)
    for name, kind in CORRUPTIONS.items():
        correct = []
        for level in kind.levels:
            pixels = (255 * kind.apply(images.clean / 255, level, torch.arange(N))).round() / 255
            correct.append((model(normalize(pixels)).argmax(1) == images.labels).float().mean())
        assert found[name] == pytest.approx(100 * float(sum(correct)) / 5, abs=1e-4)
    assert found["corrupted"] == pytest.approx(sum(found[name] for name in CORRUPTIONS) / len(CORRUPTIONS))
    assert found["nll"] == pytest.approx(losses(model, images, images.clean / 255).mean().item(), rel=1e-5)


def test_attacked_images_are_on_the_edge_of_the_ball_and_the_worst_there(images, model):
    clean, found = images.clean / 255, images.attacked(model)
    assert 0 <= found.min() <= found.max() <= 1
    distance = (found - clean).flatten(1).norm(dim=1)
    assert distance.max() <= RADIUS + 1e-5
    assert distance.mean() > 0.95 * RADIUS
    # for a linear network, the loss of one gradient step to the edge is nearly the largest one
    gradient = torch.func.grad(lambda pixels: losses(model, images, pixels).sum())(clean)
    edge = (clean + RADIUS * F.normalize(gradient.flatten(1)).view(clean.shape)).clamp(0, 1)
    assert losses(model, images, found).mean() > 0.99 * losses(model, images, edge).mean()
    correct = (model(normalize(found)).argmax(1) == images.labels).float().mean()
    assert images.measure(model, model)["attacked"] == pytest.approx(100 * float(correct), abs=1e-4)
    assert images.attack.steps == STEPS


def test_starting_points_do_not_depend_on_the_other_images(images):
    fewer = RobustImages(images.clean[:7], images.labels[:7], normalize, "cpu")
    assert torch.equal(fewer.starts, images.starts[:7])
    assert all(torch.equal(fewer.corrupted[name][0], images.corrupted[name][0][:7]) for name in CORRUPTIONS)

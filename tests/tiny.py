"""Small images, tokens, networks, and every perturbation, for all generic tests."""

import math

import torch
from scipy import stats
from torch import nn

import maxup as mu

B, C, SIZE, CLASSES, VOCABULARY, LENGTH = 6, 3, 8, 4, 11, 5


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def batch(seed=0, dtype=torch.float64, b=B):
    g = generator(seed)
    return torch.rand(b, C, SIZE, SIZE, generator=g, dtype=dtype), torch.randint(CLASSES, (b,), generator=g)


def soft(y, dtype=torch.float64):
    """Probability targets that are not one-hot."""
    return 0.8 * nn.functional.one_hot(y, CLASSES).to(dtype) + 0.2 / CLASSES


def far_from_beta(found, a, b):
    """Kolmogorov-Smirnov statistic times sqrt(n), away from 0 and 1, to which samples are rounded."""
    at = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    share = torch.searchsorted(found.double().sort().values, at, right=True) / len(found)
    return float((share - torch.from_numpy(stats.beta(a, b).cdf(at))).abs().max()) * math.sqrt(len(found))


def tokens(seed=0):
    g = generator(seed)
    return torch.randint(VOCABULARY, (B, LENGTH), generator=g), torch.randint(CLASSES, (B,), generator=g)


def net(seed=0, dtype=torch.float64):
    """A smooth conv net without BatchNorm and dropout."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(C, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(5 * (SIZE - 2) ** 2, CLASSES)).to(dtype)


def batch_norm_net(seed=0, dtype=torch.float64, dropout=0.0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(C, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(dropout), nn.Flatten(),
        nn.Linear(5 * (SIZE - 2) ** 2, CLASSES),
    ).to(dtype)  # fmt: skip


def dropout_net(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(C * SIZE**2, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, CLASSES)
    ).to(dtype)


def text_net(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(VOCABULARY, 7), nn.Flatten(), nn.Tanh(), nn.Linear(7 * LENGTH, CLASSES)).to(dtype)


class Function(nn.Module):
    """A model whose forward is a function of its layers."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


def conv(inputs=3, outputs=3, **options):
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


class Scale:
    """A custom perturbation: the two methods and nothing else."""

    def draw(self, batch, generator):
        x, _ = batch
        return torch.rand(len(x), 1, 1, 1, generator=generator, dtype=x.dtype)

    def apply(self, batch, draw):
        x, y = batch
        return x * (0.5 + draw), y


IMAGE_PERTURBATIONS = {
    "gaussian": lambda: mu.Gaussian(0.3),
    "ball-l2": lambda: mu.UniformBall(1.0, p=2),
    "ball-linf": lambda: mu.UniformBall(0.2, p=math.inf),
    "cutout": lambda: mu.Cutout(3),
    "cutmix": lambda: mu.CutMix(CLASSES),
    "mixup": lambda: mu.MixUp(num_classes=CLASSES),
    "crop-flip": lambda: mu.CropFlip(2),
    "affine": lambda: mu.Affine(20, translate=0.2),
    "rand-augment": lambda: mu.RandAugment(mean=0.4, std=0.3),
    "trivial-augment": lambda: mu.TrivialAugment(),
    "auto-augment": lambda: mu.AutoAugment("cifar10", mean=(0.5, 0.4, 0.3), std=(0.3, 0.2, 0.4)),
    "color-jitter": lambda: mu.ColorJitter(),
    "lighting": lambda: mu.Lighting(0.5),
    "label-noise": lambda: mu.LabelNoise(0.3, num_classes=CLASSES),
    "compose": lambda: mu.Compose(mu.CropFlip(1), mu.CutMix(CLASSES), mu.Gaussian(0.1)),
    "transform": lambda: mu.Transform(lambda image: image * torch.rand(())),
    "transform-batched": lambda: mu.Transform(lambda x: x + torch.randn_like(x), batched=True),
    "by-hand": Scale,
}


def case(name):
    """Return (perturbation, model, x, y) for a perturbation by name."""
    if name in IMAGE_PERTURBATIONS:
        return IMAGE_PERTURBATIONS[name](), net(), *batch()
    if name == "embedding-dropout":
        perturbation, model = mu.EmbeddingDropout(0.4), text_net()
        return perturbation, perturbation.attach(model), *tokens()
    if name == "token-dropout":
        return mu.TokenDropout(0.5, mask_id=0, keep=[1]), text_net(), *tokens()
    if name == "feature-noise":
        perturbation, model = mu.FeatureNoise(0.5, layer="1"), net()
        return perturbation, perturbation.attach(model), *batch()
    if name == "manifold-mixup":
        perturbation, model = mu.ManifoldMixup(["input", "0", "1"], CLASSES), net()
        return perturbation, perturbation.attach(model), *batch()
    if name == "compose-in-model":
        inner, model = mu.FeatureNoise(0.5, layer="1"), net()
        return mu.Compose(mu.Cutout(3), inner), inner.attach(model), *batch()
    if name == "views":
        x, y = batch()
        x = torch.stack([x + 0.3 * torch.randn(x.shape, generator=generator(v), dtype=x.dtype) for v in range(5)], 1)
        return mu.Views(), net(), x, y
    raise KeyError(name)


ALL_CASES = [
    *IMAGE_PERTURBATIONS,
    *("embedding-dropout", "token-dropout", "feature-noise", "manifold-mixup", "compose-in-model", "views"),
]
IN_MODEL = {"embedding-dropout", "feature-noise", "manifold-mixup", "compose-in-model"}


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


def train_step(model, objective, optimizer):
    """A function that trains a model on a batch, and returns the loss."""

    def step(x, y):
        loss = objective(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step

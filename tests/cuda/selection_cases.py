"""What can change between two steps so that a captured selection is out of date. Used on a CPU and on a GPU."""

import torch
from torch import Generator, nn
from torch.nn import functional as F

from maxup import Gaussian, MaxUp

STEPS, CHANGE = 10, 6


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.inside, self.head, self.scale = nn.Linear(20, 30), nn.Linear(30, 5), torch.ones(5)
        self.temperature = 1.0

    def forward(self, x):
        return self.head(F.relu(self.inside(x))) * self.scale / self.temperature


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.temperature = 1.0

    def forward(self, output, target):
        return F.cross_entropy(output / self.inner.temperature, target, reduction="none")


class Private:
    """A perturbation with a private attribute."""

    def __init__(self):
        self._sigma = 0.5

    def draw(self, batch, generator):
        x = batch[0]
        return torch.randn(x.shape, generator=generator, device=x.device) * self._sigma

    def apply(self, batch, draw):
        return batch[0] + draw, batch[1]


def replace_head(model, objective, loss):
    model.head = nn.Linear(30, 5).to(model.head.weight.device)


def add_hook(model, objective, loss):
    model.inside.register_forward_hook(lambda module, args, output: 3 * output)


def replace_scale(model, objective, loss):
    model.scale = torch.full_like(model.scale, 3.0)


def change_attribute(model, objective, loss):
    model.temperature = 3.0


def change_loss(model, objective, loss):
    loss.inner.temperature = 5.0


def replace_weight(model, objective, loss):
    model.head.weight.data = model.head.weight.data.flip(0)


def replace_generator(model, objective, loss):
    objective.generator = Generator(model.head.weight.device).manual_seed(7)


def load_seed(model, objective, loss):
    objective.load_state_dict({"seed": 9, "step": 0})


def change_perturbation(model, objective, loss):
    objective.perturbation.sigma = 2.0


def change_private(model, objective, loss):
    objective.perturbation._sigma = 2.0


def change_m(model, objective, loss):
    objective.m = 3


CHANGES = {
    change.__name__: change
    for change in (
        replace_head, add_hook, replace_scale, change_attribute, change_loss, replace_weight, replace_generator,
        load_seed, change_perturbation, change_private, change_m,
    )
}  # fmt: skip


def data(count=STEPS, device="cpu"):
    g = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(16, 20, generator=g).to(device), torch.randint(5, (16,), generator=g).to(device)


def selected(change, *, capture, device="cpu"):
    """Return the losses of the selected copies in every step, and the objective. Something changes in a step."""
    model, loss = Net().to(device), Loss()
    model.scale = model.scale.to(device)  # not in `forward`: such a copy synchronizes
    perturbation = Private() if change is change_private else Gaussian(0.5)
    objective = MaxUp(perturbation, m=4, loss_fn=loss, capture=capture)
    objective.load_state_dict({"seed": 5, "step": 0})
    losses = []
    for step, (x, y) in enumerate(data(device=device)):
        if step == CHANGE:
            assert (objective._captured.captured is not None) == capture
            change(model, objective, loss)
        losses.append(objective(model, x, y).detach())
    return torch.stack(losses), objective

"""What the tests of the integrations share."""

import torch


def images(n=24, size=8, classes=4):
    g = torch.Generator().manual_seed(0)
    return [(torch.rand(3, size, size, generator=g), i % classes) for i in range(n)]


def generator(seed=7):
    return torch.Generator().manual_seed(seed)


class Nothing:
    """A perturbation that changes nothing."""

    def draw(self, batch, generator):
        leaf = batch[0] if isinstance(batch[0], torch.Tensor) else next(iter(batch[0].values()))
        return torch.zeros(len(leaf), device=leaf.device)

    def apply(self, batch, draw):
        return batch


def assert_equal(one, other):
    """Check that two modules have the same parameters, bit for bit."""
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs), (mine - theirs).abs().max()

"""What the tests of the integrations share."""

import torch

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


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


def vit(hf, **config):
    torch.manual_seed(0)
    return hf.ViTForImageClassification(hf.ViTConfig(image_size=8, patch_size=4, num_labels=4, **SIZES, **config))


def bert(hf, kind="ForSequenceClassification", **config):
    torch.manual_seed(0)
    config = {"num_labels": 4, "vocab_size": 30, "max_position_embeddings": 8, **SIZES, **config}
    return getattr(hf, f"Bert{kind}")(hf.BertConfig(**config))

"""The networks of the table of costs, for `maxup bench`.

    maxup bench benchmarks.networks:vit --m 4 --variants maxup maxup_fast --precision bf16 --compile

`python -m benchmarks.gpu` measures all of them.

Each function returns a model, a batch of random data and a perturbation, as `maxup bench` takes them. Random data are
enough to measure time and memory. The sizes are those of a GPU.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxup import Compose, CropFlip, CutMix, Cutout, EmbeddingDropout, Gaussian
from maxup.lab.models import create_model
from maxup.objectives.base import call_model


def images(model: nn.Module, size: int, side: int, num_classes: int) -> dict[str, Any]:
    """Return a model of images and a batch, in the memory format that convolutions prefer."""
    x = torch.randn(size, 3, side, side).contiguous(memory_format=torch.channels_last)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return {"model": model, "batch": (x, torch.randint(num_classes, (size,))), "forward": call_model}


def resnet50(size: int = 256, side: int = 224) -> dict[str, Any]:
    """ResNet-50 of torchvision on 224 px with CutMix."""
    from maxup.integrations.torchvision import import_torchvision

    return images(import_torchvision().models.resnet50(), size, side, 1000) | {"perturbation": CutMix(num_classes=1000)}


def vit(size: int = 256, side: int = 224) -> dict[str, Any]:
    """ViT-S/16 on 224 px with CutMix."""
    return images(ViT(side), size, side, 1000) | {"perturbation": CutMix(num_classes=1000)}


def wrn(size: int = 256) -> dict[str, Any]:
    """WRN-28-10 on 32 px with Cutout."""
    model = create_model("wrn28_10", shape=(3, 32, 32), num_classes=10)
    return images(model, size, 32, 10) | {"perturbation": Cutout(16)}


def speednet(size: int = 1024) -> dict[str, Any]:
    """The network of the speed run on 32 px with Cutout."""
    return images(create_model("speednet", shape=(3, 32, 32), num_classes=10), size, 32, 10) | {
        "perturbation": Cutout(12)
    }


def resnet110(size: int = 256) -> dict[str, Any]:
    """The paper's ResNet-110 on 32 px with Cutout."""
    return images(create_model("resnet110", shape=(3, 32, 32), num_classes=10), size, 32, 10) | {
        "perturbation": Cutout(16)
    }


def crops(size: int = 256) -> dict[str, Any]:
    """ResNet-110 with a random crop, a flip and Cutout in every copy."""
    return resnet110(size) | {"perturbation": Compose(CropFlip(padding=4), Cutout(16))}


def noise(size: int = 256) -> dict[str, Any]:
    """The paper's ResNet-110 on 32 px with Gaussian noise, as it trains for certification."""
    return resnet110(size) | {"perturbation": Gaussian(0.25)}


def bert(size: int = 64, length: int = 128) -> dict[str, Any]:
    """BERT-base as a classifier of 128 tokens, with embedding dropout and BERT's own dropout.

    The batch has an attention mask, as tokenizers return it. Without one, the attention of some versions of
    transformers runs in float32 when compiled.
    """
    from maxup.integrations.torchvision import import_torchvision

    import_torchvision()  # transformers imports it
    from transformers import BertConfig, BertForSequenceClassification

    words = EmbeddingDropout(0.1, layer="bert.embeddings.word_embeddings")
    model = words.attach(BertForSequenceClassification(BertConfig(num_labels=2)))
    tokens = torch.randint(1000, 30000, (size, length))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, torch.randint(2, (size,))
    return {"model": model.train(), "batch": batch, "perturbation": words, "forward": logits}


def logits(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Call a Hugging Face classifier."""
    output: Tensor = model(**inputs).logits
    return output


class ViT(nn.Module):
    """A vision transformer (Dosovitskiy et al., 2021) of size S with patches of 16 pixels.

    Images of another size than `side` get interpolated positions, as in timm with `dynamic_img_size=True`.
    """

    def __init__(self, side: int, width: int = 384, heads: int = 6, depth: int = 12, num_classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, (side // 16) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)  # (B, width, height / 16, width / 16)
        position = self.positions(x.shape[2:])
        x = torch.cat([self.token.expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1) + position
        return self.head(self.norm(self.blocks(x))[:, 0])

    def positions(self, grid: torch.Size) -> Tensor:
        """Return the position of the class token and of a grid of patches: (1, 1 + patches, width)."""
        first, rest = self.position.split([1, self.position.shape[1] - 1], 1)
        side = math.isqrt(rest.shape[1])
        if grid == (side, side):
            return self.position
        known = rest.unflatten(1, (side, side)).permute(0, 3, 1, 2)
        rest = F.interpolate(known, tuple(grid), mode="bicubic", antialias=True)
        return torch.cat([first, rest.flatten(2).transpose(1, 2)], 1)


class Block(nn.Module):
    """Attention and an MLP, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))

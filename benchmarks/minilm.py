"""Fine-tune a pretrained encoder: which package of Python's standard library does a docstring come from?

    maxup compare benchmarks/minilm-token_dropout.yaml --data_from benchmarks.minilm:data \\
        --model_from benchmarks.minilm:encoder --seeds 8 --images 200

The docstrings are those of `benchmarks.docstrings`. The encoder is MiniLM (6 layers, width 384, 22.7 million weights),
which Transformers downloads. If it cannot, set MAXUP_MINILM to a folder with the model.
"""

import os
from functools import cache

from torch import Tensor, nn

from benchmarks import docstrings
from maxup.integrations.common import require

transformers = require("benchmarks.minilm", "transformers")

LENGTH = 32  # tokens of an example, with [CLS] and [SEP]


def source() -> str:
    """Return the name or the folder of the pretrained encoder."""
    return os.environ.get("MAXUP_MINILM", "sentence-transformers/all-MiniLM-L6-v2")


@cache
def data() -> tuple[Tensor, list[str]]:
    """Return token ids (N, 32), padded with 0, and the package of each docstring."""
    packages = docstrings.texts()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source())
    ids = tokenizer(list(packages), truncation=True, max_length=LENGTH, padding="max_length", return_tensors="pt")
    return ids["input_ids"], list(packages.values())


class Classifier(nn.Module):
    """The pretrained encoder, the mean over the tokens, and a new linear layer."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.encoder = transformers.AutoModel.from_pretrained(source())
        self.head = nn.Linear(self.encoder.config.hidden_size, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        real = tokens != 0  # (B, T); 0 is the id of padding
        x = self.encoder(tokens, attention_mask=real.long()).last_hidden_state  # (B, T, width)
        mean = (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return self.head(mean)


def encoder(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Build the network for `--model_from`."""
    return Classifier(num_classes)

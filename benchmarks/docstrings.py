"""Text classification without a download: which package of Python's standard library does a docstring come from?

    maxup compare benchmarks/docstrings-embedding_dropout.yaml --data_from benchmarks.docstrings:data \\
        --model_from benchmarks.docstrings:encoder --seeds 10 --objectives easiest

A small Transformer encoder trains from scratch on 1,600 docstrings, with word dropout of the embedding or with token
dropout. The seed chooses the training docstrings, and the others are the test set. The docstrings are those of your
Python, so numbers of two versions of Python are not comparable. Runs record a digest of the data.
"""

import ast
import re
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

PACKAGES = (  # those with the most docstrings
    "asyncio", "distutils", "email", "http", "importlib", "logging", "multiprocessing", "_pydecimal.py", "tkinter",
    "turtle.py", "unittest", "xml",
)  # fmt: skip
LENGTH, SHORTEST = 32, 6  # tokens of an example; shorter docstrings are left out
PAD, MASK, UNKNOWN = 0, 1, 2  # ids of special tokens; mask_id of token_dropout in the recipe is MASK


def docstrings(path: Path) -> list[str]:
    """Return the docstrings of a file as words and punctuation marks in lower case, separated by spaces."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)]
    found = [re.findall(r"[a-z]+|[^\sa-z]", (ast.get_docstring(node) or "").lower()) for node in nodes]
    return [" ".join(words) for words in found if len(words) >= SHORTEST]


def texts() -> dict[str, str]:
    """Return the package of each docstring. Every docstring appears once."""
    library = Path(sysconfig.get_path("stdlib"))
    package: dict[str, str] = {}
    if missing := [name for name in PACKAGES if not (library / name).exists()]:
        raise FileNotFoundError(f"this Python has no {', '.join(missing)}; use Python 3.11 with its whole library")
    for name in PACKAGES:
        files = sorted((library / name).rglob("*.py")) if not name.endswith(".py") else [library / name]
        for file in files:
            if not {"test", "tests"} & set(file.relative_to(library).parts):
                for text in docstrings(file):
                    package.setdefault(text, name.removesuffix(".py"))
    return package


@cache
def data() -> tuple[Tensor, list[str]]:
    """Return token ids (N, 32), padded, and the package of each docstring."""
    package = texts()
    words = Counter(word for text in package for word in text.split())
    ids = {word: i for i, word in enumerate(sorted(word for word, n in words.items() if n > 1), UNKNOWN + 1)}
    x = torch.full((len(package), LENGTH), PAD)
    for row, text in zip(x, package, strict=True):
        tokens = [ids.get(word, UNKNOWN) for word in text.split()[:LENGTH]]
        row[: len(tokens)] = torch.tensor(tokens)
    return x, list(package.values())


class Encoder(nn.Module):
    """Token and position embeddings, Transformer layers, the mean over the tokens, and a linear layer."""

    def __init__(self, words: int, length: int, num_classes: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=PAD)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        nn.init.normal_(self.words.weight, std=0.02 * width**0.5)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        pad = tokens == PAD  # (B, T)
        x = self.layers(self.words(tokens) + self.positions, src_key_padding_mask=pad)
        mean = x.masked_fill(pad[..., None], 0).sum(1) / (~pad).sum(1, keepdim=True)
        return self.head(mean)


def encoder(
    shape: tuple[int, ...], num_classes: int, width: int = 64, layers: int = 2, dropout: float = 0.1
) -> nn.Module:
    """Build the network for `--model_from`. Its vocabulary is that of `data`."""
    words = int(data()[0].max()) + 1
    return Encoder(words, shape[0], num_classes, width, layers, dropout)

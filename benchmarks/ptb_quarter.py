"""The first quarter of Penn Treebank's training text, where a small AWD-LSTM trains on a CPU.

    maxup compare benchmarks/ptb-quarter.yaml --data_from benchmarks.ptb_quarter:data --seeds 4

The validation and the test text, and the vocabulary of 10,000 words, are those of Penn Treebank, which must be where
`maxup data` finds it.
"""

from torch import Tensor

from maxup.lab.data import load_data


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Return the training, validation and test text as token ids, (N,) each."""
    text = load_data("ptb")
    return text.train[: len(text.train) // 4], text.validation, text.test

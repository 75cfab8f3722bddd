"""The handwritten digits of scikit-learn. They are part of its package, so nothing is downloaded."""

from typing import TYPE_CHECKING

from maxup.lab.data.catalog import Root, register_data
from maxup.lab.data.find import find

if TYPE_CHECKING:
    from maxup.lab.data.images import Images


@register_data(
    "digits",
    package="sklearn",
    folders=("datasets/data",),
    files=("digits.csv.gz",),
    instructions="It comes with scikit-learn: pip install scikit-learn.",
)
def load_digits(root: Root = None) -> "tuple[Images, None]":
    """Load 1,797 images of 8 x 8 pixels with values 0 to 16. There is no test set. Pixels are only scaled to [0, 1]."""
    import numpy as np
    import torch

    from maxup.lab.data.images import Images

    # Reading the file takes a fraction of the time of importing scikit-learn.
    data = torch.from_numpy(
        np.loadtxt(find("digits") / "digits.csv.gz", delimiter=",", dtype=np.uint8)
    )  # (N, 8 * 8 + 1)
    x, y = data[:, :-1].reshape(-1, 1, 8, 8), data[:, -1].long()
    return Images(x, y, tuple("0123456789"), mean=(0.0,), std=(1.0,), top=16), None

"""The handwritten digits of scikit-learn. They are part of its package, so nothing is downloaded."""

from typing import TYPE_CHECKING

from maxup.errors import DataError
from maxup.lab.data.catalog import Root, register_data
from maxup.lab.data.find import how_to_get

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
    import torch

    from maxup.lab.data.images import Images

    try:
        from sklearn import datasets
    except ImportError as error:
        raise DataError(
            f"cannot import scikit-learn ({error}), which contains digits. {how_to_get('digits')}"
        ) from error
    digits = datasets.load_digits()
    x = torch.from_numpy(digits.images).to(torch.uint8)[:, None]  # (N, 1, 8, 8)
    y = torch.from_numpy(digits.target).long()
    return Images(x, y, tuple("0123456789"), mean=(0.0,), std=(1.0,), top=16), None

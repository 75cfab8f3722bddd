"""scikit-learn's handwritten digits: real images inside an ordinary package, so that nothing is downloaded."""

import torch

from maxup.errors import DataError
from maxup.lab.data import Root
from maxup.lab.data.find import missing
from maxup.lab.data.images import Images


def load_digits(root: Root = None) -> tuple[Images, None]:
    """1,797 images of 8 x 8 pixels, 0 to 16, and no test set of their own. They are not normalized beyond [0, 1].

    Example:
        >>> images, _ = load_digits()
        >>> images.classes[int(images.y[0])]
        '0'
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise DataError(f"digits need scikit-learn, which cannot be imported ({error}). {missing('digits')}") from error
    digits = datasets.load_digits()
    x = torch.from_numpy(digits.images).to(torch.uint8)[:, None]  # (N, 1, 8, 8)
    y = torch.from_numpy(digits.target).long()
    return Images(x, y, tuple("0123456789"), mean=(0.0,), std=(1.0,), top=16), None

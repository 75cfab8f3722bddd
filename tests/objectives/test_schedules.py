import pickle

import numpy as np
import pytest

from maxup import warmup


def test_one_copy_then_m():
    m = pickle.loads(pickle.dumps(warmup(10, steps=3)))
    assert [m(step) for step in range(5)] == [1, 1, 1, 10, 10]
    assert warmup(4, steps=0)(0) == 4
    assert warmup(4, steps=np.int64(1))(1) == 4


def test_invalid_arguments():
    for steps in (-1, 2.5, True):
        with pytest.raises(ValueError, match=f"steps={steps}"):
            warmup(4, steps=steps)
    with pytest.raises(ValueError, match="m=0"):
        warmup(0, steps=1)

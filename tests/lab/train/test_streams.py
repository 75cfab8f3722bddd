import random

import numpy
import torch

from maxup.lab.storage import checkpoint
from maxup.lab.train.streams import random_streams, restore_streams


def test_streams_go_through_a_checkpoint(tmp_path):
    numpy.random.randn(3)  # an odd number of normals leaves one waiting in numpy's state
    path = checkpoint.save(tmp_path, 1, random_streams())
    drawn = torch.rand(5), random.gauss(0, 1), numpy.random.randn(5)
    restore_streams(checkpoint.load(path))
    assert torch.equal(torch.rand(5), drawn[0])
    assert random.gauss(0, 1) == drawn[1]
    assert (numpy.random.randn(5) == drawn[2]).all()

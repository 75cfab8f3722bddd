import pytest
import torch
from torch import nn

from maxup.perturb.attach import Attached, Slot, attach_to


def test_a_slot_rewrites_only_when_full_and_in_training():
    slot = Slot(lambda inputs, output, draw: output + draw)
    assert slot(None, 1) == 1
    slot.draw = 10
    assert slot(None, 1) == 11
    assert slot.eval()(None, 1) == 1


def test_the_hook_hands_over_inputs_and_output():
    layer = nn.Linear(2, 2)
    slot = attach_to(layer, lambda inputs, output, draw: inputs * draw)
    slot.draw = 3
    x = torch.rand(4, 2)
    assert torch.equal(layer(x), 3 * x)


def test_containers_are_refused():
    with pytest.raises(ValueError, match="attach to a layer inside it"):
        attach_to(nn.Sequential(nn.Linear(2, 2)), lambda inputs, output, draw: output)


def test_attach_must_be_written():
    with pytest.raises(NotImplementedError, match="must define attach"):
        Attached().attach(nn.Linear(1, 1))

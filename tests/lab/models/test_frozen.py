import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxup import CutMix, MaxUp
from maxup.lab.models import create_model
from maxup.lab.models.frozen import freeze_layers, freeze_norm
from maxup.lab.models.normalize import Normalized
from maxup.lab.recipes.schema import Optim
from maxup.lab.train.optim import create_optimizer


def net():
    model = create_model("timm/resnet18", shape=(3, 32, 32), num_classes=5)
    for norm in norms(model):
        nn.init.uniform_(norm.running_mean, -1, 1)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    return freeze_norm(model)


def norms(model):
    return [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def test_training_does_not_change_statistics_and_weights():
    model = net().train()
    fixed = {id(t) for norm in norms(model) for t in (*norm.parameters(), *norm.buffers())}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = create_optimizer(model, Optim(lr=0.1, weight_decay=0.1))
    objective = MaxUp(CutMix(5), m=3)
    for _ in range(3):
        model.train()
        objective(model, torch.randn(4, 3, 32, 32), torch.arange(4)).backward()
        optimizer.step()
        optimizer.zero_grad()
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) == (id(named[name]) in fixed), name


@pytest.mark.parametrize("norm", ["batch", "running"])
def test_selection_with_4_copies_scores_exactly_what_training_sees(norm):
    model = net().train()
    x, y = torch.randn(6, 3, 32, 32), torch.arange(6) % 5
    outcome = MaxUp(CutMix(5), m=4, norm=norm, generator=torch.Generator().manual_seed(0)).run(model, x, y)
    reference, cutmix, g = copy.deepcopy(model).eval(), CutMix(5), torch.Generator().manual_seed(0)
    with torch.no_grad():
        copies = [cutmix.apply((x, y), cutmix.draw((x, y), g)) for _ in range(4)]
        losses = torch.stack([F.cross_entropy(reference(a), b, reduction="none") for a, b in copies])  # (4, B)
    torch.testing.assert_close(outcome.loss.detach(), losses.max(0).values.mean())


def test_copies_of_the_model_are_frozen_too():
    model = copy.deepcopy(net()).train()
    assert model.training
    assert not any(norm.training for norm in norms(model))
    assert all(isinstance(norm, nn.BatchNorm2d) for norm in norms(model))


def test_a_model_without_batchnorm_is_an_error():
    with pytest.raises(ValueError, match="no BatchNorm"):
        freeze_norm(nn.Linear(2, 2))


@pytest.mark.parametrize("normalize", [False, True])
def test_layers_by_name_stay_as_they_are(normalize):
    """Weights, statistics and all, whatever the optimizer adds to gradients; the others train."""
    model = create_model("resnet20", shape=(3, 32, 32), num_classes=5)
    model = Normalized(model, [0.0] * 3, [1.0] * 3) if normalize else model
    freeze_layers(model, ["conv", "norm", "blocks.0"])
    before = copy.deepcopy(model.state_dict())
    optimizer = create_optimizer(model, Optim(lr=0.1, weight_decay=0.1))
    for _ in range(2):
        model.train()
        objective = MaxUp(CutMix(5), m=2)
        objective(model, torch.randn(4, 3, 32, 32), torch.arange(4)).backward()
        optimizer.step()
        optimizer.zero_grad()
    fixed = ("mean", "std", *(f"{'model.' if normalize else ''}{name}." for name in ("conv", "norm", "blocks.0")))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) == name.startswith(fixed), name


def test_an_unknown_layer_and_a_model_without_weights_to_train_are_errors():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"model\.freeze: layer '3' is unknown"):
        freeze_layers(model, ["3"])
    with pytest.raises(ValueError, match=r"model\.freeze leaves no weight to train"):
        freeze_layers(model, ["0", "2"])

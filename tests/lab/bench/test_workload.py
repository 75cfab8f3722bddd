"""Workloads from built-in networks, from the user's functions, and from images."""

import pytest
import torch
from torch import nn

from maxup import CutMix, Cutout, Gaussian
from maxup.errors import DataError, RecipeError, UserCodeError
from maxup.lab.bench.workload import from_network, from_setup, load_images, parse_perturb

CPU = torch.device("cpu")


def arrays():
    g = torch.Generator().manual_seed(0)
    return torch.randint(256, (40, 1, 8, 8), generator=g, dtype=torch.uint8), torch.arange(40) % 4


def test_random_data_has_the_shape_and_repeats():
    work = from_network("mlp", shape=(1, 8, 8), num_classes=3, batch_size=5, device=CPU)
    x, y = work.batches(2)
    assert x.shape == (5, 1, 8, 8)
    assert y.max() < 3
    assert work.model(x).shape == (5, 3)
    assert torch.equal(work.batches(2)[0], work.batches(10)[0])
    assert not torch.equal(x, work.batches(3)[0])
    assert isinstance(work.perturbation, Cutout)
    assert work.describe()["input"] == [[1, 8, 8]]


def test_images_give_the_shape_the_classes_and_every_example_once():
    images = load_images(None, None, arrays)
    work = from_network("mlp", images=images, data="mine:data", batch_size=10, device=CPU)
    batches = [work.batches(i) for i in range(4)]
    assert sorted(torch.cat([y for _, y in batches]).tolist()) == sorted(arrays()[1].tolist())
    assert abs(float(torch.cat([x for x, _ in batches]).mean())) < 1e-4  # normalized
    assert torch.equal(work.batches(4)[0], batches[0][0])
    assert work.model(batches[0][0]).shape == (10, 4)
    with pytest.raises(DataError, match="a batch has 41 images, but the data has 40; use a smaller --batch_size"):
        from_network("mlp", images=images, batch_size=41, device=CPU)


def test_data_set_by_name():
    assert load_images("digits", None, None).shape == (1, 8, 8)
    assert load_images(None, None, None) is None
    with pytest.raises(DataError, match="text is not a set of images in memory"):
        load_images("text", None, None)


def test_user_network():
    def net(shape, num_classes):
        return nn.Linear(shape[0], num_classes)

    work = from_network("mine:net", model_from=net, shape=(7,), num_classes=2, batch_size=3, device=CPU)
    assert work.model(work.batches(0)[0]).shape == (3, 2)
    assert isinstance(work.perturbation, Gaussian)
    with pytest.raises(UserCodeError, match="model_from returned an int; it must return"):
        from_network("mine:net", model_from=lambda shape, num_classes: 3, batch_size=3, device=CPU)


def test_in_model_perturbation_is_attached():
    perturb = [{"name": "feature_noise", "layer": "1", "sigma": 0.1}]

    def net(shape, num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, num_classes))

    work = from_network("n", model_from=net, shape=(1, 8, 8), batch_size=3, perturb=perturb, device=CPU)
    assert hasattr(work.model[1], "maxup_hook")


def test_setup_returns_everything():
    model, batch = nn.Linear(3, 2), (torch.rand(4, 3), torch.tensor([0, 1, 0, 1]))
    loss = nn.CrossEntropyLoss(reduction="none")
    work = from_setup("mine:setup", {"model": model, "batch": batch, "loss_fn": loss}, device=CPU, precision="bf16")
    assert work.model is model
    assert work.loss_fn is loss
    assert torch.equal(work.batches(5)[0], batch[0])
    with work.autocast():
        assert work.model(batch[0]).dtype == torch.bfloat16


def test_perturb_takes_a_list_one_or_a_name():
    assert parse_perturb("[{name: cutout, length: 4}, cutmix]") == [{"name": "cutout", "length": 4}, {"name": "cutmix"}]
    work = from_network("mlp", shape=(1, 8, 8), batch_size=3, perturb=parse_perturb("cutmix"), device=CPU)
    assert isinstance(work.perturbation, CutMix)
    for text in ("[]", "3", "{length: 4}", "[1]"):
        with pytest.raises(RecipeError, match="--perturb must be a name or a list such as"):
            parse_perturb(text)
    with pytest.raises(RecipeError, match="--perturb cannot be read as YAML"):
        parse_perturb("[")
    with pytest.raises(RecipeError, match="'cutoutt' is unknown; did you mean 'cutout'"):
        from_network("mlp", shape=(1, 8, 8), batch_size=3, perturb=parse_perturb("cutoutt"), device=CPU)
    with pytest.raises(RecipeError, match="cannot be built with length=-1"):
        from_network("mlp", shape=(1, 8, 8), batch_size=3, perturb=[{"name": "cutout", "length": -1}], device=CPU)

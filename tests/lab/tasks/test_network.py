import random
from functools import partial

import pytest
import torch
from torch import nn

from maxup.errors import UserCodeError
from maxup.lab.models import create_model
from maxup.lab.recipes.load import recipe_from
from maxup.lab.tasks import network
from maxup.lab.tasks.vision import Vision
from tests.lab.data.fake import write_folders

BASE = {
    "data": {"name": "digits", "train_size": 500},
    "perturb": [{"name": "gaussian", "sigma": 0.1}],
    "batch_size": 50,
}


def test_a_new_head_needs_weights():
    with pytest.raises(ValueError, match=r"model\.new_head has no effect without model\.weights"):
        Vision(recipe_from(BASE | {"model": {"new_head": True}}), torch.device("cpu"))


def test_a_network_of_one_size_is_tried_on_the_test_s_too(tmp_path):
    write_folders(tmp_path / "imagenet")
    said = {"data": {"name": "imagenet", "root": str(tmp_path), "size": 8, "test_size": 12, "workers": 0}}
    own = partial(create_model, "mlp")
    with pytest.raises(ValueError, match=r"your network, for images of shape \(2, 3, 12, 12\), raised RuntimeError"):
        Vision(recipe_from(said | {"perturb": [{"name": "cutmix"}]}), torch.device("cpu"), model_from=own)


def test_user_networks_have_no_published_weights():
    said = BASE | {"model": {"pretrained": True}}
    with pytest.raises(ValueError, match=r"with --model_from use model\.weights"):
        Vision(recipe_from(said), torch.device("cpu"), model_from=lambda shape, num_classes: torch.nn.Identity())


@pytest.mark.parametrize("argument", ["pretrained", "name", "shape", "num_classes"])
def test_reserved_arguments_of_a_network_are_refused(argument):
    """Arguments that come from the recipe or the data cannot be set again, and nothing is downloaded."""
    said = BASE | {"model": {"name": "timm/resnet10t", "args": {argument: True}}}
    with pytest.raises(
        ValueError, match=rf"^model\.args must not have '{argument}': name and pretrained are settings of model"
    ):
        Vision(recipe_from(said), torch.device("cpu"))


def test_a_user_network_may_have_an_argument_pretrained():
    def net(shape, num_classes, pretrained):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes, bias=pretrained))

    said = recipe_from(BASE | {"model": {"args": {"pretrained": False}}})
    assert Vision(said, torch.device("cpu"), model_from=net).model[1].bias is None


def takes_nothing():
    return nn.Identity()


def takes_other_names(size, classes):
    return nn.Identity()


def takes_no_args(shape, num_classes):
    return nn.Identity()


@pytest.mark.parametrize(
    ("model_from", "message"),
    [
        (takes_nothing, r"takes \(\), but it must take the arguments shape and num_classes; add them"),
        (takes_other_names, r"takes \(size, classes\), but it must take the arguments shape and num_classes; add them"),
        (
            takes_no_args,
            r"takes \(shape, num_classes\), but the recipe also has hidden, depth in model\.args; set --model\.args "
            r"'\{\}', or add arguments of these names",
        ),
        (nn.Linear, r"takes \(in_features, out_features, bias, .*\), but it must take the arguments shape and"),
        (nn.Identity(), r"is a network; name a function \(shape, num_classes\) that returns it"),
    ],
)
def test_a_function_with_other_arguments_gets_one_message(model_from, message):
    said = recipe_from(BASE | {"model": {"args": {"hidden": [8], "depth": 2}}})
    with pytest.raises(UserCodeError, match=f"^model_from:?(?: your function)? {message}"):
        Vision(said, torch.device("cpu"), model_from=model_from)


@pytest.mark.parametrize("part", [0, 2])
def test_a_token_id_without_an_embedding_gets_one_message(part):
    arrays = [torch.zeros(8, 5).long(), torch.arange(8) % 2, torch.zeros(4, 5).long(), torch.arange(4) % 2]
    said = recipe_from({"perturb": [{"name": "embedding_dropout", "p": 0.1}]})

    def net(shape, num_classes):
        return nn.Sequential(nn.Embedding(40, 3), nn.Flatten(), nn.Linear(15, num_classes))

    arrays[part][2, 1] = 39
    Vision(said, torch.device("cpu"), model_from=net, data_from=lambda: arrays)
    arrays[part][2, 1] = 40
    message = (
        r"^model_from: your network, for token ids up to 40 of shape \(2, 5\), raised IndexError: index out of range"
    )
    with pytest.raises(ValueError, match=message):
        Vision(said, torch.device("cpu"), model_from=net, data_from=lambda: arrays)


class Shaped(nn.Module):
    """Returns what `give` makes of its output, and draws from every random stream."""

    def __init__(self, give):
        super().__init__()
        self.layer, self.norm, self.give = nn.Linear(64, 10), nn.BatchNorm1d(64), give

    def forward(self, x):
        x = self.norm(x.flatten(1)) + torch.rand(1) + random.random()
        return self.give(nn.functional.dropout(self.layer(x)))


MISFITS = {
    "one output": (lambda z: z[:, :1], r"returned shape \(2, 1\); return logits of shape \(2, 10\)"),
    "more outputs": (lambda z: torch.cat([z, z], 1), r"returned shape \(2, 20\); return logits of shape \(2, 10\)"),
    "no batch": (lambda z: z.flatten(), r"returned shape \(20,\); return logits"),
    "transposed": (lambda z: z.T, r"returned shape \(10, 2\)"),
    "a tuple": (lambda z: (z, z), r"returned a tuple; return logits of shape \(2, 10\)"),
    "an error": (lambda z: z @ z, r"raised RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    "a mistake": (lambda z: z.nothing, r"raised AttributeError: 'Tensor' object has no attribute 'nothing'"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_user_network_that_does_not_fit_gets_one_message(case):
    give, message = MISFITS[case]
    start = r"^model_from: your network, for images of shape \(2, 1, 8, 8\), "
    with pytest.raises(ValueError, match=start + message) as error:
        Vision(recipe_from(BASE), torch.device("cpu"), model_from=lambda shape, num_classes: Shaped(give))
    assert "\n" not in str(error.value)


def test_a_network_of_a_package_that_does_not_fit_gets_one_message():
    said = BASE | {"model": {"name": "pytorchcv/resnet20_cifar10"}}
    message = r"^pytorchcv/resnet20_cifar10, for images of shape \(2, 1, 8, 8\), raised RuntimeError: Given input size"
    with pytest.raises(ValueError, match=message):
        Vision(recipe_from(said), torch.device("cpu"))


def test_a_function_that_returns_no_network_gets_one_message():
    with pytest.raises(UserCodeError, match=r"^model_from returned a function; it must return a torch\.nn\.Module"):
        Vision(recipe_from(BASE), torch.device("cpu"), model_from=lambda shape, num_classes: lambda x: x)


def test_the_check_of_a_user_network_has_no_side_effects():
    def build():
        torch.manual_seed(3)
        random.seed(3)
        return Shaped(lambda z: z).train()

    alone = build()
    streams = torch.get_rng_state(), random.getstate()
    task = Vision(recipe_from(BASE), torch.device("cpu"), model_from=lambda shape, num_classes: build())
    assert torch.equal(torch.get_rng_state(), streams[0])
    assert random.getstate() == streams[1]
    for name, tensor in alone.state_dict().items():
        assert torch.equal(tensor, task.model.state_dict()[name]), name
    assert all(p.grad is None for p in task.model.parameters())
    assert task.model.training


class Learns(nn.Module):
    """Remembers the images that it is initialized from."""

    def __init__(self, shape, num_classes):
        super().__init__()
        self.net = nn.Linear(shape[1] * shape[2], num_classes)
        self.register_buffer("seen", torch.zeros(0))

    def init_from_images(self, images):
        self.seen = images

    def forward(self, x):
        return self.net(x.flatten(1))


@pytest.mark.parametrize("size", [300, 700, 1500])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_network_may_be_initialized_from_normalized_training_images(size, normalize, monkeypatch):
    monkeypatch.setattr(network, "SAMPLE", 400)
    said = BASE | {"data": {"name": "digits", "train_size": size}, "model": {"normalize": normalize}}
    task = Vision(recipe_from(said), torch.device("cpu"), model_from=Learns)
    seen = (task.model.model if normalize else task.model).seen
    n = len(task.train)
    chosen = [i for i in range(n) if i % max(1, n // 400) == 0][:400]
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (task.train.mean, task.train.std))
    torch.testing.assert_close(seen, (task.train.x[chosen] / task.train.top - mean) / std)


def test_image_folders_initialize_a_network_from_center_crops(tmp_path):
    write_folders(tmp_path / "imagenet")
    said = {"data": {"name": "imagenet", "root": str(tmp_path), "size": 8, "workers": 0}}
    said |= {"perturb": [{"name": "cutmix"}], "model": {"name": "speednet", "args": {"widths": [4]}}}
    tasks = [Vision(recipe_from(said), torch.device("cpu")) for _ in range(2)]
    weights = [task.model.whiten.weight for task in tasks]
    assert torch.equal(*weights)  # the same images, although initial weights are random
    assert not torch.equal(tasks[0].model.head.weight, tasks[1].model.head.weight)


def test_given_weights_replace_what_was_initialized_from_images(tmp_path):
    said = BASE | {"model": {"name": "speednet", "args": {"widths": [4]}}}
    first = Vision(recipe_from(said), torch.device("cpu")).model
    nn.init.normal_(first.whiten.weight)
    torch.save(first.state_dict(), tmp_path / "weights.pt")
    said["model"]["weights"] = str(tmp_path / "weights.pt")
    again = Vision(recipe_from(said), torch.device("cpu")).model
    assert torch.equal(again.whiten.weight, first.whiten.weight)

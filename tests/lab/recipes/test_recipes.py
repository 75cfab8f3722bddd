"""Every recipe builds its network and data, at a small size, and takes two steps."""

from dataclasses import replace

import pytest
import torch

from maxup.lab.data.sets.text import COUNTS
from maxup.lab.recipes.load import list_recipes, parse_recipe
from maxup.lab.recipes.schema import num_copies
from maxup.lab.tasks.language import Language
from maxup.lab.tasks.vision import Vision
from maxup.lab.train.optim import create_optimizer, learning_rate
from maxup.lab.train.stages import Stages
from tests.lab.data.fake import write_folders

# Images by data set, (C, H, W), and the number of classes. Image folders have their own, of 6 classes.
TASKS = {name: parse_recipe(name, []).task for name in list_recipes()}
ARRAYS = {"digits": ((1, 8, 8), 10), "fashion_mnist": ((1, 28, 28), 10), "cifar10": ((3, 32, 32), 10)}
ARRAYS |= {"cifar100": ((3, 32, 32), 100)}
FOLDERS = ("imagenet", "imagenette", "imagefolder")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("folders")
    for name in FOLDERS:
        write_folders(root / name, classes="abcdef", train=2, val=1, size=(90, 70))
    return root


def small(recipe, folders):
    """Two images a batch, at most 2 copies, small images where the network takes them, no weights from elsewhere."""
    data = recipe.data
    less = {"m": min(num_copies(recipe), 2), "chunk_size": 1, "warmup": 0, "steps": 2}
    objective = recipe.objective | {key: value for key, value in less.items() if key in recipe.objective}
    if data.name in FOLDERS:
        assert data.size in (128, 224, 600, 845)
        folders = folders / data.name if data.name == "imagefolder" else folders
        size = 224 if recipe.model.name.startswith("pytorchcv/") else 64  # whose last pooling is 7 x 7
        data = replace(data, root=str(folders), size=size, test_size=size if data.test_size else None, workers=0)
    model = replace(recipe.model, pretrained=False, weights=None)
    return replace(recipe, data=data, model=model, objective=objective, batch_size=2)


def arrays(shape, classes, network):
    """Two images of every class to train on, and two to test on, those of a large network at half the size."""
    shape = (shape[0], 16, 16) if network.startswith("wrn") else shape
    g = torch.Generator().manual_seed(0)
    x = torch.randint(256, (2 * classes + 2, *shape), generator=g, dtype=torch.uint8)
    y = torch.arange(2 * classes + 2) % classes
    return lambda: (x[:-2], y[:-2], x[-2:], y[-2:])


def two_steps(task):
    recipe, parameters = task.recipe, [p for p in task.model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in parameters]
    optimizer = create_optimizer(task.model, recipe.optim)
    task.model.train()
    for _, batch in zip(range(2), task.loader, strict=False):
        outcome = task.step(task.model, batch)
        assert outcome.loss.isfinite()
        if recipe.objective["name"] != "smoothadv":  # which chooses no copy
            assert outcome.report.copies == (2 if recipe.objective["name"] == "maxup" else 1)
        outcome.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert any(not torch.equal(p, b) for p, b in zip(parameters, before, strict=True))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if "efficientnet_b" in name else ())  # the largest networks
        for name in TASKS
        if TASKS[name] == "vision"
    ],
)
def test_recipe(name, folders):
    recipe = parse_recipe(name, [])
    said = recipe.data.name
    assert said in (*ARRAYS, *FOLDERS), f"say in {__file__} which shape the images of {said} have"
    recipe = small(recipe, folders)
    if said in ARRAYS:
        recipe = replace(recipe, data=replace(recipe.data, train_size=None))
    data_from = arrays(*ARRAYS[said], recipe.model.name) if said in ARRAYS else None
    two_steps(Vision(recipe, torch.device("cpu"), data_from=data_from))


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Every text there is in small, of 7 words, by the names of its files."""
    for name, pattern in {"text": "{}.txt", "ptb": "ptb.{}.txt", "wikitext2": "wiki.{}.tokens"}.items():
        (tmp_path / name).mkdir()
        for part, lines in (("train", 60), ("valid", 5), ("test", 5)):
            (tmp_path / name / pattern.format(part)).write_text("a b c d e f\n" * lines)
    for name in COUNTS:
        monkeypatch.setitem(COUNTS, name, (420, 35, 35, 7))  # with an end a line
    return tmp_path


@pytest.mark.parametrize("name", [name for name in TASKS if TASKS[name] == "language"])
def test_recipe_of_text(name, texts):
    """With the recipe's layers, dropout, noise and regularizers; small in width, and without first epochs of m = 1."""
    recipe = parse_recipe(name, [])
    data = replace(recipe.data, root=str(texts / recipe.data.name))
    model = replace(recipe.model, args=recipe.model.args | {"embedding": 6, "hidden": 9})
    objective = recipe.objective | ({"warmup": 0} if "warmup" in recipe.objective else {})
    small = replace(recipe, data=data, model=model, objective=objective, batch_size=2)
    Stages(small.optim, small.epochs, lower_is_better=True)
    two_steps(Language(small, torch.device("cpu")))


@pytest.mark.parametrize(("text", "options"), [("ptb", []), ("wikitext2", ["--optim.average_from", "0.2666"])])
def test_averaging_begins_after_epoch_200_as_the_headers_say(text, options):
    recipe = parse_recipe(f"{text}/adv_awd_lstm-embedding_dropout", options)
    stages = Stages(recipe.optim, recipe.epochs, lower_is_better=True)
    for epoch in range(1, 201):
        assert not stages.averaging
        stages.check(epoch, 0.0)
    assert stages.averaging


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.startswith("certify/resnet")])
def test_certified_networks_normalize_as_the_pipeline_they_follow(name):
    recipe = parse_recipe(name, [])
    assert recipe.model.normalize
    assert recipe.data.name == "cifar10"
    assert (recipe.data.mean, recipe.data.std) == ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010])


@pytest.mark.parametrize(("options", "epochs"), [([], 150), (["--epochs", "90", "--batch_size", "400"], 90)])
def test_the_rate_of_certified_networks_falls_at_the_thirds_to_the_step(options, epochs):
    recipe = parse_recipe("certify/resnet110-gaussian", options)
    assert recipe.epochs == epochs
    total = epochs * (50_000 // recipe.batch_size)
    rates = [learning_rate(recipe.optim, step / total) for step in range(total)]
    assert [step for step in range(1, total) if rates[step] < rates[step - 1]] == [total // 3, 2 * total // 3]


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.endswith("-maxup")])
def test_a_maxup_recipe_differs_from_its_baseline_in_the_objective_alone(name):
    recipe, baseline = parse_recipe(name, []), parse_recipe(name.removesuffix("-maxup"), [])
    assert recipe.objective["name"] == "maxup"
    assert replace(recipe, objective=baseline.objective) == baseline

import pytest
import torch

from maxup.errors import DataError
from maxup.lab.data import user_data
from maxup.lab.recipes.load import recipe_from
from maxup.lab.tasks.splits import load_splits
from maxup.lab.train.loop import train
from tests.lab.data.fake import write_folders

BASE = {"data": {"name": "digits", "train_size": 500}}


def test_splits_are_disjoint_stratified_and_decided_by_the_seed():
    said = BASE | {"data": {"name": "digits", "train_size": 500, "validation": 0.2}}
    train, validation, test, _ = load_splits(recipe_from(said))
    assert (len(train), len(validation), len(test)) == (400, 100, 1297)
    again, *_ = load_splits(recipe_from(said))
    other, *_ = load_splits(recipe_from(said | {"seed": 1}))
    assert torch.equal(train.x, again.x)
    assert not torch.equal(train.x, other.x)
    assert torch.bincount(train.y).tolist() == pytest.approx([40] * 10, abs=2)


def test_what_a_recipe_says_of_image_folders_is_checked(tmp_path):
    write_folders(tmp_path / "imagenet")
    for said in ({"mean": [0.5, 0.5]}, {"std": [1.0, 1.0]}):
        recipe = recipe_from({"data": {"name": "imagenet", "root": str(tmp_path), **said}})
        with pytest.raises(DataError, match="must be three numbers each"):
            load_splits(recipe)


@pytest.mark.parametrize("said", [{"mean": [0.5, 0.5]}, {"std": [0.5, 0.5]}])
def test_a_mean_or_std_that_does_not_fit_arrays_is_refused(said):
    with pytest.raises(DataError, match="expected 1 means, 1 positive stds and top >= 1"):
        load_splits(recipe_from({"data": BASE["data"] | said}))


class Rows:
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return torch.full((2,), float(i)), i % 2


@pytest.mark.parametrize("said", [{"mean": [0.5]}, {"std": [0.5, 0.5, 0.5]}])
def test_a_mean_or_std_that_does_not_fit_a_stream_is_refused(said, monkeypatch):
    monkeypatch.setattr(user_data, "MEMORY", 0)
    recipe = recipe_from({"data": {"train_size": None, "workers": 0} | said})
    with pytest.raises(DataError, match="expected 2 means, 2 positive stds and top >= 1, but got mean="):
        load_splits(recipe, Rows)


@pytest.mark.parametrize(
    ("name", "value"),
    [("size", 32), ("test_size", 32), ("crop_fraction", 0.5), ("interpolation", "bicubic")],
)
def test_settings_of_image_folders_are_refused_for_arrays(name, value):
    with pytest.raises(DataError, match=rf"^data\.{name} is for image folders, .*; remove it$"):
        load_splits(recipe_from({"data": BASE["data"] | {name: value}}))


def test_settings_of_image_folders_have_no_effect_on_user_data(tmp_path, capsys):
    """A recipe for image folders trains on the images of a function, as they are, and says so."""
    x = torch.rand(20, 3, 9, 7, generator=torch.Generator().manual_seed(0))
    said = {"data": {"name": "imagefolder", "size": 32, "test_size": 64, "train_size": None}, "epochs": 1}
    said |= {"perturb": [{"name": "cutmix"}], "model": {"name": "resnet20"}}
    result = train(recipe_from(said), tmp_path, data_from=lambda: (x, torch.arange(20) % 2))
    assert result["last"]["epoch"] == 1
    size = "16 examples, 2 classes (3 x 9 x 7; data.size, data.test_size have no effect on --data_from)"
    assert size in capsys.readouterr().out


@pytest.mark.parametrize(("share", "size", "kept"), [(0.0001, 500, 500), (0.9, 4, 0)])
def test_a_validation_split_that_leaves_nothing_is_refused(share, size, kept):
    recipe = recipe_from({"data": {"name": "digits", "train_size": size, "validation": share}})
    with pytest.raises(DataError, match=rf"^data\.validation={share} of {size} images leaves {kept} for training"):
        load_splits(recipe)


def test_the_normalization_of_user_data_ignores_the_test_images():
    x, y = torch.randint(256, (60, 2, 8, 8), dtype=torch.uint8), torch.arange(60) % 3
    train, _, test, _ = load_splits(recipe_from({"data": {"train_size": 20}}), lambda: (x, y))
    pixels = train.x.double() / 255
    assert train.mean == test.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert train.std == test.std == pytest.approx(pixels.transpose(0, 1).flatten(1).std(1).tolist())


@pytest.mark.parametrize("said", [{"validation": 0.2}, {"train_size": 20}, {}])
def test_the_normalization_does_not_depend_on_what_is_held_out(said):
    """Runs do not record it, so this must not change."""
    x, y = torch.randint(256, (60, 2, 8, 8), dtype=torch.uint8), torch.arange(60) % 3
    recipe = recipe_from({"data": {"train_size": None} | said})
    train, validation, test, _ = load_splits(recipe, lambda: (x, y, 255 - x, y))
    pixels = x.double() / 255
    for part in (train, test, *([validation] if validation else [])):
        assert part.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
        assert part.std == pytest.approx(pixels.transpose(0, 1).flatten(1).std(1).tolist())


def test_data_without_test_images_are_split_by_the_seed():
    """20 % of every class, the same for the same seed."""
    x, y = torch.arange(60, dtype=torch.uint8)[:, None, None].repeat(1, 8, 8), torch.arange(60) % 3
    first, again, other = (
        load_splits(recipe_from({"data": {"train_size": None}, "seed": seed}), lambda: (x, y)) for seed in (0, 0, 1)
    )
    assert first[1] is None
    assert [torch.bincount(part.y).tolist() for part in (first[0], first[2])] == [[16] * 3, [4] * 3]
    assert sorted(torch.cat([first[0].x, first[2].x])[:, 0, 0, 0].tolist()) == list(range(60))
    assert torch.equal(first[2].x, again[2].x)
    assert not torch.equal(first[2].x, other[2].x)
    with pytest.raises(DataError, match="the data have 1 example, but training and test need one each"):
        load_splits(recipe_from({}), lambda: (x[:1], y[:1]))


@pytest.mark.parametrize("test_set", [False, True])
@pytest.mark.parametrize(("said", "selects"), [({}, False), ({"train_size": 20}, True), ({"validation": 0.2}, True)])
def test_it_is_known_whether_the_seed_selects_the_training_images(said, selects, test_set):
    x, y = torch.arange(60.0).repeat(2, 1).T, torch.arange(60) % 3
    data = (x, y, x, y) if test_set else (x, y)
    first, other = (
        load_splits(recipe_from({"data": {"train_size": None} | said, "seed": seed}), lambda: data) for seed in (0, 1)
    )
    assert first[3] == other[3] == (selects or not test_set)
    assert torch.equal(first[0].x, other[0].x) != first[3]


@pytest.mark.parametrize("label", [0, 2, "cat"])
def test_user_data_with_one_class_are_refused(label, tmp_path):
    def data():
        return [(torch.full((2,), float(i)), label) for i in range(10)]

    recipe = recipe_from({"data": {"train_size": None}})
    with pytest.raises(DataError, match=rf"^your training data have one class, {label}, but a classifier needs two or"):
        train(recipe, tmp_path / "run", data_from=data, quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seed", range(3))
def test_each_class_keeps_a_training_image(seed):
    """Of ten classes with one image, 80 % would leave two for the test set alone."""
    y = torch.tensor([0] * 90 + list(range(1, 11)))
    x = torch.arange(100, dtype=torch.float32).repeat(2, 1).T
    train, _, test, _ = load_splits(recipe_from({"data": {"train_size": None}, "seed": seed}), lambda: (x, y))
    assert set(train.y.tolist()) == set(range(11))
    assert set(test.y.tolist()) == {0}
    assert sorted(torch.cat([train.x, test.x])[:, 0].tolist()) == list(range(100))
    said = {"data": {"train_size": None, "validation": 0.2}, "seed": seed}
    train, validation, *_ = load_splits(recipe_from(said), lambda: (x, y))
    assert set(train.y.tolist()) == set(range(11))
    assert set(validation.y.tolist()) == {0}
    with pytest.raises(DataError, match=r"^the 5 images are one per class or nearly so, .*; add images$"):
        load_splits(recipe_from({"data": {"train_size": None}}), lambda: (x[-5:], torch.arange(5)))

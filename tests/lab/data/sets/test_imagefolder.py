"""Any folder of images: flat, or with the usual names of splits."""

import json
import shutil

import pytest
import torch

from maxup.cli.main import main
from maxup.errors import DataError
from maxup.lab.data import load_data
from maxup.lab.recipes.load import recipe_from
from maxup.lab.tasks.splits import load_splits
from tests.lab.data.fake import write_folders


@pytest.fixture
def photos(tmp_path):
    """Write train and val with 4 and 2 images each of cat, dog and emu."""
    return write_folders(tmp_path / "photos")


def names(folder):
    return sorted(str(folder.path(i).relative_to(folder.root)) for i in range(len(folder)))


def test_class_folders_are_split_by_the_seed(photos):
    root = photos / "train"
    everything, test = load_data("imagefolder", root)
    assert test is None
    assert everything.classes == ("cat", "dog", "emu")
    said = {"data": {"name": "imagefolder", "root": str(root), "size": 8, "workers": 0}}
    (train, validation, test, by_seed), (again, *_), (other, *_) = (
        load_splits(recipe_from(said | {"seed": seed})) for seed in (0, 0, 1)
    )
    assert validation is None
    assert by_seed
    assert torch.bincount(train.y).tolist() == [4, 3, 3]  # 10 of 12, as equal as possible
    assert sorted(names(train) + names(test)) == names(everything)
    assert names(train) == names(again) != names(other)
    assert train.shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("train", "test"), [("train", "val"), ("training", "validation"), ("Train", "Test"), ("train", "valid")]
)
def test_splits_by_name(photos, train, test):
    for old, new in (("train", "a"), ("val", "b"), ("a", train), ("b", test)):
        (photos / old).rename(photos / new)
    first, second = load_data("imagefolder", photos)
    assert (len(first), len(second)) == (12, 6)
    assert first.root == photos / train
    assert second.root == photos / test


def test_three_splits_and_only_a_training_folder(photos):
    shutil.copytree(photos / "val", photos / "test")
    said = {"data": {"name": "imagefolder", "root": str(photos)}}
    train, validation, test, by_seed = load_splits(recipe_from(said))
    assert not by_seed
    assert [part.root.name for part in (train, validation, test)] == ["train", "val", "test"]
    said["data"]["validation"] = 0.5
    with pytest.raises(DataError, match=r"the data have validation images, so data\.validation has no effect"):
        load_splits(recipe_from(said))
    for part in ("val", "test"):
        shutil.rmtree(photos / part)
    assert load_data("imagefolder", photos)[1] is None


@pytest.mark.parametrize(("part", "other"), [("val", "valid"), ("train", "Training")])
def test_two_folders_for_one_part_are_refused(photos, part, other):
    shutil.copytree(photos / part, photos / other)
    names = " and ".join(sorted([part, other]))
    with pytest.raises(DataError, match=f"has the folders {names}, which mean the same part; merge them, or"):
        load_data("imagefolder", photos)


def test_train_may_be_a_class(photos):
    for name in ("cat", "dog"):
        (photos / "train" / name).rename(photos / "train" / {"cat": "train", "dog": "bus"}[name])
    assert load_data("imagefolder", photos / "train")[0].classes == ("bus", "emu", "train")


def test_mistakes_get_one_sentence_without_imagenet(photos, tmp_path):
    (photos / "empty" / "owl").mkdir(parents=True)
    cases = {
        tmp_path / "nowhere": "there is no folder .*nowhere. Set data.root to a folder with images",
        photos / "train" / "cat": "cat has no class folders; put images in one folder per class, .*CLASS/name.jpg",
        None: "imagefolder: data.root is not set. Set data.root",
        tmp_path: "photos has folders but no images, .*; set data.root to the folder that has the class folders, or",
        photos / "empty": "empty has folders without images: owl; fill or remove them",
    }
    for root, message in cases.items():
        with pytest.raises(DataError, match=message) as caught:
            load_data("imagefolder", root)
        assert "ImageNet" not in str(caught.value)
    for name in ("dog", "emu"):
        shutil.rmtree(photos / "train" / name)
    with pytest.raises(DataError, match="train has one class folder, cat, but a classifier needs two or more"):
        load_data("imagefolder", photos / "train")


def test_a_folder_of_photos_trains_with_one_command(photos, tmp_path, monkeypatch, capsys):
    """With a small network. `maxup eval` finds the same split, and notices another image."""
    monkeypatch.chdir(tmp_path)
    small = [
        "--data.size",
        "16",
        "--model.name",
        "resnet20",
        "--batch_size",
        "4",
        "--epochs",
        "1",
        "--data.workers",
        "0",
    ]
    root = ["--data.root", str(photos / "train")]
    assert main(["train", "images/resnet18-cutmix-maxup", *root, *small, "--trackers", "none"]) == 0
    run = tmp_path / "runs/images/resnet18-cutmix-maxup/seed-0"
    accuracy = json.loads((run / "run.json").read_text())["last"]["test_accuracy"]
    capsys.readouterr()
    assert main(["eval", str(run)]) == 0
    assert f"accuracy {100 * accuracy:.2f} %" in (out := capsys.readouterr().out)
    assert "(2 examples)" in out
    (photos / "train").rename(tmp_path / "moved")
    assert main(["eval", str(run)]) == 1
    error = capsys.readouterr().err
    assert error.endswith(
        f"was trained on {photos / 'train'}, which does not exist here; pass its new path with --data.root\n"
    )
    (tmp_path / "moved").rename(photos / "train")
    shutil.copy(photos / "train/cat/0.jpeg", photos / "train/cat/new.jpeg")
    assert main(["eval", str(run)]) == 1
    assert f"the images in {photos / 'train'} are not those that" in capsys.readouterr().err

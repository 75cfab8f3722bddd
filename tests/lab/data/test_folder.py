import os

import pytest
import torch

from maxup.errors import DataError
from maxup.lab.data.folder import MEAN, STD, scan
from maxup.lab.data.images import split
from tests.lab.data.fake import write_folders


def test_classes_are_folders_and_images_are_files_with_the_usual_suffixes(tmp_path):
    root = write_folders(tmp_path)
    (root / "train" / "README.txt").write_text("")
    (root / "train" / ".cache").mkdir()
    for name in ("list.txt", ".hidden.jpeg", "._0.jpeg"):
        (root / "train" / "cat" / name).write_text("")
    (root / "train" / "cat" / "album.jpeg").mkdir()
    (root / "train" / "dog" / "0.jpeg").rename(root / "train" / "dog" / "Zoë ½.JPG")
    found = scan(root / "train")
    assert found.classes == ("cat", "dog", "emu")
    assert found.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert [found.path(i).name for i in range(8)] == [f"{i}.jpeg" for i in (0, 1, 2, 3, 1, 2, 3)] + ["Zoë ½.JPG"]
    assert all(os.path.isfile(found.path(i)) for i in range(len(found)))


def test_classes_and_files_may_be_links(tmp_path):
    write_folders(tmp_path / "real")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "cat").symlink_to(tmp_path / "real" / "train" / "cat")
    assert len(scan(tmp_path / "train")) == 4


def test_validation_has_the_classes_of_training(tmp_path):
    root = write_folders(tmp_path)
    for file in (root / "val" / "cat").iterdir():
        file.unlink()
    (root / "val" / "cat").rmdir()
    found = scan(root / "val", scan(root / "train").classes)
    assert found.y.tolist() == [1, 1, 2, 2]
    (root / "val" / "yak").mkdir()
    with pytest.raises(DataError, match="has folders that are not classes of the training images: yak"):
        scan(root / "val", ("cat", "dog", "emu"))


def test_empty_or_missing_class_folders_are_an_error(tmp_path):
    root = write_folders(tmp_path)
    for name in "abcde":
        (root / "train" / name).mkdir()
    with pytest.raises(DataError, match="has folders without images: a, b, c and 2 more; fill or remove them"):
        scan(root / "train")
    with pytest.raises(DataError, match="cat has no class folders; put images in one folder per class"):
        scan(root / "train" / "cat")


def test_parts_are_stratified_and_disjoint(tmp_path):
    everything = scan(write_folders(tmp_path, train=8) / "train")
    chosen, rest = split(everything, 12, seed=1)
    assert chosen.y.bincount().tolist() == rest.y.bincount().tolist() == [4, 4, 4]
    paths = [part.path(i) for part in (chosen, rest) for i in range(len(part))]
    assert sorted(paths) == [everything.path(i) for i in range(24)]
    assert all(part.path(i).parent.name == part.classes[part.y[i]] for part in (chosen, rest) for i in range(12))


def test_normalize_is_the_formula(tmp_path):
    found = scan(write_folders(tmp_path) / "train")
    x = torch.arange(12, dtype=torch.uint8).view(1, 3, 2, 2) * 20
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    torch.testing.assert_close(found.normalize(x), (x / 255 - mean) / std)
    assert found.shape == (3, 224, 224)


def test_the_digest_is_of_classes_names_and_sizes(tmp_path):
    """It does not depend on the path, and a subset keeps it."""
    first, second = (scan(write_folders(tmp_path / name) / "train") for name in "ab")
    assert len(first.digest) == 64
    assert first.digest == second.digest == first.subset([0, 3]).digest
    root = tmp_path / "b" / "train"

    def digest():
        return scan(root).digest

    seen = {first.digest}
    (root / "cat" / "0.jpeg").rename(root / "cat" / "00.jpeg")
    seen.add(digest())
    (root / "dog").rename(root / "eel")
    seen.add(digest())
    with (root / "emu" / "1.jpeg").open("ab") as file:
        file.write(b"x")
    seen.add(digest())
    (root / "emu" / "2.jpeg").rename(root / "cat" / "2a.jpeg")
    seen.add(digest())
    assert len(seen) == 5
    seen.add(scan(root, ("cat", "eel", "emu", "yak")).digest)
    assert len(seen) == 6

import pytest
import torch

from maxup import Average, HardExamples, MaxUp
from maxup.recipes.load import recipe_from
from maxup.tasks.vision import Vision, load_splits, objective, perturbation

BASE = {
    "data": {"name": "digits", "train_size": 500},
    "perturb": [{"name": "gaussian", "sigma": 0.1}],
    "batch_size": 50,
}


def test_splits_are_disjoint_stratified_and_decided_by_the_seed():
    said = BASE | {"data": {"name": "digits", "train_size": 500, "validation": 0.2}}
    train, validation, test = load_splits(recipe_from(said))
    assert (len(train), len(validation), len(test)) == (400, 100, 1297)
    again, _, _ = load_splits(recipe_from(said))
    other, _, _ = load_splits(recipe_from(said | {"seed": 1}))
    assert torch.equal(train.x, again.x)
    assert not torch.equal(train.x, other.x)
    assert torch.bincount(train.y).tolist() == pytest.approx([40] * 10, abs=2)


@pytest.mark.parametrize(("epochs", "warmup", "first"), [(200, 5, 5), (60, 5, 5), (12, 5, 3), (3, 5, 1), (10, 0, 0)])
def test_the_paper_s_first_epochs_with_one_copy(epochs, warmup, first):
    """The paper's 5, at most a quarter of the epochs and at least one, unless told none."""
    said = BASE | {"objective": "maxup", "maxup": {"m": 4, "warmup": warmup}, "epochs": epochs}
    m = objective(recipe_from(said), classes=10, steps_per_epoch=7).m
    assert [m(step) for step in (0, max(first * 7 - 1, 0), first * 7)] == ([1, 1, 4] if first else [4, 4, 4])


def test_objectives_by_name():
    kinds = {"standard": MaxUp, "maxup": MaxUp, "average": Average, "hard_examples": HardExamples}
    for name, kind in kinds.items():
        assert type(objective(recipe_from(BASE | {"objective": name}), 10, 1)) is kind
    with pytest.raises(ValueError, match="the recipe's perturb is empty"):
        objective(recipe_from({"objective": "maxup"}), 10, 1)


def test_mixing_perturbations_learn_the_classes():
    assert perturbation([{"name": "cutmix"}], 7).num_classes == 7
    with pytest.raises(ValueError, match=r"a perturbation is \{name: \.\.\., arguments\}"):
        perturbation(["cutmix"], 7)


def test_a_step_normalises_augments_and_draws():
    said = BASE | {
        "augment": [{"name": "crop_flip", "padding": 1}],
        "objective": "maxup",
        "maxup": {"m": 3, "warmup": 0},
    }
    task = Vision(recipe_from(said), torch.device("cpu"))
    outcome = task.step(task.model, next(iter(task.loader)))
    assert outcome.losses.shape == (50,)
    assert outcome.report.copies == 3


def test_processes_must_share_a_batch_evenly():
    with pytest.raises(ValueError, match="batch_size=50 cannot be shared evenly by 3 processes"):
        Vision(recipe_from(BASE), torch.device("cpu"), world_size=3)

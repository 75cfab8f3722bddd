import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from maxup import Average, HardExamples, MaxUp
from maxup.errors import RecipeError
from maxup.lab.data import user_data
from maxup.lab.recipes.build import build_perturbation
from maxup.lab.recipes.load import recipe_from
from maxup.lab.recipes.objectives import ObjectiveContext, build_objective
from maxup.lab.tasks.vision import Vision
from tests.lab.data.fake import cut_short, write_folders

BASE = {
    "data": {"name": "digits", "train_size": 500},
    "perturb": [{"name": "gaussian", "sigma": 0.1}],
    "batch_size": 50,
}


@pytest.mark.parametrize(
    ("epochs", "warmup", "first"), [(200, 5, 5), (60, 5, 5), (12, 5, 3), (3, 5, 1), (1, 5, 0), (10, 0, 0)]
)
def test_the_paper_s_first_epochs_with_one_copy(epochs, warmup, first):
    """The paper's 5, at most a quarter of the epochs, and at least one in a run of several epochs."""
    said = BASE | {"objective": {"name": "maxup", "m": 4, "warmup": warmup}, "epochs": epochs}
    m = build(recipe_from(said), 7).m
    assert [m(step) for step in (0, max(first * 7 - 1, 0), first * 7)] == ([1, 1, 4] if first else [4, 4, 4])


def build(recipe, steps_per_epoch=1):
    drawn = build_perturbation(recipe.perturb, 10, mean=(0.0,), std=(1.0,)) if recipe.perturb else None
    return build_objective(ObjectiveContext(recipe, drawn, lambda epochs: epochs * steps_per_epoch))


def test_objectives_by_name():
    kinds = {"standard": MaxUp, "maxup": MaxUp, "average": Average, "hard_examples": HardExamples}
    for name, kind in kinds.items():
        assert type(build(recipe_from(BASE | {"objective": {"name": name}}), 1)) is kind
    with pytest.raises(ValueError, match="the recipe's perturb is empty"):
        build(recipe_from({"objective": {"name": "maxup"}}), 1)


def test_mixing_perturbations_learn_the_classes():
    assert build_perturbation([{"name": "cutmix"}], 7).num_classes == 7
    with pytest.raises(ValueError, match=r"a perturbation must be \{name: \.\.\., arguments\}"):
        build_perturbation(["cutmix"], 7)
    with pytest.raises(ValueError, match="perturbation 'cutmix': key selects an entry of x, but x is a single tensor"):
        build_perturbation([{"name": "cutmix", "key": "a"}], 7)
    with pytest.raises(
        ValueError, match="perturbation 'cutout': mask_fill is for segmentation masks, but the labels are classes"
    ):
        build_perturbation([{"name": "cutout", "length": 4, "mask_fill": 0}], 7)


def test_perturbations_of_pixels_learn_the_normalization():
    said = BASE | {
        "augment": [{"name": "auto_augment"}, {"name": "color_jitter", "mean": 0.5}],
        "perturb": [{"name": "trivial_augment"}],
    }
    task = Vision(recipe_from(said), torch.device("cpu"))
    policy, jitter = task.augment.perturbations
    mean, std = task.train.mean, task.train.std
    assert (
        (policy.mean, policy.std) == (mean, std) == (task.objective.perturbation.mean, task.objective.perturbation.std)
    )
    assert (jitter.mean, jitter.std) == ((0.5,), std)  # what the recipe says stays
    _, x, y = next(iter(task.loader))
    new, _ = policy(task.train.normalize(x), y)
    levels = 255 * (new * std[0] + mean[0])
    torch.testing.assert_close(levels, levels.round(), atol=1e-2, rtol=0)


def test_manifold_mixup_is_attached_and_knows_the_classes():
    said = BASE | {
        "model": {"name": "conv"},
        "perturb": [{"name": "manifold_mixup", "layers": ["input", 0]}],
        "objective": {"name": "standard"},
    }
    task = Vision(recipe_from(said), torch.device("cpu"))
    outcome = task.step(task.model, next(iter(task.loader)))
    assert outcome.target.shape == (50, 10)


def test_a_step_normalizes_augments_and_draws():
    said = BASE | {
        "augment": [{"name": "crop_flip", "padding": 1}],
        "objective": {"name": "maxup", "m": 3, "warmup": 0},
    }
    task = Vision(recipe_from(said), torch.device("cpu"))
    outcome = task.step(task.model, next(iter(task.loader)))
    assert outcome.losses.shape == (50,)
    assert outcome.report.copies == 3


class Watched(nn.Module):
    """Remembers what it is given."""

    def __init__(self, shape, num_classes):
        super().__init__()
        self.net, self.seen = nn.Linear(shape[1] * shape[2], num_classes), []

    def forward(self, x):
        self.seen.append(x.detach().clone())
        return self.net(x.flatten(1))


def seen(objective, perturb=BASE["perturb"], **arguments):
    """What the network is given in two steps, and what is trained on."""
    said = BASE | {"augment": [{"name": "crop_flip", "padding": 1}], "perturb": perturb}
    said |= {"objective": {"name": objective, **arguments}}
    torch.manual_seed(0)
    task = Vision(recipe_from(said), torch.device("cpu"), model_from=Watched)
    task.model.seen.clear()
    targets = [task.step(task.model, batch).target for _, batch in zip(range(2), task.loader, strict=False)]
    return task.model.seen, targets


@pytest.mark.parametrize("perturb", [{"name": "gaussian", "sigma": 0.1}, {"name": "cutmix"}])
def test_hard_examples_are_chosen_among_what_m_1_trains_on(perturb):
    for twin, mine in zip(seen("standard", perturb=[perturb]), seen("hard_examples", perturb=[perturb]), strict=True):
        assert len(twin) == len(mine) == 2
        assert all(torch.equal(a, b) for a, b in zip(twin, mine, strict=True))


@pytest.mark.filterwarnings("ignore:.*attribute 'seen' of Watched")
def test_an_adversary_begins_where_m_1_trains():
    """Its ball of radius 0 is the one copy that m = 1 trains on; of a batch's later passes, all lie in the ball."""
    (twin, _), _ = seen("standard")
    inputs, _ = seen("adversarial", radius=0.0, steps=1)
    assert torch.equal(inputs[0], twin)
    inputs, _ = seen("adversarial", radius=0.5, steps=2)
    for x in inputs[:3]:
        assert ((x - twin).flatten(1).norm(dim=1) <= 0.5 + 1e-5).all()


@pytest.mark.parametrize(
    ("perturb", "clip"), [({"name": "cutout", "length": 2}, (0, 1)), ({"name": "gaussian", "sigma": 0.1}, None)]
)
def test_pixels_under_attack_stay_pixels_unless_they_carry_noise(perturb, clip):
    said = BASE | {"objective": {"name": "adversarial"}, "perturb": [perturb]}
    normalized, device = recipe_from(said | {"model": {"normalize": True}}), torch.device("cpu")
    assert Vision(normalized, device).objective.clip == clip
    assert Vision(recipe_from(said), device).objective.clip is None


@pytest.mark.parametrize("memory", [2**31, 0])
@pytest.mark.parametrize(("scale", "shift", "clip"), [(1, 0, (0, 1)), (255, 0, None), (2, -1, None), (1, 0.001, None)])
def test_float_images_are_clipped_only_if_they_are_pixels(scale, shift, clip, memory, monkeypatch):
    """Clipping images in [0, 255] or [-1, 1] to [0, 1] would destroy them."""
    monkeypatch.setattr(user_data, "MEMORY", memory)
    x = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    x[:, 0, 0, :2] = torch.tensor([0.0, 1.0])
    data = TensorDataset(x * scale + shift, torch.arange(40) % 2)
    said = {"objective": {"name": "adversarial"}, "perturb": [{"name": "cutout", "length": 2}]}
    said |= {"model": {"normalize": True}, "data": {"train_size": None, "workers": 0}}
    task = Vision(recipe_from(said), torch.device("cpu"), data_from=lambda: data)
    assert task.clip == task.objective.clip == clip


@pytest.mark.parametrize("objective", ["hard_examples", "adversarial"])
def test_a_perturbation_inside_the_network_is_drawn_once_and_taken_away_again(objective):
    said = BASE | {"model": {"name": "conv"}, "objective": {"name": objective}}
    said |= {"perturb": [{"name": "manifold_mixup", "layers": [0]}]}
    task = Vision(recipe_from(said), torch.device("cpu"))
    assert task.step(task.model, next(iter(task.loader))).target.shape == (50, 10)
    assert all(hook.draw is None for hook in task.perturb_once.hooks)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"language": {"bptt": 30}}, "language.bptt"),
        ({"objective": {"name": "maxup", "unit": "token"}}, "objective.unit"),
    ],
)
def test_settings_of_texts_are_refused(changes, name):
    with pytest.raises(ValueError, match=f"^{name} is for text and has no effect here; remove it$"):
        Vision(recipe_from(changes), torch.device("cpu"))


def test_processes_must_share_a_batch_evenly():
    with pytest.raises(ValueError, match="batch_size=50 is not a multiple of 3, the number of processes"):
        Vision(recipe_from(BASE), torch.device("cpu"), world_size=3)


def test_top_5_is_counted_for_image_folders_and_many_classes(tmp_path):
    root = write_folders(tmp_path / "imagenet", classes="abcdefg", val=3)
    cut_short(root / "val" / "c" / "1.jpeg")
    said = {"data": {"name": "imagenet", "root": str(tmp_path), "size": 8, "test_size": 12, "workers": 0}}
    said |= {"model": {"name": "conv", "args": {"width": 4}}, "perturb": [{"name": "cutmix"}], "batch_size": 4}
    task = Vision(recipe_from(said), torch.device("cpu"))
    sums, count = task.evaluate(task.model, "test")
    assert count == 20
    assert len(task.skipped()) == 1
    x, y = (torch.cat(parts) for parts in list(zip(*task.evaluation["test"], strict=True))[1:])
    assert x.shape == (20, 3, 12, 12)
    with torch.no_grad():
        output = task.model.eval()(task.train.normalize(x))
    places = [sorted(row.tolist(), reverse=True).index(row[k]) for row, k in zip(output, y, strict=True)]
    assert sums["accuracy"] == sum(place < 1 for place in places)
    assert sums["top5_accuracy"] == sum(place < 5 for place in places)
    assert float(sums["loss"]) == pytest.approx(float(torch.nn.functional.cross_entropy(output, y)) * 20, rel=1e-5)
    few = Vision(recipe_from(BASE), torch.device("cpu"))
    assert set(few.evaluate(few.model, "test")[0]) == {"loss", "accuracy"}


@pytest.mark.parametrize("normalize", [False, True])
def test_a_recipe_s_mean_and_std_replace_those_of_arrays(normalize):
    said = BASE | {"data": {"name": "digits", "train_size": 500, "mean": [0.25], "std": [0.5]}}
    task = Vision(recipe_from(said | {"model": {"normalize": normalize}}), torch.device("cpu"))
    for images in (task.train, task.test):
        assert (images.mean, images.std) == ((0.25,), (0.5,))
    pixels = task.train.x[:9] / 16
    torch.testing.assert_close(task.prepare(task.train.x[:9]), pixels if normalize else (pixels - 0.25) / 0.5)
    if normalize:  # noise and certificates are in units of pixels, whatever is said
        assert task.pixels == {"mean": (0.0,), "std": (1.0,)}
        torch.testing.assert_close(task.model(pixels), task.model.model((pixels - 0.25) / 0.5))


NORMALISE = BASE | {"model": {"name": "mlp", "args": {"hidden": [8]}, "normalize": True}}


def test_normalization_inside_the_model_changes_what_is_perturbed_and_not_what_is_computed():
    outside = Vision(recipe_from(BASE | {"model": {"name": "mlp", "args": {"hidden": [8]}}}), torch.device("cpu"))
    inside = Vision(recipe_from(NORMALISE), torch.device("cpu"))
    inside.model.model.load_state_dict(outside.model.state_dict())
    x = inside.train.x[:50]
    pixels = inside.prepare(x)
    assert pixels.min() == 0
    assert pixels.max() == 1
    torch.testing.assert_close(inside.model(pixels), outside.model(outside.prepare(x)))
    torch.testing.assert_close(inside.evaluate(inside.model, "test")[0], outside.evaluate(outside.model, "test")[0])
    assert set(inside.pixels["std"]) == {1.0}


def test_smoothadv_is_built_from_the_recipe_s_noise_and_warms_up():
    task = Vision(recipe_from(NORMALISE | {"objective": {"name": "smoothadv"}, "epochs": 8}), torch.device("cpu"))
    assert task.objective.perturbation.sigma == 0.1
    steps = len(task.loader)
    assert [task.objective.radius(step) for step in (0, steps, 9 * steps)] == [0.25, 0.5, 0.5]
    task.step(task.model, next(iter(task.loader))).loss.backward()


@pytest.mark.parametrize("change", [{"perturb": [{"name": "cutout", "length": 2}]}, {"model": {"normalize": False}}])
def test_smoothadv_needs_noise_on_pixels(change):
    with pytest.raises(ValueError, match="attacks pixels under Gaussian noise"):
        build(recipe_from(NORMALISE | {"objective": {"name": "smoothadv"}} | change), 10)


@pytest.mark.parametrize(
    "objective", ["standard", "maxup", "average", "hard_examples", {"name": "adversarial", "steps": 2}]
)
def test_label_smoothing_is_that_of_torch(objective):
    said = BASE | {"optim": {"label_smoothing": 0.2}, "objective": objective}
    task = Vision(recipe_from(said), torch.device("cpu"))
    outcome = task.step(task.model, next(iter(task.loader)))
    labels = outcome.target.argmax(1)
    expected = F.cross_entropy(outcome.output, labels, label_smoothing=0.2, reduction="none")
    torch.testing.assert_close(outcome.losses.sort().values, expected.sort().values[-len(outcome.losses) :])


def test_label_smoothing_of_mixed_labels_is_that_of_torch():
    said = BASE | {"optim": {"label_smoothing": 0.2}, "augment": [{"name": "mixup"}], "perturb": [{"name": "cutmix"}]}
    tasks = [
        Vision(recipe_from(BASE | said | {"optim": {"label_smoothing": e}}), torch.device("cpu")) for e in (0.2, 0)
    ]
    tasks[1].model.load_state_dict(tasks[0].model.state_dict())
    smooth, plain = (task.step(task.model, next(iter(task.loader))) for task in tasks)
    expected = F.cross_entropy(plain.output, plain.target, label_smoothing=0.2)
    torch.testing.assert_close(smooth.loss, expected)


def test_sam_uses_smoothed_labels():
    task = Vision(recipe_from(BASE | {"optim": {"label_smoothing": 0.2, "sam": 0.1}}), torch.device("cpu"))
    indices, x, y = next(iter(task.loader))
    with task.repeatable(task.model, (indices, x, y)) as loss_fn:
        smoothed = loss_fn()
    twin = Vision(recipe_from(BASE), torch.device("cpu"))
    twin.model.load_state_dict(task.model.state_dict())
    outcome = twin.step(twin.model, (indices, x, y))
    torch.testing.assert_close(smoothed, F.cross_entropy(outcome.output, y, label_smoothing=0.2))


def test_flip_accuracy_against_a_plain_count():
    task = Vision(recipe_from(BASE | {"data": BASE["data"] | {"flip_test": True}}), torch.device("cpu"))
    sums, count = task.evaluate(task.model, "test")
    x = task.test.normalize(task.test.x)
    both = task.model(x).softmax(1) + task.model(torch.from_numpy(x.numpy()[..., ::-1].copy())).softmax(1)
    assert count == len(x)
    assert sums["flip_accuracy"] == (both.argmax(1) == task.test.y).sum() != sums["accuracy"]
    assert sums["accuracy"] == (task.model(x).argmax(1) == task.test.y).sum()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augment": [{"name": "crop_flip"}]}, "no effect, because crop_flip flips images at random; add flip: false"),
        ({"data": {"name": "imagenet", "size": 8, "workers": 0}}, "because image folders flip images at random"),
    ],
)
def test_an_alternating_flip_beside_a_random_one_is_refused(changes, message, tmp_path):
    write_folders(tmp_path / "imagenet")
    said = BASE | {"perturb": [{"name": "cutout", "length": 2}], "model": {"name": "conv"}} | changes
    more = {"root": str(tmp_path)} if "data" in changes else {}
    with pytest.raises(RecipeError, match=message):
        Vision(recipe_from(said | {"data": said["data"] | more | {"alternating_flip": True}}), torch.device("cpu"))


@pytest.mark.parametrize("setting", ["alternating_flip", "flip_test"])
def test_flips_are_for_images(setting):
    rows = torch.rand(40, 6), torch.arange(40) % 2
    said = recipe_from(BASE | {"data": {setting: True}})
    with pytest.raises(RecipeError, match=rf"data\.{setting} is for images, but your examples have shape \(6,\)"):
        Vision(said, torch.device("cpu"), data_from=lambda: rows)

from collections import defaultdict, namedtuple

import pytest
import torch
from scipy import stats

import maxup as mu
from maxup import Gaussian, Perturbation
from maxup.batch import get_leaves, set_leaves
from maxup.perturb.base import draw_seeds
from tests.tiny import ALL_CASES, IN_MODEL, case, generator


@pytest.mark.parametrize("name", [n for n in ALL_CASES if n not in {*IN_MODEL, "views", "by-hand"}])
def test_a_perturbation_is_an_ordinary_augmentation(name):
    perturbation, _, x, y = case(name)
    before = x.clone(), y.clone()
    new_x, new_y = perturbation(x, y, generator=generator(3))
    again_x, again_y = perturbation(x, y, generator=generator(3))
    assert len(new_x) == len(new_y) == len(x)
    assert torch.equal(new_x, again_x)
    assert torch.equal(new_y, again_y)
    assert torch.equal(x, before[0])  # the batch is not modified
    assert torch.equal(y, before[1])
    assert not (torch.equal(new_x, x) and torch.equal(new_y, y))


@pytest.mark.parametrize("name", [n for n in ALL_CASES if n not in {*IN_MODEL, "views"}])
def test_two_examples_get_different_draws(name):
    """All examples are equal, so differences come from the draw. (Mixing needs different examples.)"""
    perturbation, _, x, y = case(name)
    x = x[:1].repeat(64, 1, 1, 1) * (torch.arange(64.0).view(-1, 1, 1, 1) + 1 if "mix" in name else 1)
    y = torch.arange(64) % 4
    new_x, new_y = perturbation.apply((x, y), perturbation.draw((x, y), generator()))
    results = {
        (a.sum().item(), b.sum().item() if b.ndim == 0 else b[0].item()) for a, b in zip(new_x, new_y, strict=True)
    }
    assert len(results) > 8


KEYED = {
    "gaussian": lambda key: mu.Gaussian(0.3, key=key),
    "ball": lambda key: mu.UniformBall(1.0, key=key),
    "cutout": lambda key: mu.Cutout(4, key=key),
    "cutmix": lambda key: mu.CutMix(4, key=key),
    "mixup": lambda key: mu.MixUp(4, key=key),
    "crop-flip": lambda key: mu.CropFlip(3, key=key),
    "affine": lambda key: mu.Affine(30, key=key),
    "rand-augment": lambda key: mu.RandAugment(key=key),
    "trivial-augment": lambda key: mu.TrivialAugment(key=key),
    "auto-augment": lambda key: mu.AutoAugment(key=key),
    "color-jitter": lambda key: mu.ColorJitter(key=key),
    "lighting": lambda key: mu.Lighting(key=key),
    "transform": lambda key: mu.Transform(lambda x: -x, key=key),
    "views": lambda key: mu.Views(key=key),
}


@pytest.mark.parametrize("name", KEYED)
def test_key_names_the_leaf_to_perturb(name):
    g = generator()
    x = {k: torch.rand(6, 3, 8, 8, generator=g) for k in ("a", "b")}
    new, _ = KEYED[name]("b")(x, torch.arange(6) % 4, generator=g)
    assert torch.equal(new["a"], x["a"])
    assert new["b"].shape != x["b"].shape or not torch.equal(new["b"], x["b"])


Pair = namedtuple("Pair", "student teacher")
SAME = torch.rand(6, 3, 8, 8, generator=generator())
SHARED = {  # one tensor in two entries: x, the key, and how to read the two entries
    "dict": ({"student": SAME, "teacher": SAME}, "student", lambda x: (x["student"], x["teacher"])),
    "tuple": ((SAME, SAME), 0, lambda x: x),
    "from the end": ([SAME, SAME], -2, lambda x: x),
    "named tuple": (Pair(SAME, SAME), 0, lambda x: x),
    "nested": ({"a": [SAME, {"b": SAME}], "c": (SAME, SAME)}, "c", lambda x: (x["c"][1], x["a"][1]["b"])),
    "defaultdict": (defaultdict(int, s=SAME, t=SAME), "s", lambda x: (x["s"], x["t"])),
}


@pytest.mark.parametrize("container", SHARED)
@pytest.mark.parametrize("name", ["gaussian", "crop-flip", "color-jitter", "views"])
def test_key_names_an_entry_not_a_tensor(name, container):
    """The same tensor in another entry stays unchanged."""
    x, key, entries = SHARED[container]
    new, _ = KEYED[name](key)(x, torch.arange(6) % 4, generator=generator())
    named, other = entries(new)
    assert type(new) is type(x)
    assert other is SAME
    assert named.shape != SAME.shape or not torch.equal(named, SAME)


@pytest.mark.parametrize(
    ("x", "key", "message"),
    [
        ({"a": SAME}, "b", r"key='b' is not in x, which is a dict with the keys \['a'\]; pass the key"),
        (defaultdict(int, a=SAME), "b", "key='b' is not in x, which is a dict with the keys"),
        ((SAME,), 1, "key=1 is not in x, which is a tuple"),
        (SAME, 0, "key=0 is not in x, which is a Tensor"),
    ],
)
def test_a_missing_key_is_refused(x, key, message):
    with pytest.raises(KeyError, match=message):
        Gaussian(0.1, key=key)(x)


def test_adversarial_attacks_the_leaf_named_by_key():
    x = {k: torch.rand(6, 5) for k in ("a", "b")}
    model = torch.nn.Linear(5, 3)
    adversarial = mu.Adversarial(0.5, key="b", steps=2, forward=lambda model, x: model(x["a"] + x["b"]))
    start = mu.UniformBall(0.5, key="b").draw((x, None), generator())
    worst, _ = adversarial.attack(model, (x, torch.zeros(6, dtype=torch.long)), start)
    assert torch.equal(worst["a"], x["a"])
    assert not torch.equal(worst["b"], x["b"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [n for n in KEYED if n not in ("transform", "views")])
def test_low_precision_is_kept_and_labels_stay_exact(name, dtype):
    x = torch.rand(6, 3, 8, 8).to(dtype)
    new, y = KEYED[name](None)(x, torch.arange(6) % 4, generator=generator())
    assert new.dtype == dtype
    assert y.dtype in (torch.int64, torch.float32)
    if y.dtype == torch.float32:
        torch.testing.assert_close(y.sum(1), torch.ones(6))
        areas = 64 * y.amax(1)  # CutMix: whole pixels, which bf16 weights would round away
        assert name != "cutmix" or torch.allclose(areas, areas.round(), atol=1e-4)


def test_without_a_generator_manual_seed_applies():
    x = torch.zeros(4, 3)
    torch.manual_seed(5)
    first = Gaussian(1.0)(x)[0]
    second = Gaussian(1.0)(x)[0]
    torch.manual_seed(5)
    assert torch.equal(Gaussian(1.0)(x)[0], first)
    assert not torch.equal(first, second)


def test_set_leaves_is_the_inverse_of_get_leaves():
    x = (torch.ones(2), {"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.long)})
    assert len(get_leaves(x)) == 2
    new = set_leaves(x, [leaf + 5 for leaf in get_leaves(x)])
    assert new[0].tolist() == [6, 6]
    assert new[1]["a"].tolist() == [5, 5]
    assert new[1]["b"] is x[1]["b"]
    assert set_leaves(x, [torch.tensor([9, 9])], key=0)[0].tolist() == [9, 9]
    assert get_leaves({"a": torch.zeros(2, dtype=torch.uint8)}, "a")[0].dtype == torch.uint8


def test_missing_methods_raise():
    with pytest.raises(NotImplementedError, match="must define draw"):
        Perturbation()(torch.zeros(2))


def test_seeds_are_uniform_and_have_62_bits():
    seeds = draw_seeds((20_000,), torch.zeros(1), generator())
    assert len(seeds.unique()) == len(seeds)
    assert stats.kstest(seeds.numpy() / 2**62, "uniform").pvalue > 0.01
    assert stats.kstest((seeds % 2**31).numpy() / 2**31, "uniform").pvalue > 0.01

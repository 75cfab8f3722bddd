import pytest

from maxup.errors import RecipeError
from maxup.lab import registry
from maxup.lab.registry import LANGUAGE_MODELS, MODELS, PERTURBATIONS, build


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_every_name_exists(name):
    module, _, attribute = PERTURBATIONS[name].partition(":")
    assert hasattr(__import__(module, fromlist=[attribute]), attribute)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("cutot", {}, "perturbation 'cutot' is unknown; did you mean 'cutout'?"),
        ("os.system", {}, "perturbation 'os.system' is unknown; known: affine"),
        ("cutout", {"lenght": 3}, "argument of perturbation 'cutout' 'lenght' is unknown; did you mean 'length'?"),
        ("cutout", {}, "perturbation 'cutout' needs length"),
        (["cutout"], {}, "perturbation \"['cutout']\" is unknown; did you mean"),
        ("cutout", {"name": 3}, "argument of perturbation 'cutout' 'name' is unknown"),
    ],
)
def test_unknown_names_suggest_the_nearest(name, arguments, message):
    with pytest.raises(RecipeError) as error:
        build(PERTURBATIONS, "perturbation", name, **arguments)
    assert str(error.value).startswith(message)


INVALID = {
    "negative": ("mlp", {"hidden": [-1]}, "hidden=-1 is out of range; it must be a whole number from 1 "),
    "fraction": ("mlp", {"hidden": [0.5]}, "hidden=0.5 is out of range; it must be a whole number from 1 "),
    "zero": ("mlp", {"hidden": [0]}, "hidden=0 is out of range; it must be a whole number from 1 "),
    "not a list": ("mlp", {"hidden": 3}, "hidden=3 must be a list of widths"),
    "zero width": ("wrn28_10", {"width": 0}, "width=0 is out of range; it must be a whole number from 1 "),
    "width": ("resnet20", {"width": -4}, "width=-4 is out of range; it must be a whole number from 1 "),
    "filters": ("conv", {"width": 0}, "width=0 is out of range; it must be a whole number from 1 "),
    "dropout": ("conv", {"dropout": 2}, "dropout=2 is out of range; it must be a number that is at least 0"),
    "huge": ("mlp", {"hidden": [10**15]}, ""),
}


@pytest.mark.parametrize("case", INVALID)
def test_errors_name_the_arguments(case):
    name, arguments, message = INVALID[case]
    with pytest.raises(RecipeError) as error:
        build(MODELS, "model", name, shape=(1, 8, 8), num_classes=3, **arguments)
    given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    start = f"model {name!r} cannot be built with shape=(1, 8, 8), num_classes=3, {given}: "
    assert str(error.value).startswith(start + message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", ["embedding", "hidden", "layers"])
def test_invalid_sizes_of_a_language_model(size):
    with pytest.raises(RecipeError, match=f"{size}=0 is out of range; it must be a whole number"):
        build(LANGUAGE_MODELS, "language model", "awd_lstm", words=5, **{size: 0})


def test_models_build():
    for name in MODELS:
        model = build(registry.MODELS, "model", name, shape=(1, 9, 9), num_classes=3)
        assert sum(p.numel() for p in model.parameters()) > 0

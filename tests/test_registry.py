import pytest

from maxup import registry
from maxup.registry import MODELS, PERTURBATIONS, UnknownNameError, build


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_every_name_stands_for_something(name):
    module, _, attribute = PERTURBATIONS[name].partition(":")
    assert hasattr(__import__(module, fromlist=[attribute]), attribute)


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("cutot", {}, "perturbation 'cutot' is unknown; did you mean 'cutout'?"),
        ("os.system", {}, "perturbation 'os.system' is unknown; known: affine"),
        ("cutout", {"lenght": 3}, "argument of perturbation 'cutout' 'lenght' is unknown; did you mean 'length'?"),
        ("cutout", {}, "perturbation 'cutout' needs length"),
    ],
)
def test_unknown_names_get_the_nearest(name, arguments, sentence):
    with pytest.raises(UnknownNameError) as error:
        build(PERTURBATIONS, "perturbation", name, **arguments)
    assert str(error.value).startswith(sentence)


def test_models_build():
    for name in MODELS:
        model = build(registry.MODELS, "model", name, shape=(1, 8, 8), classes=3)
        assert sum(p.numel() for p in model.parameters()) > 0

import pytest
import torch

from maxup.cuda.compile import compile_blocks
from maxup.lab.models import create_model

# Dynamo reads .grad of a block's input, which is not a leaf.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")


class Counted:
    """A backend that counts the graphs it compiles."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_blocks_of_one_shape_compile_once():
    model = create_model("resnet32", shape=(3, 8, 8), num_classes=10)
    names, backend = list(model.state_dict()), Counted()
    x = torch.randn(4, 3, 8, 8)
    expected = model.eval()(x)
    assert compile_blocks(model, backend=backend) == 15
    torch.testing.assert_close(model(x), expected)
    assert backend.graphs == 5  # three stages and two transitions
    assert list(model.state_dict()) == names


@pytest.mark.slow
def test_more_variants_than_the_default_limit_of_dynamo():
    # torch's default limit is eight variants; stages and modes need more.
    model, backend = create_model("wrn16_4", shape=(3, 8, 8), num_classes=10), Counted()
    compile_blocks(model, backend=backend)
    x = torch.randn(4, 3, 8, 8)
    for mode in (True, False):
        model.train(mode)
        model(x).sum().backward()
        with torch.no_grad():
            model(x)
    assert backend.graphs == 6 * 4  # no variant fell back to eager mode


def test_a_model_without_repeated_blocks_is_not_compiled():
    assert compile_blocks(create_model("mlp", shape=(3, 8, 8), num_classes=10), backend=Counted()) == 0

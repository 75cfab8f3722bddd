import pytest
import torch

from maxup.cuda.compile import compile_blocks
from maxup.lab.models import create_model

# Dynamo looks at the gradient of a block's input, which is no leaf.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")


class Counted:
    """A backend that counts what it is asked to compile."""

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


def test_blocks_of_one_shape_are_compiled_once():
    model = create_model("resnet32", shape=(3, 8, 8), num_classes=10)
    names, backend = list(model.state_dict()), Counted()
    x = torch.randn(4, 3, 8, 8)
    expected = model.eval()(x)
    assert compile_blocks(model, backend=backend) == 15
    torch.testing.assert_close(model(x), expected)
    assert backend.graphs == 5  # three stages, and the two changes between them
    assert list(model.state_dict()) == names


def test_more_kinds_than_dynamo_allows_by_itself():
    # Eight variants are torch's own limit; stages, modes and precisions are more.
    model, backend = create_model("wrn16_4", shape=(3, 8, 8), num_classes=10), Counted()
    compile_blocks(model, backend=backend)
    x = torch.randn(4, 3, 8, 8)
    for mode in (True, False):
        model.train(mode)
        model(x).sum().backward()
        with torch.no_grad():
            model(x)
    assert backend.graphs == 6 * 4  # no variant fell back to plain Python


def test_a_model_without_repetition_stays_as_it_is():
    assert compile_blocks(create_model("mlp", shape=(3, 8, 8), num_classes=10), backend=Counted()) == 0

"""The state of an objective survives the JSON file of the Trainer."""

import pytest
import torch

import maxup as mu
from tests.integrations.data import generator
from tests.oracles import torchvision_v2


@pytest.mark.filterwarnings("ignore")  # warnings of transformers
@pytest.mark.parametrize("seed", [None, 7])
def test_a_restored_objective_draws_the_same(tmp_path, seed):
    torchvision_v2()
    pytest.importorskip("transformers")
    from transformers import TrainerState

    from maxup.integrations.trainer_state import state_callback

    model, x, y = torch.nn.Linear(3, 2), torch.rand(8, 3), torch.randint(2, (8,))
    saved, restored = (
        mu.MaxUp(mu.Gaussian(0.3), m=4, generator=seed and generator(seed + other)) for other in range(2)
    )
    saved.select(model, x, y)
    TrainerState(stateful_callbacks=[state_callback(saved)]).save_to_json(tmp_path / "state.json")
    state = TrainerState.load_from_json(tmp_path / "state.json")
    type(state_callback(restored))().on_train_begin(None, state, None)  # the Trainer may create it again
    assert torch.equal(restored.select(model, x, y)[0], saved.select(model, x, y)[0])
    assert restored.step == 2

"""`MaxUp(capture=True)`: selection as a CUDA graph gives the winners of eager selection, or runs eagerly."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxup import Compose, CropFlip, CutMix, Cutout, Gaussian, MaxUp, MaxUpWarning, captured
from tests.cuda.selection_cases import CHANGES, selected
from tests.tiny import train_step

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),
]
STEPS = 8


def network(*more):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), *more
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 256, 5)).cuda()


def batches(count=STEPS, sizes=(32,)):
    g = torch.Generator().manual_seed(1)
    for i in range(count):
        n = sizes[i % len(sizes)]
        yield torch.randn(n, 3, 16, 16, generator=g).cuda(), torch.randint(5, (n,), generator=g).cuda()


def train(model, perturbation, *, precision=None, generator=False, change=lambda step, model, o: None, **settings):
    """Train with SGD. Return the selected copies of every step, the final weights, and the objective."""
    own = {"generator": torch.Generator("cuda").manual_seed(3)} if generator else {}
    sizes = settings.pop("sizes", (32,))
    objective = MaxUp(perturbation, m=4, **own, **settings)
    if not generator:
        objective.load_state_dict({"seed": 5, "step": 0})
    optimizer, chosen = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for number, (x, y) in enumerate(batches(sizes=sizes)):
        change(number, model, objective)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            worst = objective.select(model, x, y)
            loss = F.cross_entropy(model(worst[0]), worst[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        chosen.append([part.clone() for part in worst])
    return chosen, [p.detach().clone() for p in model.parameters()], objective


def agree(perturbation, *, make=network, **settings):
    torch.backends.cudnn.deterministic = True
    with warnings.catch_warnings():
        warnings.simplefilter("error", MaxUpWarning)
        chosen, weights, objective = train(make(), perturbation, capture=True, **settings)
    expected, others, _ = train(make(), perturbation, **settings)
    torch.testing.assert_close(chosen, expected, rtol=0, atol=0)
    torch.testing.assert_close(weights, others, rtol=0, atol=0)
    return objective._captured


@pytest.mark.parametrize(
    "perturbation", [Cutout(8), Gaussian(0.5), CutMix(num_classes=5), Compose(CropFlip(2), Cutout(8))]
)
@pytest.mark.parametrize("precision", [None, "bf16"])
def test_winners_and_weights_are_those_of_eager_selection(perturbation, precision):
    found = agree(perturbation, precision=precision)
    assert found.captured is not None
    assert found.captured.replays == STEPS - 2
    assert 0 < found.bytes_kept < 2**27


@pytest.mark.parametrize("settings", [{"norm": "running", "chunk_size": 4}, {"generator": True}, {"score": "easiest"}])
def test_settings(settings):
    assert agree(Cutout(8), **settings).captured is not None


def test_compiled_passes_are_captured():
    assert agree(Cutout(8), norm="running", chunk_size=4, compile=True).captured is not None


def test_a_shortlist_is_captured_and_its_checks_run_eagerly(monkeypatch):
    monkeypatch.setattr("maxup.objectives.maxup.CHECK_EVERY", 5)
    found = agree(Gaussian(0.1), shortlist=2)
    assert found.captured is not None
    assert found.captured.replays < STEPS - 2


def test_another_shape_runs_eagerly_and_keeps_the_graph():
    found = agree(Cutout(8), sizes=(32, 32, 32, 32, 7, 32))
    assert found.captured.replays == STEPS - 2 - 1


def test_gradients_are_accumulated_inside_one_autocast_context():
    """A graph must not read casted weights that autocast has cached and frees later."""
    found = []
    for capture in (True, False):
        torch.backends.cudnn.deterministic = True
        model, objective = network(), MaxUp(Cutout(8), m=4, capture=capture)
        objective.load_state_dict({"seed": 5, "step": 0})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(4):
            with torch.autocast("cuda", torch.bfloat16):
                for x, y in batches(3):
                    x, y = objective.select(model, x, y)
                    F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert (objective._captured.captured is not None) == capture
        found.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


class Functional(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5)


class Synchronizing(nn.Module):
    def forward(self, x):
        return x * float(x.abs().max() > 0)


NOW = [0.0]


class Scheduled(nn.Module):
    """Computes with a number that Python code outside of the modules changes."""

    def forward(self, x):
        NOW[0] += 1
        return x * NOW[0]


class BrokenCapture(nn.Module):
    """Synchronizes only while it is captured, which no eager pass shows."""

    def forward(self, x):
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return x


@pytest.mark.filterwarnings("ignore:MaxUp runs the model several times per step")
@pytest.mark.parametrize(
    ("layer", "settings", "reason"),
    [
        (nn.Dropout(0.5), {}, "dropout"),
        (Functional(), {}, "draws from the global random state"),
        (Synchronizing(), {}, "synchronizes with the device"),
        (BrokenCapture(), {}, "captur"),
        (Scheduled(), {}, "computes something new in every step"),
    ],
)
def test_what_cannot_be_captured_runs_eagerly_with_a_warning(layer, settings, reason):
    with pytest.warns(MaxUpWarning, match=f"capture=True: selection runs eagerly, because .*{reason}") as found:
        chosen, _, objective = train(network(copy.deepcopy(layer)), Cutout(8), capture=True, **settings)
    assert sum("capture=True" in str(w.message) for w in found) == 1
    assert objective._captured.captured is None
    if not isinstance(layer, Scheduled):
        expected = train(network(copy.deepcopy(layer)), Cutout(8), **settings)[0]
        torch.testing.assert_close(chosen, expected)
    before = torch.rand(3, device="cuda")  # the global generator still works
    assert not torch.equal(before, torch.rand(3, device="cuda"))


def test_dropout_that_is_off_while_scoring_is_captured():
    found = agree(Cutout(8), make=lambda: network(nn.Dropout(0.5)), dropout=False)
    assert found.captured is not None


def test_a_dict_batch():
    model, g = nn.Linear(6, 3).cuda(), torch.Generator().manual_seed(0)
    results = []
    for capture in (True, False):
        objective = MaxUp(Gaussian(0.3, key="a"), m=4, capture=capture, forward=lambda model, x: model(x["a"] + x["b"]))
        objective.load_state_dict({"seed": 5, "step": 0})
        g.manual_seed(0)
        for _ in range(6):
            x = {"a": torch.randn(16, 6, generator=g).cuda(), "b": torch.randn(16, 6, generator=g).cuda()}
            y = torch.randint(3, (16,), generator=g).cuda()
            outcome = objective.run(model, x, y)
        results.append((outcome.loss.detach(), outcome.worst.copy, outcome.report.gap))
        assert (objective._captured.captured is not None) == capture
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("change", CHANGES)
def test_a_graph_that_is_out_of_date_is_not_replayed(change):
    found, objective = selected(CHANGES[change], capture=True, device="cuda")
    expected, _ = selected(CHANGES[change], capture=False, device="cuda")
    torch.testing.assert_close(found, expected)
    assert objective._captured.captured is not None


def test_a_failed_capture_frees_its_memory_and_restores_flags():
    torch.manual_seed(0)
    model = network(BrokenCapture())
    with pytest.warns(MaxUpWarning, match="capture=True: selection runs eagerly"):
        train(model, Cutout(8), capture=True, norm="running")
    assert model[1].training
    big = torch.empty(2**28, device="cuda")
    reserved = torch.cuda.memory_reserved()
    del big
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved - 2**28


def test_inside_a_captured_step_there_is_one_graph():
    model, objective = network(), MaxUp(Cutout(8), m=4, capture=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    whole = captured(train_step(model, objective, optimizer), objective, optimizer)
    for x, y in batches():
        whole(x, y)
    assert whole.graphed.graph is not None
    assert objective._captured.captured is None


def test_a_copy_of_an_objective_has_no_graph():
    _, _, objective = train(network(), Cutout(8), capture=True)
    assert objective._captured.captured is not None
    other, eager, model = copy.deepcopy(objective), copy.deepcopy(objective), network().eval()
    eager.capture = False
    assert other._captured.captured is None
    for x, y in batches():
        torch.testing.assert_close(other.run(model, x, y).losses, eager.run(model, x, y).losses)
    assert other._captured.captured is not None


def test_reports_of_earlier_steps_are_kept():
    model, objective = network(), MaxUp(Cutout(8), m=4, capture=True)
    outcomes = [objective.run(model, x, y) for x, y in batches()]
    gaps = [outcome.report.gap for outcome in outcomes]
    assert len(set(gaps)) == len(gaps)

"""A complete measurement: what a result holds, what is computed from given times, and variants that cannot run."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from maxup import EmbeddingDropout, scoring, token_cross_entropy
from maxup.errors import NonFiniteError, RecipeError
from maxup.lab.bench.measure import bench, check, summarize, train
from maxup.lab.bench.plot import gaps, plot_cost, plot_gap, series
from maxup.lab.bench.settings import BY_M, DEFAULT, MAXUP, NAMES, SIZES
from maxup.lab.bench.table import HEADINGS, cells, copy_cost, title
from maxup.lab.bench.workload import from_network, from_setup

CPU = torch.device("cpu")
ROW = {"name", "m", "settings", "seconds", "peak_bytes", "gap", "gap_kept", "agreement", "note"}
COMPUTED = {"median_seconds", "time_ratio", "floor", "memory_ratio"}


def row(name, m, seconds, peak, **fidelity):
    known = {"name": name, "m": m, "settings": {}, "seconds": seconds, "peak_bytes": peak}
    return dict.fromkeys(ROW) | known | fidelity


GIVEN = {
    "network": "net", "perturbation": "Cutout(4)", "batch_size": 8, "data": "random", "precision": "bf16",
    "device": "cpu", "compile": True, "step": "eager", "rounds": 3, "environment": {"hardware": "a machine"},
    "forward_seconds": [0.03, 0.01, 0.02], "copy_seconds": [0.001, 0.003, 0.002],
    "variants": [
        row("standard", 1, [0.1, 0.3, 0.08], 2**20),
        row("maxup", 2, [0.2, 0.14, 0.15], 2**20, gap=0.25, gap_kept=1.0, agreement=1.0),
        row("maxup", 4, [0.2, 0.2, 0.2], 2**20, gap=0.5, gap_kept=1.0, agreement=1.0),
        row("keep_all_graphs", 4, None, None, note="not measured: RuntimeError: out of memory"),
        row("sam", None, [0.25], 3 * 2**20),
    ],
}  # fmt: skip


@pytest.fixture
def work():
    return from_network("mlp", shape=(1, 8, 8), batch_size=4, device=CPU)


def test_ratios_and_floor_are_computed_from_the_times():
    found = summarize(GIVEN)
    standard, two, four, skipped, sam = found["variants"]
    assert found["median_forward_seconds"] == 0.02
    assert (found["median_copy_seconds"], found["copy_ratio"]) == pytest.approx((0.002, 0.02))
    assert copy_cost(found) == "Drawing and applying one copy takes 2.00 ms, 2.0 % of the standard step."
    assert (standard["median_seconds"], standard["time_ratio"], standard["floor"]) == (0.1, 1.0, None)
    assert (two["time_ratio"], two["floor"], two["memory_ratio"]) == pytest.approx((1.5, 1.4, 1.0))
    assert (four["time_ratio"], four["floor"]) == pytest.approx((2.0, 1.8))
    assert (skipped["median_seconds"], skipped["time_ratio"], skipped["memory_ratio"]) == (None, None, None)
    assert (sam["time_ratio"], sam["memory_ratio"], sam["floor"]) == pytest.approx((2.5, 3.0, None))


def test_series_of_the_plots(tmp_path):
    by_m, flat, bound = series(summarize(GIVEN))
    assert by_m == {"MaxUp, default": [(1, 1.0), (2, pytest.approx(1.5)), (4, pytest.approx(2.0))]}
    assert flat == {"sam": pytest.approx(2.5)}
    assert bound == [(1, 1.0), (2, pytest.approx(1.4)), (4, pytest.approx(1.8))]
    assert gaps(summarize(GIVEN)) == {"MaxUp, default": [(2, pytest.approx(1.5), 0.25), (4, pytest.approx(2.0), 0.5)]}
    for draw in (plot_cost, plot_gap):
        draw(summarize(GIVEN), tmp_path / "plot.png")
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_cells():
    found = summarize(GIVEN)
    assert title(found) == "net, Cutout(4), batch 8, random data, a machine, bf16, compiled, median of 3 rounds"
    rows = [dict(zip(HEADINGS, cells(one), strict=True)) for one in found["variants"]]
    expected = ["maxup", "2", "150.00", "1.50", "1.40", "1.0", "1.00", "0.250", "1.000", "1.000"]
    assert rows[1] == dict(zip(HEADINGS, expected, strict=True))
    assert set(rows[3].values()) == {"keep all graphs", "4", ""}


def test_a_complete_measurement(work, monkeypatch):
    monkeypatch.setattr(scoring, "_inductor", lambda graph, inputs, config: graph)  # faster
    before = {name: value.clone() for name, value in work.model.state_dict().items()}
    result = summarize(bench(work, ms=[4, 2, 4], names=NAMES, rounds=2, train_steps=0))
    assert json.loads(json.dumps(result)) == result
    assert {"benchmark", "network", "parameters", "perturbation", "data", "batch_size", "input", "precision", "device",
            "compile", "step", "rounds", "calls_per_round", "train_steps", "fidelity_batches", "forward_seconds",
            "median_forward_seconds", "copy_seconds", "median_copy_seconds", "copy_ratio", "variants",
            "environment"} == set(result)  # fmt: skip
    assert {"commit", "versions", "hardware"} <= set(result["environment"])
    assert all(set(one) == ROW | COMPUTED for one in result["variants"])
    assert len(result["variants"]) == 1 + 2 * len(BY_M) + 2
    for one in result["variants"]:
        if one["name"] in ("maxup_captured", "maxup_fast_captured"):
            assert one["seconds"] is None
            assert f"{one['name']} needs a GPU; leave it out of --variants" in one["note"]
            continue
        assert one["note"] is None
        assert len(one["seconds"]) == 2
        assert one["peak_bytes"] > 0
        assert (one["gap_kept"] is not None) == (one["name"].startswith("maxup") or one["name"] == "keep_all_graphs")
        if one["name"] == "maxup":
            assert (one["gap_kept"], one["agreement"]) == (1.0, 1.0)
    for name, value in work.model.state_dict().items():  # all variants are timed at the same weights
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize(("trained", "train_steps"), [(False, 0), (True, 0), (False, 2)])
def test_untrained_statistics_are_noted(trained, train_steps):
    work = from_network("resnet20", shape=(3, 8, 8), batch_size=4, device=CPU)
    if trained:
        for layer in work.model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.fill_(0.1)
    result = bench(work, ms=[2], names=["maxup", "maxup_running", "maxup_fast"], rounds=1, train_steps=train_steps)
    notes = {one["name"]: one["note"] for one in result["variants"]}
    assert notes["maxup"] is None
    for name in ("maxup_running", "maxup_fast"):
        assert (notes[name] is not None and "untrained" in notes[name]) == (not trained and not train_steps)


def test_memory_of_all_graphs_grows_with_m_and_that_of_maxup_does_not():
    def net(shape, num_classes):
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.LazyLinear(10))

    def build(shape, num_classes):
        model = net(shape, num_classes)
        model(torch.zeros(1, *shape))
        return model

    work = from_network("net", model_from=build, batch_size=16, device=CPU)
    result = summarize(bench(work, ms=[8], names=["maxup", "keep_all_graphs"], rounds=1, train_steps=0))
    ratio = {one["name"]: one["memory_ratio"] for one in result["variants"]}
    assert ratio["maxup"] < 1.1
    assert ratio["keep_all_graphs"] > 5


def test_a_variant_that_cannot_run_is_noted():
    """Token ids have no gradient, so PGD cannot run."""
    torch.manual_seed(0)
    embedding = nn.Embedding(20, 8)
    model = nn.Sequential(embedding, nn.Linear(8, 20))
    perturbation = EmbeddingDropout(0.3)
    perturbation.attach(model)
    tokens = torch.randint(20, (4, 6))
    setup = {"model": model, "batch": (tokens, tokens), "loss_fn": token_cross_entropy, "perturbation": perturbation}
    work = from_setup("mine:setup", setup, device=CPU)
    result = summarize(bench(work, ms=[2], names=DEFAULT, rounds=1, train_steps=0))
    rows = {one["name"]: one for one in result["variants"]}
    assert rows["pgd7"]["note"].startswith("not measured: TypeError: UniformBall adds noise to floating-point tensors")
    assert rows["pgd7"]["seconds"] is None
    assert all(one["note"] is None and one["seconds"] for name, one in rows.items() if name != "pgd7")
    assert (rows["maxup"]["gap_kept"], rows["keep_all_graphs"]["agreement"]) == (1.0, 1.0)
    assert embedding.maxup_hook.draw is None


def test_settings_that_do_not_suit_the_workload_are_noted(work, monkeypatch):
    monkeypatch.setitem(MAXUP, "maxup_running", {"norm": "walking"})
    result = bench(work, ms=[2], names=["maxup", "maxup_running"], rounds=1, train_steps=0)
    assert result["variants"][1]["note"] is None
    assert "norm" in result["variants"][2]["note"]
    assert result["variants"][2]["settings"] == {"norm": "'walking'"}
    assert all(weight.grad is None for weight in work.model.parameters())


def test_a_failed_step_leaves_no_gradients(work, monkeypatch):
    def fail(model, loss_fn, backward, *, rho):
        backward(loss_fn())
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("maxup.lab.bench.variants.sam_backward", fail)
    result = bench(work, ms=[2], names=["sam"], rounds=1, train_steps=0)
    assert result["variants"][1]["note"] == "not measured: OutOfMemoryError: CUDA out of memory."
    assert all(weight.grad is None for weight in work.model.parameters())


def test_training_lowers_the_loss(work):
    def loss():
        x, y = work.batches(0)
        return nn.functional.cross_entropy(work.model(x), y).item()

    before = loss()
    train(work, 40)
    assert loss() < before


def test_training_that_diverges_is_reported(work):
    broken = from_setup("f", (work.model, work.batches(0), lambda o, t: o.sum(1) * float("nan")), device=CPU)
    with pytest.raises(NonFiniteError, match="the loss became nan in 2 training steps; use --train_steps 0"):
        train(broken, 2)


def test_a_network_that_does_not_match_is_reported():
    def net(shape, num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))

    work = from_network("net", model_from=net, batch_size=16, device=CPU)
    with pytest.raises(ValueError, match="3"):
        check(work)
    model = nn.Linear(3, 2).requires_grad_(False)
    frozen = from_setup("f", (model, (torch.rand(4, 3), torch.tensor([0, 1, 0, 1]))), device=CPU)
    with pytest.raises(RecipeError, match="has no gradient"):
        check(frozen)


def test_sizes_of_both_devices_have_the_same_names():
    assert set(SIZES["cpu"]) == set(SIZES["cuda"])


def test_no_result_is_written_unless_asked(work, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bench(work, ms=[2], names=["maxup"], rounds=1, train_steps=1)
    assert list(Path().iterdir()) == []

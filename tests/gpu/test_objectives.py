"""On a GPU: no waiting, exact replay of dropout, the caller's stream untouched, and selection inside a CUDA graph."""

import contextlib

import pytest
import torch
from torch import nn

import maxup as mu
from tests.tiny import ALL_CASES, CLASSES, case

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
]

BATCH = 256


def net(dropout=0.0, size=32):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(dropout),
        nn.Conv2d(16, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(256, CLASSES),
    ).cuda()  # fmt: skip


def data():
    g = torch.Generator().manual_seed(0)
    x = torch.rand(BATCH, 3, 32, 32, generator=g).cuda()
    return x, torch.randint(CLASSES, (BATCH,), generator=g).cuda()


def generator(seed=0):
    return torch.Generator("cuda").manual_seed(seed)


@contextlib.contextmanager
def no_waiting():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", [n for n in ALL_CASES if n not in {"transform", "transform-batched", "by-hand"}])
def test_no_host_synchronization_after_the_first_batch(name):
    perturbation, model, x, y = case(name)
    model, x, y = model.float().cuda(), x.cuda(), y.cuda()
    x = x.float() if x.is_floating_point() else x
    maxup = mu.MaxUp(perturbation, m=4)
    maxup(model, x, y)
    torch.cuda.synchronize()
    with no_waiting():
        loss = maxup(model, x, y)
        loss.backward()
    assert loss.isfinite()


@pytest.mark.parametrize("loss", [mu.cross_entropy, mu.token_cross_entropy, mu.next_token_cross_entropy])
def test_ignored_targets_are_counted_without_waiting(loss):
    model, x, y = nn.Conv1d(3, CLASSES, 1).cuda(), torch.rand(8, 3, 5).cuda(), torch.randint(CLASSES, (8, 5)).cuda()
    y[:, 3:] = -100
    last = loss is not mu.cross_entropy  # the classes come last

    def forward(model, x):
        return model(x).transpose(1, 2) if last else model(x)

    maxup = mu.MaxUp(mu.Gaussian(0.1), m=4, loss_fn=loss, forward=forward)
    maxup(model, x, y)
    torch.cuda.synchronize()
    with no_waiting():
        maxup(model, x, y).backward()


@pytest.mark.parametrize("mode", ["float32", "bf16 channels_last", "compile"])
def test_dropout_is_replayed_and_the_stream_left_alone(mode):
    model, (x, y) = net(dropout=0.5), data()
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()
    if mode == "bf16 channels_last":
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if mode == "compile":
        model = torch.compile(model)
    with torch.autocast("cuda", torch.bfloat16, enabled="bf16" in mode):
        maxup = mu.MaxUp(mu.Cutout(8), m=4)
        before = torch.cuda.get_rng_state()
        maxup.select(model, x, y)
        assert torch.equal(before, torch.cuda.get_rng_state())
        # Compiled, the graphs with and without gradients round differently; other masks would show as far more.
        assert maxup.run(model, x, y).report.replay_error <= (1e-3 if mode == "compile" else 0)
        assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("mode", ["float32", "bf16 channels_last"])
@pytest.mark.parametrize(
    "perturbation", [mu.Cutout(8), mu.CutMix(CLASSES), mu.Gaussian(0.3), mu.AutoAugment(), mu.ColorJitter()]
)
def test_select_inside_a_cuda_graph_has_the_same_winners_as_eager(perturbation, mode, compiled):
    model, (x, y) = net(), data()
    if mode == "bf16 channels_last":
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    called = torch.compile(model) if compiled else model
    precision = torch.autocast("cuda", torch.bfloat16, enabled="bf16" in mode, cache_enabled=False)
    maxup = mu.MaxUp(perturbation, m=4, generator=generator())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), precision:
        for _ in range(3):
            maxup.select(called, x, y)
    torch.cuda.current_stream().wait_stream(side)

    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(maxup.generator)
    with torch.cuda.graph(graph), precision:
        captured_x, captured_y = maxup.select(called, x, y)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    differing = []
    for seed in range(5):
        state = generator(seed).get_state()
        maxup.generator.set_state(state)
        graph.replay()
        torch.cuda.synchronize()
        same = mu.MaxUp(perturbation, m=4, generator=generator(seed))
        with precision:
            eager_x, eager_y = same.select(called, x, y)
        differing.append(int((captured_x != eager_x).flatten(1).any(1).sum()))
        if not differing[-1]:
            assert torch.equal(captured_y, eager_y)
    assert differing == [0] * 5
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


def test_compiled_and_eager_agree_on_the_winners():
    model, (x, y) = net(), data()
    outcomes = [mu.MaxUp(mu.Cutout(8), m=4, generator=generator()).run(f, x, y) for f in (model, torch.compile(model))]
    agreement = (outcomes[0].worst.copy == outcomes[1].worst.copy).float().mean().item()
    assert agreement > 0.98


def test_dropout_inside_a_graph_is_refused():
    model, (x, y) = net(dropout=0.5), data()
    maxup = mu.MaxUp(mu.Cutout(8), m=2, generator=generator())
    maxup.select(model, x, y)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(maxup.generator)
    with pytest.raises(RuntimeError, match="a CUDA graph cannot restore"), torch.cuda.graph(graph):
        maxup.select(model, x, y)


def test_foreign_transforms_draw_on_a_fork():
    x, y = data()
    transform = mu.Transform(lambda x: x + torch.randn_like(x), batched=True)
    before = torch.cuda.get_rng_state()
    one = transform(x, y, generator=generator())[0]
    assert torch.equal(before, torch.cuda.get_rng_state())
    assert torch.equal(one, transform(x, y, generator=generator())[0])


def test_state_dict_travels_through_a_file(tmp_path):
    model, (x, y) = net(), data()
    one = mu.MaxUp(mu.Gaussian(0.3), m=2)
    one.select(model, x, y)
    torch.save(one.state_dict(), tmp_path / "state.pt")
    other = mu.MaxUp(mu.Gaussian(0.3), m=2)
    other.load_state_dict(torch.load(tmp_path / "state.pt", map_location="cuda"))
    assert torch.equal(one.select(model, x, y)[0], other.select(model, x, y)[0])


def test_peak_memory_does_not_grow_with_m():
    from benchmarks.memory import measure

    peaks = measure(128, [2, 64], "cuda")["maxup"]
    assert peaks[64] < 1.1 * peaks[2]


MOVING = {
    "crop-flip": mu.CropFlip(4),
    "affine": mu.Affine(20),
    "rand-augment": mu.RandAugment(),
    "cutout": mu.Cutout(8),
    "cutmix": mu.CutMix(),
}


@pytest.mark.parametrize("name", MOVING)
def test_masks_move_as_on_the_cpu_and_without_waiting(name):
    x, _ = data()
    masks = torch.randint(CLASSES, (BATCH, 32, 32), device="cuda")
    perturbation = MOVING[name]
    draw = perturbation.draw((x, masks), generator())
    perturbation.apply((x, masks), draw)  # looks at the first batch
    with no_waiting():
        _, moved = perturbation.apply((x, masks), draw)
    on_cpu = {key: value.cpu() for key, value in draw.items()}
    expected = perturbation.apply((x.cpu(), masks.cpu()), on_cpu)[1]
    different = (moved.cpu() != expected).float().mean()
    assert different <= (1e-3 if name in ("affine", "rand-augment") else 0)  # places at the border of two pixels
    assert not torch.equal(moved, masks)

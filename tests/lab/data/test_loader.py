import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from maxup.errors import DataError
from maxup.lab.data.images import Images
from maxup.lab.data.loader import DeviceLoader

sizes = st.integers(1, 30)
ranks = st.integers(1, 5)


def numbered(n):
    """Image i is filled with i, and so is its label."""
    x = torch.arange(n, dtype=torch.uint8)[:, None, None, None].expand(n, 1, 2, 2).contiguous()
    return Images(x, torch.arange(n), tuple(map(str, range(n))), (0.0,), (1.0,))


def loader(n, batch_size=3, *, device="cpu", training=True, seed=0, **options):
    return DeviceLoader(numbered(n), batch_size, device=device, training=training, seed=seed, **options)


def epoch(loader):
    return [rows.tolist() for rows, _, _ in loader]


def flat(batches):
    return [row for batch in batches for row in batch]


@settings(max_examples=100)
@given(sizes, sizes, ranks)
def test_in_evaluation_ranks_have_every_image_exactly_once(n, batch_size, world):
    parts = [loader(n, batch_size, training=False, rank=r, world_size=world) for r in range(world)]
    for _ in range(2):
        epochs = [epoch(part) for part in parts]
        assert sorted(flat(flat(epochs))) == list(range(n))
        assert list(map(len, epochs)) == list(map(len, parts))


@settings(max_examples=100)
@given(sizes, sizes, ranks)
def test_in_training_ranks_are_equal_and_repeat_as_little_as_possible(n, batch_size, world):
    epochs = [epoch(loader(n, batch_size, rank=r, world_size=world)) for r in range(world)]
    assert len({tuple(map(len, batches)) for batches in epochs}) == 1
    rows = torch.tensor(flat(flat(epochs)))
    counts = rows.bincount(minlength=n)
    assert counts.min() >= 1
    assert len(rows) - n < world
    assert counts.max() - counts.min() <= 1


@settings(max_examples=100)
@given(sizes, sizes, ranks, st.booleans())
def test_dropping_the_last_leaves_full_batches_only(n, batch_size, world, training):
    options = {"drop_last": True, "world_size": world, "training": training}
    if batch_size * world > n:
        with pytest.raises(DataError, match="smaller batches"):
            loader(n, batch_size, **options)
        return
    epochs = [epoch(loader(n, batch_size, rank=r, **options)) for r in range(world)]
    assert {len(batch) for batches in epochs for batch in batches} == {batch_size}
    assert {len(batches) for batches in epochs} == {n // (batch_size * world)}
    assert len(set(flat(flat(epochs)))) == len(flat(flat(epochs)))


def test_ranks_together_are_one_process_with_the_joined_batch():
    one = epoch(loader(24, 6))
    two = zip(*(epoch(loader(24, 3, rank=r, world_size=2)) for r in range(2)), strict=True)
    assert [set(batch) for batch in one] == [set(a + b) for a, b in two]


@settings(max_examples=60)
@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 3), st.booleans(), st.data())
def test_resuming_at_every_position_is_as_if_never_interrupted(n, batch_size, world, training, data):
    rank = data.draw(st.integers(0, world - 1))

    def new():
        return loader(n, batch_size, training=training, rank=rank, world_size=world, seed=5)

    first = new()
    expected, states = [], []
    for _ in range(3):
        for rows, _, _ in first:
            expected.append(rows.tolist())
            states.append(first.state_dict())
    for done, state in enumerate(states, start=1):
        resumed = new()
        resumed.load_state_dict(state)
        rest = [batch for _ in range(3 - state["epoch"]) for batch in epoch(resumed)]
        assert rest == expected[done:]
        assert resumed.state_dict() == first.state_dict() == {"epoch": 3, "position": 0}


def test_a_loop_that_stopped_early_continues():
    full, left = loader(10), loader(10)
    batches = epoch(full)
    for rows, _, _ in left:
        assert rows.tolist() == batches[0]
        break
    assert left.state_dict() == {"epoch": 0, "position": 1}
    assert epoch(left) == batches[1:]
    assert epoch(left) == epoch(full)


def test_rows_images_and_labels_belong_together():
    for rows, x, y in loader(10):
        assert x.dtype == torch.uint8
        assert torch.equal(rows, y)
        assert torch.equal(x, y.to(torch.uint8)[:, None, None, None].expand_as(x))


def test_the_order_depends_only_on_seed_and_epoch():
    a, b = loader(50), loader(50, 7)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    orders = [flat(epoch(a)) for _ in range(3)]
    assert torch.equal(torch.get_rng_state(), before)
    assert orders == [flat(epoch(b)) for _ in range(3)]
    assert len({tuple(order) for order in [*orders, flat(epoch(loader(50, seed=1)))]}) == 4
    late = loader(50)
    late.epoch = 2
    assert flat(epoch(late)) == orders[2]
    assert epoch(loader(5, training=False)) == [[0, 1, 2], [3, 4]]


def test_orders_are_uniform():
    part = loader(4, 1)
    counts = torch.zeros(4, 4)
    for _ in range(400):
        for place, row in enumerate(flat(epoch(part))):
            counts[place, row] += 1
    assert stats.chisquare(counts.flatten().numpy()).pvalue > 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"world_size": 0}, "world_size=0"),
        ({"rank": -1}, "rank=-1"),
        ({"rank": 2, "world_size": 2}, "rank=2 is invalid; with world_size=2 it must be 0 to 1"),
    ],
)
def test_invalid_arguments_are_an_error(options, message):
    with pytest.raises(DataError, match=message):
        loader(5, **options)


def test_an_empty_set_is_an_error():
    with pytest.raises(DataError, match="empty"):
        DeviceLoader(numbered(3).subset([]), 1, device="cpu", training=False, seed=0)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 1},
        {"epoch": 0, "position": -1},
        {"epoch": 0.5, "position": 0},
        {"epoch": 0, "position": 3},
        {"x": 1},
    ],
    ids=repr,
)
def test_invalid_states_are_an_error(state):
    part = loader(5)  # two batches
    with pytest.raises(DataError, match=r"is not the state of a loader|after the 2 batches"):
        part.load_state_dict(state)
    assert part.state_dict() == {"epoch": 0, "position": 0}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_on_a_gpu_no_batch_synchronizes_and_the_order_is_the_same():
    part, batches = loader(100, 8, device="cuda", drop_last=True), []
    batch = iter(part)
    batches.append(next(batch))  # the first batch copies the order to the device
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches.extend(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert {tensor.device.type for batch in batches for tensor in batch} == {"cuda"}
    assert [rows.tolist() for rows, _, _ in batches] == epoch(loader(100, 8, drop_last=True))


def test_an_alternating_flip_shows_every_image_both_ways_in_two_epochs():
    n = 400
    images = Images(
        torch.randint(256, (n, 2, 3, 5), dtype=torch.uint8), torch.zeros(n).long(), ("a",), (0.0,) * 2, (1.0,) * 2
    )

    def flips(seed=0, start=0, **options):
        """Whether each image is flipped, (n,), in each of three epochs."""
        loader = DeviceLoader(images, 7, device="cpu", training=True, seed=seed, alternating_flip=True, **options)
        found = torch.full((3, n), -1)
        loader.load_state_dict({"epoch": start, "position": 0})
        for epoch in range(start, 3):
            for rows, x, _ in loader:
                for row, image in zip(rows.tolist(), x, strict=True):
                    found[epoch, row] = int(torch.equal(image, images.x[row].flip(-1)))
                    assert found[epoch, row] or torch.equal(image, images.x[row])
        return found

    found = flips()
    assert torch.equal(found[0], 1 - found[1])
    assert torch.equal(found[0], found[2])
    assert stats.binomtest(int(found[0].sum()), n).pvalue > 1e-6
    assert not torch.equal(found[0], flips(seed=1)[0])
    assert torch.equal(flips(start=2)[2], found[2])  # resumed
    parts = torch.stack([flips(rank=rank, world_size=2) for rank in range(2)])
    assert torch.equal(parts.max(0).values, found)  # -1: an image of the other rank
    assert torch.equal(flips(drop_last=True)[0] >= 0, flips(drop_last=True)[0] == found[0])

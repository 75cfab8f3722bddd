import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from maxup.errors import DataError
from maxup.lab.data.windows import Windows


def windows(n=1000, columns=4, bptt=20, seed=3, **more):
    return Windows(torch.arange(n), columns, bptt, device="cpu", seed=seed, **more)


@settings(max_examples=40)
@given(st.integers(20, 600), st.integers(1, 5), st.integers(2, 60), st.one_of(st.none(), st.integers(0, 9)))
def test_every_column_is_read_once_in_order_and_targets_follow(n, columns, bptt, seed):
    """Against plain slices of the text."""
    loader = windows(n, columns, bptt, seed)
    per = n // columns
    parts = list(loader)
    for i in range(columns):
        column = list(range(i * per, (i + 1) * per))
        assert [int(t) for _, x, _ in parts for t in x[i]] == column[:-1]
        assert [int(t) for _, _, y in parts for t in y[i]] == column[1:]
    assert all(torch.equal(starts, x[:, 0]) for starts, x, _ in parts)
    assert (loader.epoch, loader.position) == (1, 0)


def test_the_distribution_of_the_lengths():
    """Their distribution: half the length with probability 0.05, a standard deviation of 5, and at least 5."""
    lengths = torch.tensor(windows(400_000, 1, 70).lengths(0)[:-1], dtype=torch.double)
    short = (lengths < 52).sum()
    assert stats.binomtest(int(short), len(lengths), 0.05).pvalue > 1e-3
    usual = lengths[lengths > 52]
    assert float(usual.mean()) == pytest.approx(69.5, abs=0.3)  # N(70, 5) truncated to integers
    assert float(usual.std()) == pytest.approx(5, abs=0.3)
    assert min(windows(400_000, 1, 6).lengths(0)[:-1]) == 5


def test_lengths_depend_only_on_seed_and_epoch():
    torch.manual_seed(1)
    first = windows().lengths(2)
    torch.manual_seed(2)
    assert windows().lengths(2) == first
    assert windows(seed=4).lengths(2) != first
    assert windows().lengths(3) != first


def test_steps_counts_the_windows():
    loader = windows()
    counts = [len([*loader]) for _ in range(4)]
    assert len(set(counts)) > 1  # epochs differ
    assert [windows().steps(e) for e in range(5)] == [sum(counts[:e]) for e in range(5)]
    loader.epoch = 2
    assert len(loader) == counts[2]


def test_resuming_in_the_middle():
    one = windows()
    for _ in one:
        if one.position == 5:
            break
    two = windows()
    two.load_state_dict(one.state_dict())
    rest = [x for _, x, _ in two]
    expected = [x for _, x, _ in windows()][5:]
    assert all(torch.equal(a, b) for a, b in zip(rest, expected, strict=True))


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 1},
        {"epoch": 0, "position": -1},
        {"epoch": 0.5, "position": 0},
        {"epoch": True, "position": 0},
        {"epoch": 0, "position": 1000},
        {"epoch": 10**12, "position": 1000},
        {"epoch": 0, "position": 0, "x": 1},
    ],
    ids=repr,
)
def test_invalid_states_are_an_error(state):
    part = windows()
    with pytest.raises(
        DataError, match=r"is not the state of a loader|^position 1000 is after the \d+ windows of epoch"
    ):
        part.load_state_dict(state)
    assert part.state_dict() == {"epoch": 0, "position": 0}


def test_the_length_of_a_late_epoch_needs_no_earlier_epoch(monkeypatch):
    part, epochs = windows(), []
    monkeypatch.setattr(part, "lengths", lambda epoch: epochs.append(epoch) or [5] * (epoch % 7))
    part.load_state_dict({"epoch": 1000, "position": 0})
    assert len(part) == len(part) == 1000 % 7
    assert set(epochs) == {1000}


def test_processes_split_the_columns():
    parts = [[x for _, x, _ in windows(rank=rank, world_size=2)] for rank in range(2)]
    together = [x for _, x, _ in windows()]
    assert all(torch.equal(torch.cat([a, b]), c) for a, b, c in zip(*parts, together, strict=True))
    with pytest.raises(DataError, match="cannot be shared evenly by 3 processes"):
        windows(world_size=3)


@pytest.mark.parametrize(
    ("part", "setting"),
    [("training", "batch_size"), ("validation", "language.validation_columns"), ("test", "language.test_columns")],
)
def test_a_text_that_is_too_short_is_an_error(part, setting):
    message = f"the {part} text has 70 tokens, too few for {setting}=40 columns of at least 2; set {setting} to 35 or"
    with pytest.raises(DataError, match=message):
        windows(70, 40, part=part)
    windows(70, 35, part=part)
    with pytest.raises(
        DataError, match=rf"^the {part} text has 1 tokens, too few .* of at least 2; use a longer text$"
    ):
        windows(1, 40, part=part)
    with pytest.raises(DataError, match=rf"; set {setting} to 1$"):
        windows(3, 40, part=part)

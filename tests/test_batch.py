import pytest
import torch

from maxup import SharedDraw
from maxup.batch import cat, take, tile, where


def test_where_selects_per_example_in_nested_draws():
    mask = torch.tensor([True, False, True])
    new = {"a": torch.ones(3, 2, 2), "b": [torch.tensor([1, 2, 3])]}
    old = {"a": torch.zeros(3, 2, 2), "b": [torch.tensor([7, 8, 9])]}
    kept = where(mask, new, old)
    assert kept["b"][0].tolist() == [1, 8, 3]
    assert kept["a"].flatten(1).amax(1).tolist() == [1, 0, 1]


def test_shared_values_remember_which_copy_won():
    masks = torch.rand(3, 10)  # masks of three copies over a vocabulary of 10
    zeros = torch.zeros(4, dtype=torch.long)
    kept = SharedDraw(masks[:1], zeros)
    kept = where(torch.tensor([False, True, True, False]), SharedDraw(masks[1:2], zeros), kept)
    kept = where(torch.tensor([False, False, True, False]), SharedDraw(masks[2:], zeros), kept)
    assert kept.index.tolist() == [0, 1, 2, 0]
    assert torch.equal(kept.values, masks)


def test_cat_keeps_the_values_of_each_copy():
    zeros = torch.zeros(2, dtype=torch.long)
    joined = cat([{"m": SharedDraw(torch.full((1, 3), v), zeros), "i": torch.tensor([v, v])} for v in (5.0, 6.0)])
    assert joined["m"].values[joined["m"].index][:, 0].tolist() == [5, 5, 6, 6]
    assert joined["i"].tolist() == [5, 5, 6, 6]


def test_taken_draws_that_are_joined_again_store_every_value_once():
    zeros, kept = torch.zeros(2, dtype=torch.long), []
    for copy in range(12):
        kept.append(SharedDraw(torch.full((1, 3), float(copy)), zeros))
        kept = take(kept, torch.tensor([[len(kept) - 1] * 2, [0, 0]])[: len(kept)])  # the newest, and the one before
    assert [len(draw.values) for draw in kept] == [12, 12]
    assert [draw.values[draw.index][:, 0].tolist() for draw in kept] == [[11, 11], [10, 10]]


def test_tile_repeats_copy_after_copy_and_leaves_the_rest():
    (x, y) = tile(({"a": torch.tensor([1, 2]), "temperature": 3.0}, torch.tensor([3, 4])), 2)
    assert x["a"].tolist() == [1, 2, 1, 2]
    assert x["temperature"] == 3.0
    assert y.tolist() == [3, 4, 3, 4]


@pytest.mark.parametrize("leaf", [torch.ones(5), 3, None])
def test_a_leaf_without_the_batch_dimension_raises(leaf):
    with pytest.raises(TypeError, match="every leaf must be a tensor with batch size 2 first"):
        where(torch.tensor([True, False]), {"a": leaf}, {"a": leaf})

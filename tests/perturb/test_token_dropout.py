import pytest
import torch
from scipy import stats

import maxup as mu
from tests.tiny import generator, text_net, tokens

SPECIAL = [0, 9]


def test_only_ordinary_tokens_are_replaced():
    ids = torch.randint(10, (4000, 5), generator=generator())
    new, _ = mu.TokenDropout(0.3, mask_id=42, keep=SPECIAL)(ids, generator=generator(1))
    special = torch.isin(ids, torch.tensor(SPECIAL))
    assert torch.equal(new[special], ids[special])
    replaced = new[~special] == 42
    assert torch.equal(new[~special][~replaced], ids[~special][~replaced])
    assert stats.binomtest(int(replaced.sum()), len(replaced), 0.3).pvalue > 0.01


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_an_entry_named_by_key(dtype):
    ids = tokens()[0].to(dtype)
    x = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    new, _ = mu.TokenDropout(1.0, mask_id=3, key="input_ids")(x)
    assert (new["input_ids"] == 3).all()
    assert new["input_ids"].dtype == dtype
    assert new["attention_mask"] is x["attention_mask"]


def test_select_returns_the_worst_token_masks():
    model, (ids, y) = text_net(), tokens()
    x, same = mu.MaxUp(mu.TokenDropout(0.5, mask_id=0), m=4, generator=generator()).select(model, ids, y)
    drawing, best = generator(), None
    for _ in range(4):  # by hand
        copy = ids.masked_fill(torch.rand(ids.shape, generator=drawing) < 0.5, 0)
        losses = torch.nn.functional.cross_entropy(model(copy), y, reduction="none")
        worse = losses > best[0] if best else torch.ones_like(y, dtype=torch.bool)
        best = (
            (torch.where(worse, losses, best[0]), torch.where(worse[:, None], copy, best[1]))
            if best
            else (losses, copy)
        )
    assert torch.equal(x, best[1])
    assert torch.equal(same, y)


@pytest.mark.parametrize(
    ("x", "key", "what"),
    [
        (torch.rand(2, 3), None, r"torch.float32 of shape \(2, 3\)"),
        ({"input_ids": torch.zeros(2, 3, dtype=torch.long)}, None, "a dict"),
        ({"input_ids": torch.zeros(2, 3)}, "input_ids", "a dict"),
    ],
)
def test_other_inputs_are_refused(x, key, what):
    with pytest.raises(ValueError, match=f"expects integer token ids .* but x is {what}.*key='input_ids'"):
        mu.TokenDropout(0.1, mask_id=1, key=key)(x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"p": 1.5, "mask_id": 1}, "p must be between 0 and 1"),
        ({"p": 0.1, "mask_id": None}, r"mask_id=None\): mask_id must be a whole number, a token id"),  # GPT-2 has none
        ({"p": 0.1, "mask_id": 1, "keep": 3}, "keep must be a list of token ids"),
        ({"p": 0.1, "mask_id": 1, "keep": [-1]}, "keep must be a whole number, a token id, 0 or more"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        mu.TokenDropout(**arguments)


def test_a_mask_id_that_does_not_fit_the_ids_is_refused():
    ids = torch.zeros(2, 3, dtype=torch.uint8)
    assert (mu.TokenDropout(1.0, mask_id=255)(ids)[0] == 255).all()
    with pytest.raises(ValueError, match=r"^TokenDropout\(mask_id=300\) does not fit torch.uint8 token ids; convert"):
        mu.TokenDropout(1.0, mask_id=300)(ids)


def test_ids_to_keep_may_be_a_tensor():
    ids = torch.tensor([[101, 7592, 2088, 102, 0, 0]])
    x, _ = mu.TokenDropout(1.0, mask_id=103, keep=torch.tensor([0, 101, 102]))(ids)
    assert x.tolist() == [[101, 103, 103, 102, 0, 0]]
    with pytest.raises(ValueError, match="keep must be a whole number, a token id"):
        mu.TokenDropout(1.0, mask_id=103, keep=torch.tensor([0.5]))

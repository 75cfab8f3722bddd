import pytest
import torch
from scipy import stats
from torch import nn

import maxup as mu
from tests.oracles import torchvision_v2
from tests.tiny import VOCABULARY, B, generator, text_net, tokens


def test_dropped_words_are_zero_and_the_others_are_scaled():
    drop, model = mu.EmbeddingDropout(0.4), text_net()
    drop.attach(model)
    ids, y = tokens()
    draw = drop.draw((ids, y), generator())
    mask = draw.values[0]
    assert set(mask.tolist()) == {0.0, 1 / 0.6}
    clean = nn.functional.embedding(ids, model[0].weight)
    drop.apply((ids, y), draw)
    torch.testing.assert_close(model[0](ids), clean * mask[ids][..., None])


def test_each_selected_example_keeps_its_mask():
    drop, model = mu.EmbeddingDropout(0.5), text_net()
    drop.attach(model)
    ids, _ = tokens()
    masks = torch.rand(3, VOCABULARY, dtype=torch.float64)
    index = torch.tensor([0, 1, 2, 2, 1, 0])
    drop.apply((ids, None), mu.SharedDraw(masks, index))
    expected = torch.stack([model[0].weight[ids[i]] * masks[index[i]][ids[i]][:, None] for i in range(B)])
    torch.testing.assert_close(model[0](ids), expected)


def test_words_drop_with_probability_p():
    drop = mu.EmbeddingDropout(0.3)
    drop.attach(nn.Embedding(4000, 2))
    dropped = (drop.draw((torch.zeros(1, 1), None), generator()).values == 0).sum()
    assert stats.binomtest(int(dropped), 4000, 0.3).pvalue > 0.01


def test_kept_words_are_never_dropped_and_not_scaled():
    embedding = nn.Embedding(1000, 2)
    plain, keeping = mu.EmbeddingDropout(0.5), mu.EmbeddingDropout(0.5, keep=[0, 7, 999])
    masks = []
    for drop in (plain, keeping):
        drop.attach(embedding)
        masks.append(drop.draw((torch.zeros(1, 1), None), generator()).values[0])
    assert masks[1][[0, 7, 999]].tolist() == [1, 1, 1]
    others = [word for word in range(1000) if word not in (0, 7, 999)]
    assert torch.equal(masks[0][others], masks[1][others])  # the other words are drawn as without keep
    with pytest.raises(ValueError, match=r"id 1000 is not in the vocabulary of 1000 words"):
        mu.EmbeddingDropout(0.5, keep=[1000]).attach(embedding)
    with pytest.raises(ValueError, match="keep must be a list of token ids"):
        mu.EmbeddingDropout(0.5, keep="[PAD]")


def test_inactive_in_evaluation_mode_and_without_a_draw():
    drop, model = mu.EmbeddingDropout(0.9), text_net()
    keys = list(model.state_dict())
    drop.attach(model)
    ids, y = tokens()
    clean = model(ids)
    assert list(model.state_dict()) == keys
    drop(ids, y)  # as an ordinary augmentation: active until the next call
    assert not torch.equal(model(ids), clean)
    model.eval()
    assert torch.equal(model(ids), clean)
    with pytest.raises(RuntimeError, match=r"evaluation mode; call model\.train\(\)"):
        drop(ids, y)
    model.train()
    mu.MaxUp(drop, m=3)(model, ids, y)
    assert torch.equal(model(ids), clean)  # MaxUp cleared the draw


def test_low_precision_is_kept():
    drop = mu.EmbeddingDropout(0.5)
    model = drop.attach(nn.Sequential(nn.Embedding(VOCABULARY, 4))).bfloat16()
    drop(*tokens())
    assert model(tokens()[0]).dtype == torch.bfloat16


def test_an_embedding_called_by_keyword():
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(20, 4)

        def forward(self, ids):
            return self.head(self.words(input=ids).flatten(1))

    drop = mu.EmbeddingDropout(0.5)
    model = drop.attach(Keyword())
    assert mu.MaxUp(drop, m=4).run(model, *tokens()).report.gap > 0


def test_a_deep_copy_has_its_own_hook():
    import copy

    drop, model = mu.EmbeddingDropout(0.9), text_net()
    drop.attach(model)
    ids, y = tokens()
    copied = copy.deepcopy(model)
    drop(ids, y)
    assert not torch.equal(copied(ids), model(ids))


def test_the_embedding_must_be_unambiguous():
    two = nn.ModuleDict({"words": nn.Embedding(5, 2), "places": nn.Embedding(7, 2)})
    with pytest.raises(ValueError, match=r"2 embeddings \(words, places\); name one with layer="):
        mu.EmbeddingDropout().attach(two)
    mu.EmbeddingDropout(layer="words").attach(two)
    again = mu.EmbeddingDropout(layer="words")
    again.attach(two)  # as when a notebook cell runs twice: the second replaces the first
    assert two["words"].maxup_hook is again.hooks[0]
    assert len(two["words"]._forward_hooks) == 1
    with pytest.raises(ValueError, match="no layer 'word'; its layers are words"):
        mu.EmbeddingDropout(layer="word").attach(two)
    with pytest.raises(TypeError, match="is a Linear"):
        mu.EmbeddingDropout(layer="0").attach(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(RuntimeError, match=r"call \.attach\(model\) first"):
        mu.EmbeddingDropout()(*tokens())
    with pytest.raises(ValueError, match="below 1"):
        mu.EmbeddingDropout(1.0)


def test_time_first_tokens_are_refused():
    drop, model = mu.EmbeddingDropout(0.4), text_net()
    drop.attach(model)
    ids, y = tokens()
    drop.apply((ids, y), drop.draw((ids, y), generator()))
    with pytest.raises(ValueError, match=r"put the batch first, \(B, T\)"):
        model[0](ids.T)


def test_a_hugging_face_text_classifier():
    """A dict batch, several embeddings, and an output object."""
    transformers = pytest.importorskip("transformers")
    torchvision_v2()  # which transformers imports if it is installed
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=VOCABULARY, num_labels=3, **sizes)
    model = transformers.BertForSequenceClassification(config).train()
    drop = mu.EmbeddingDropout(0.5, layer="bert.embeddings.word_embeddings")
    drop.attach(model)
    ids, y = tokens()
    x, y = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, y % 3
    maxup = mu.MaxUp(drop, m=4, forward=lambda model, x: model(**x).logits, generator=generator())
    outcome = maxup.run(model, x, y)
    assert outcome.report.replay_exact
    assert outcome.report.gap > 0
    outcome.loss.backward()
    words = model.bert.embeddings.word_embeddings.weight.grad
    masks, copy = outcome.draw.values, outcome.draw.index
    for row, (line, j) in enumerate(zip(ids, copy, strict=True)):
        kept = [int(w) for w in line if masks[j, w]]
        assert all(words[w].abs().sum() > 0 for w in kept), row
    dropped = {w for w in range(VOCABULARY) if all(masks[j, w] == 0 for j in copy.unique())}
    assert all(words[w].abs().sum() == 0 for w in dropped)


def test_the_embedding_may_get_its_weight_after_attaching():
    """As when a model is created on the meta device, or sharded."""
    with torch.device("meta"):
        model = text_net()
    drop = mu.EmbeddingDropout(0.5)
    drop.attach(model)
    model.to_empty(device="cpu")
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    mu.MaxUp(drop, m=2)(model, *tokens()).backward()

import pytest
import torch
from torch import nn

from maxup.smoothing.counts import BLOCK, NoiseCounter, Request


def make(model=None, batch_size=64, rows=3, **options):
    options = {"shape": (2, 3), "device": torch.device("cpu"), "sigma": 0.7} | options
    return NoiseCounter(model or nn.Flatten(), 6, batch_size=batch_size, rows=rows, **options)


IMAGES = torch.rand(3, 2, 3, generator=torch.Generator().manual_seed(1))
REQUESTS = [Request(0, 10, "a", 0, 333), Request(1, 11, "a", 50, 270), Request(2, 12, "b", 0, 1)]


def naive(counter, images, requests):
    """Count one copy at a time, directly from the blocks."""
    counts = torch.zeros(len(images), 6, dtype=torch.long)
    for r in requests:
        for i in range(r.start, r.stop):
            noise = counter.block(r.index, r.stream, i // BLOCK)[i % BLOCK]
            counts[r.row, (images[r.row] + counter.sigma * noise).flatten().argmax()] += 1
    return counts


@pytest.mark.parametrize("batch_size", [1, 7, 100, 1000])
def test_counts_match_one_copy_at_a_time(batch_size):
    counter = make(batch_size=batch_size)
    assert torch.equal(counter.count(IMAGES, REQUESTS), naive(counter, IMAGES, REQUESTS))
    assert torch.equal(counter.count(IMAGES, REQUESTS), naive(counter, IMAGES, REQUESTS))  # counts start at zero


def test_counts_do_not_depend_on_the_other_images():
    alone = make(rows=1).count(IMAGES[1:2], [Request(0, 11, "a", 50, 270)])
    assert torch.equal(make().count(IMAGES, REQUESTS)[1], alone[0])


def test_a_stream_can_be_counted_in_parts():
    counter = make(rows=1)
    whole = counter.count(IMAGES[:1], [Request(0, 5, "a", 0, 470)])
    parts = sum(counter.count(IMAGES[:1], [Request(0, 5, "a", a, b)]) for a, b in ((0, 30), (30, 250), (250, 470)))
    assert torch.equal(whole, parts)


def test_noise_is_normal_and_differs_between_images_streams_blocks_and_seeds():
    counter = make()
    seen = [(0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1)]
    blocks = torch.stack([counter.block(*which).clone() for which in seen] + [make(seed=1).block(0, "a", 0)])
    assert torch.equal(counter.block(0, "a", 0), blocks[0])
    flat = blocks.flatten(1)
    correlation = torch.corrcoef(flat)[~torch.eye(len(flat), dtype=torch.bool)]
    assert correlation.abs().max() < 0.2  # 600 numbers each: 5 standard errors
    assert abs(float(flat.mean())) < 0.1
    assert abs(float(flat.std()) - 1) < 0.1


def test_the_model_runs_in_evaluation_mode_and_is_restored():
    norm = nn.BatchNorm1d(6)
    model = nn.Sequential(nn.Flatten(), norm, nn.Dropout(0.9))
    model[2].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    make(model).count(IMAGES, REQUESTS)
    assert [m.training for m in model] == [True, True, False]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda x: x, r"the model returned shape \(64, 2, 3\) for 64 images; it must return logits \(64, 6\)"),
        (lambda x: [x], "the model returned a list"),
        (lambda x: x.flatten(1) / 0, r"returned logits that are not finite for 333 noisy copies of image 10"),
    ],
)
def test_an_invalid_model_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        make(model).count(IMAGES, REQUESTS)


def test_padding_is_not_counted():
    def infinite_at_zero(x):
        x = x.flatten(1)
        return x / (x.abs().sum(1, keepdim=True) > 0)

    assert int(make(infinite_at_zero, batch_size=1000).count(IMAGES, REQUESTS).sum()) == 333 + 220 + 1

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from maxup import CutMix
from tests.oracles import torchvision_v2
from tests.tiny import generator


def test_agrees_with_torchvision_on_hand_written_boxes():
    """torchvision pastes one box for the whole batch, from the batch rolled by one: write the same draw by hand."""
    v2 = torchvision_v2()
    x, y = torch.rand(5, 3, 16, 12), torch.arange(5)
    theirs = v2.CutMix(num_classes=5)
    for seed in range(20):
        torch.manual_seed(seed)
        params = theirs.make_params([x])
        left, top, right, bottom = params["box"]
        draw = {"partner": torch.arange(5).roll(1), "box": torch.tensor([[top, left, bottom, right]] * 5)}
        ours_x, ours_y = CutMix(num_classes=5).apply((x, y), draw)
        params["labels"], params["batch_size"] = y, 5
        assert torch.equal(ours_x, theirs.transform(x, params))
        torch.testing.assert_close(ours_y, theirs._mixup_label(y, lam=params["lam_adjusted"]))


def test_against_a_loop_over_pixels():
    g = generator()
    x, y = torch.rand(6, 2, 7, 5, generator=g), torch.tensor([0, 1, 2, 0, 1, 2])
    cutmix = CutMix(num_classes=3)
    draw = cutmix.draw((x, y), g)
    got_x, got_y = cutmix.apply((x, y), draw)
    for i in range(6):
        top, left, bottom, right = draw["box"][i].tolist()
        partner, pasted = int(draw["partner"][i]), 0
        for row in range(7):
            for column in range(5):
                inside = top <= row < bottom and left <= column < right
                pasted += inside
                assert torch.equal(got_x[i, :, row, column], x[partner if inside else i, :, row, column])
        expected = torch.zeros(3)
        expected[y[i]] += 1 - pasted / 35
        expected[y[partner]] += pasted / 35
        torch.testing.assert_close(got_y[i], expected)


def test_draws_follow_their_distributions():
    x = torch.zeros(4000, 1, 64, 64)
    draw = CutMix(num_classes=2).draw((x, None), generator())
    assert not torch.equal(draw["box"][0], draw["box"][1])
    assert (draw["partner"] != torch.arange(4000)).all()
    counts = torch.bincount((draw["partner"] - torch.arange(4000)) % 4000, minlength=4000)
    assert stats.chisquare(counts[1:].view(31, 129).sum(1).numpy()).pvalue > 0.01  # 3999 = 31 * 129 distances
    top, left, bottom, right = draw["box"].unbind(1)
    free = (
        (top > 0) & (bottom < 64) & (left > 0) & (right < 64)
    )  # not clipped: the side is even, 2 * (64 sqrt(1-w) // 2)
    assert ((bottom - top) == (right - left))[free].all()
    # Independent of the code under test: simulate the published procedure with numpy.
    import numpy as np

    rng = np.random.default_rng(1)
    half = (64 * np.sqrt(1 - rng.uniform(size=40000))).astype(int) // 2
    center = rng.integers(64, size=40000)
    heights = np.clip(center + half, 0, 64) - np.clip(center - half, 0, 64)
    assert stats.ks_2samp((bottom - top).numpy(), heights).pvalue > 0.01


def test_alpha_shapes_the_boxes():
    """A larger alpha draws weights near one half: the unclipped relative area is Beta(alpha, alpha)."""
    import numpy as np

    draw = CutMix(num_classes=2, alpha=8.0).draw((torch.zeros(4000, 1, 64, 64), None), generator())
    heights = (draw["box"][:, 2] - draw["box"][:, 0]).numpy()
    rng = np.random.default_rng(1)
    half = (64 * np.sqrt(1 - rng.beta(8, 8, size=40000))).astype(int) // 2
    center = rng.integers(64, size=40000)
    assert stats.ks_2samp(heights, np.clip(center + half, 0, 64) - np.clip(center - half, 0, 64)).pvalue > 0.01


@settings(max_examples=50)
@given(b=st.integers(2, 9), h=st.integers(1, 9), w=st.integers(1, 9), seed=st.integers(0, 99))
def test_labels_stay_probabilities(b, h, w, seed):
    x, y = torch.rand(b, 1, h, w), torch.arange(b) % 3
    mixed_x, mixed_y = CutMix(num_classes=3)(x, y, generator=generator(seed))
    assert mixed_x.shape == x.shape
    assert (mixed_y >= 0).all()
    torch.testing.assert_close(mixed_y.sum(1), torch.ones(b))


def test_invalid_input_is_refused():
    x, y = torch.rand(4, 3, 8, 8), torch.arange(4)
    with pytest.raises(ValueError, match="the batch has size 1; use at least 2"):
        CutMix(num_classes=4)(x[:1], y[:1])
    with pytest.raises(ValueError, match="needs the number of classes"):
        CutMix()(x, y)
    with pytest.raises(ValueError, match="labels run from 0 to 3, but num_classes=3"):
        CutMix(num_classes=3)(x, y)
    with pytest.raises(TypeError, match="y must be a tensor of class ids or probabilities, not None"):
        CutMix(num_classes=3)(x)
    with pytest.raises(ValueError, match=r"expects class ids \(B,\), but y has shape \(4, 1\)"):
        CutMix(num_classes=4)(x, y[:, None])
    with pytest.raises(ValueError, match=r"alpha must be above 0"):
        CutMix(4, alpha=0)

"""The framed copy is the one MaxUp selects, and the numbers are the losses of the copies."""

import pytest
import torch
from torch import Generator, nn
from torch.nn import functional as F

from maxup import CutMix, Cutout, FeatureNoise, MaxUp
from maxup.lab.report.contact_sheet import contact_sheet, different, draw_copies
from maxup.perturb.labels import entropy


def case(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 5)
    )
    return model, torch.randn(7, 3, 8, 8), torch.randint(5, (7,))


def seeded(perturbation, **arguments):
    return MaxUp(perturbation, generator=Generator().manual_seed(3), **arguments)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("perturbation", "arguments"),
    [
        (Cutout(4), {"m": 4}),
        (CutMix(5), {"m": 6}),
        (CutMix(5), {"m": 6, "score": "kl"}),
        (Cutout(4), {"m": 5, "norm": "running", "chunk_size": 3}),
    ],
)
def test_the_winner_is_the_copy_that_select_returns(perturbation, arguments, training):
    model, x, y = case()
    model.train(training)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    found = draw_copies(seeded(perturbation, **arguments), model, x, y)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert model.training == training
    selected, _ = seeded(perturbation, **arguments).select(model, x, y)
    rows = torch.arange(len(x))
    assert torch.equal(found.winner, found.scores.argmax(0))
    assert torch.equal(found.x[found.winner, rows], selected)
    assert len(found.x) == arguments["m"]
    assert not torch.equal(found.x[0], found.x[1])


@pytest.mark.parametrize("score", ["loss", "kl", "easiest"])
def test_the_scores_are_those_of_the_copies_shown(score):
    model, x, y = case(1)
    model.eval()
    perturbation = CutMix(5)
    found = draw_copies(seeded(perturbation, m=3, score=score), model, x, y)
    again = Generator().manual_seed(3)
    for copy, scores in zip(found.x, found.scores, strict=True):
        _, target = perturbation.apply((x, y), perturbation.draw((x, y), again))
        with torch.no_grad():
            losses = F.cross_entropy(model(copy), target, reduction="none")
        assert torch.allclose(scores, losses - entropy(target) if score == "kl" else losses)
    assert found.score == ("KL" if score == "kl" else "loss")
    assert torch.equal(found.winner, found.scores.argmin(0) if score == "easiest" else found.scores.argmax(0))


def test_what_cannot_be_shown_is_an_error():
    model, x, y = case()
    inside = FeatureNoise(0.1, layer="0")
    inside.attach(model)
    for maxup, words in (
        (seeded(Cutout(4), m=1), "nothing to select"),
        (seeded(inside, m=4), "inside the model"),
        (MaxUp(Cutout(4), m=4), "draws the copies twice"),
    ):
        with pytest.raises(ValueError, match=words):
            draw_copies(maxup, model, x, y)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("images", [1, 7])
def test_the_picture_frames_the_winners_and_only_them(tmp_path, monkeypatch, channels, images):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: drawn.append(figure))
    model, x, y = case()
    found = draw_copies(seeded(Cutout(4), m=3), model, x, y)
    found = found.only(torch.arange(images), scale=torch.tensor(2.0), shift=torch.tensor(0.5))
    assert torch.equal(found.x, draw_copies(seeded(Cutout(4), m=3), model, x, y).x[:, :images] * 2 + 0.5)
    contact_sheet(
        tmp_path / "a.png", x[:images, :channels], type(found)(found.x[:, :, :channels], found.scores, found.winner),
        names=[f"class {c}" for c in y[:images]], title="A title",
    )  # fmt: skip
    (figure,) = drawn
    panels = figure.axes
    assert len(panels) == 4 * images
    framed = [any(spine.get_visible() for spine in panel.spines.values()) for panel in panels]
    expected = [row > 0 and int(found.winner[i]) == row - 1 for row in range(4) for i in range(images)]
    assert framed == expected
    texts = [text.get_text() for text in figure.texts]
    for score in found.scores.flatten().tolist():
        assert f"{score:#.2g}".rstrip(".") in texts
    shown = panels[0].images[0].get_array()
    assert torch.allclose(torch.as_tensor(shown.data)[..., 0] if channels == 3 else torch.as_tensor(shown.data),
                          x[0, 0].clamp(0, 1))  # fmt: skip


def test_classes_that_are_new_come_first():
    assert different(torch.tensor([2, 2, 0, 2, 1, 0]), 5).tolist() == [0, 2, 4, 1, 3]
    assert different(torch.tensor([2, 2]), 9).tolist() == [0, 1]

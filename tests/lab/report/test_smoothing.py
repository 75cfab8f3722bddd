import pytest
import torch

from maxup.lab.report.figure import COLORS
from maxup.lab.report.smoothing import picture
from maxup.smoothing.smooth import Certificate


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("predict", "text"), [(1, "dog (correct) within l2 radius 0.250"), (0, "cat (wrong)"), (-1, "abstains")]
)
def test_the_picture_shows_prediction_and_radius(tmp_path, channels, predict, text):
    found = Certificate(predict, 0.25, 1000, 1.0)
    path = tmp_path / "a.svg"
    picture(path, torch.rand(channels, 8, 8), [30, 70], found, sigma=0.5, label=1, classes=["cat", "dog"])
    drawn = path.read_text()
    assert text in drawn
    assert "with noise, sigma 0.5" in drawn
    assert "from 1,000 noisy copies" in drawn
    assert "predictions for 100 other noisy copies" in drawn
    assert (COLORS[3].lower() in drawn) == (predict >= 0)  # an abstention is not correct
    assert drawn.count("<image") == 7  # the image and its copies

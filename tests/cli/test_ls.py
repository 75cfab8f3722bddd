import sys

from maxup.cli.main import main
from maxup.models import list_models


def test_every_network_with_its_size(capsys):
    assert main(["ls", "--models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:-1]}
    assert set(list_models()) <= set(rows)
    assert rows["mlp"][:4] == ["301.07", "k", "302.09", "k"]
    assert rows["timm/resnet101"][:4] == ["44.55", "M", "7.85", "G"]
    assert rows["timm/tf_efficientnet_b8"][-5:] == ["3", "x", "845", "x", "845"]


def test_some_networks(capsys):
    assert main(["ls", "mlp", "--models"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["network", "mlp"]


def test_without_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert main(["ls", "--models"]) == 0
    out = capsys.readouterr().out
    assert "301.07 k" in out
    assert out.count("need the imagenet extra, pip install 'maxup[imagenet]'") == 4

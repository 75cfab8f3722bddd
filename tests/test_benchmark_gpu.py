"""`python -m benchmarks.gpu` runs every command, and continues where it was stopped."""

import json
import shlex

import pytest

from benchmarks import gpu, networks
from maxup.lab.bench.settings import NAMES

QUICK = "maxup bench mlp --device cpu --m 2 --variants maxup --batch_size 4 --input 1,4,4 --rounds 1 --train_steps 0"


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run(*argv):
        monkeypatch.setattr("sys.argv", ["gpu", "--out", str(tmp_path), *argv])
        gpu.main()

    return run


def test_commands_run_once_and_failures_are_named(run, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu, "COMMANDS", {"mlp": QUICK, "broken": "maxup bench no_such_network --device cpu"})
    monkeypatch.setenv("MAXUP_COMMIT", "0" * 40)
    with pytest.raises(SystemExit, match=r"^failed: broken$"):
        run()
    found = json.loads((tmp_path / "mlp" / "bench.json").read_text())
    assert [row["name"] for row in found["variants"]] == ["standard", "maxup"]
    with pytest.raises(SystemExit, match=r"^failed: broken$"):
        run()
    assert "mlp: finished before" in capfd.readouterr().out
    with pytest.raises(SystemExit, match=r"stopped in broken after 0\.001 seconds; run the same command again"):
        run("--seconds", "0.001")


@pytest.mark.parametrize("name", [name for name, command in gpu.COMMANDS.items() if "networks:" in command])
def test_networks_and_variants_exist(name):
    words = shlex.split(gpu.COMMANDS[name])
    assert callable(getattr(networks, words[2].partition(":")[2]))
    variants = words[words.index("--variants") + 1 : words.index("--rounds")]
    assert set(variants) <= set(NAMES)

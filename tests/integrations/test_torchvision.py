"""torchvision is imported beside any torch, and its other failures are not hidden."""

import subprocess
import sys

import pytest

from maxup.integrations.torchvision import import_torchvision


def test_torchvision_imports_next_to_a_torch_without_its_operators():
    """In a new process, with any wheel, twice, and with timm."""
    code = """
from maxup.integrations.torchvision import import_torchvision
assert import_torchvision() is import_torchvision()
import torchvision.transforms.v2, timm
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert import_torchvision().__name__ == "torchvision"


def test_other_failures_of_torchvision_are_not_hidden(monkeypatch):
    def broken(module):
        raise RuntimeError("something else")

    monkeypatch.setattr("maxup.integrations.torchvision.import_module", broken)
    with pytest.raises(RuntimeError, match="something else"):
        import_torchvision()


@pytest.mark.slow
@pytest.mark.parametrize("first", ["MaxUpCallback", "MaxUpTrainer", "MaxUpTask"])
def test_the_integrations_can_be_imported_first(first):
    """A pasted snippet runs beside a CPU build of torch."""
    code = f"from maxup.integrations import {first}; import torchvision"
    subprocess.run([sys.executable, "-c", code], check=True)

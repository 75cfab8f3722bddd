"""Fixtures for the tests of data."""

import pytest

from maxup.lab.data import user_data


@pytest.fixture
def _little_memory(monkeypatch):
    """Stream data sets of more than 1,000 bytes."""
    monkeypatch.setattr(user_data, "MEMORY", 1000)

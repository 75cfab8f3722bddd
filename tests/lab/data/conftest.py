"""Fixtures for the tests of data."""

import pytest

from maxup.lab.data import user_data, user_iterable


@pytest.fixture
def _little_memory(monkeypatch):
    """Stream data sets of more than 1,000 bytes. Write 5 KB of an iterable at a time, of at most 100 examples."""
    monkeypatch.setattr(user_data, "MEMORY", 1000)
    monkeypatch.setattr(user_iterable, "BLOCK", 5000)
    monkeypatch.setattr(user_iterable, "MOST_EXAMPLES", 100)

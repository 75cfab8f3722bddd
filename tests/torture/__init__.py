"""Torture: kills, I/O errors and mutated input, in a fixed order; `python -m tests.torture` runs all of it."""

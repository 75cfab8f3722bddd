"""Torture: kills, I/O errors and mutated input, in fixed order from a seed. `python -m tests.torture` runs all of it."""

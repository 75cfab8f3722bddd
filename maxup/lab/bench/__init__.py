"""Measure what one training step costs: time, peak memory, and how faithful the selection is."""

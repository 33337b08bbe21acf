"""Tensors and floats only: every formula with its source."""

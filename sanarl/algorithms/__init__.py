"""The loss terms of one optimiser step, an algorithm a module."""

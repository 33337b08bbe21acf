"""Using what was trained, or any model: sampling, evaluating, exporting."""

"""Datasets that a command line can name; each module has ``get_dataset(config)``."""

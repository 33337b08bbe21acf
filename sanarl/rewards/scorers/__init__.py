"""One scorer a module."""

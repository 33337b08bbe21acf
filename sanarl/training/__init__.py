"""The training loops and what builds them."""

"""The shapes data set, which can send its own process a signal when item number N is taken."""

import os
import signal

from sanarl.datasets import shapes


class Stopping:
    """Counts the items that are taken; STOP_AT="N SIGNAL" in the environment sends the signal at the N-th."""

    def __init__(self, items):
        self.items, self.taken = items, 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        self.taken += 1
        at, number = os.environ.get("STOP_AT", "0 SIGTERM").split()
        if self.taken == int(at):
            os.kill(os.getpid(), getattr(signal, number))
        return self.items[index]


def get_dataset(config):
    """Training items."""
    return Stopping(shapes.get_dataset(config))


def get_val_dataset(config):
    """Held-out prompts."""
    return shapes.get_val_dataset(config)

"""The shapes data set, which ends a service when item number N is taken: KILL="N PID DELAY"."""

import os
import signal
import threading

from sanarl.datasets import shapes


class Killing:
    """Counts the items that are taken."""

    def __init__(self, items):
        self.items, self.taken = items, 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        self.taken += 1
        at, pid, delay = os.environ.get("KILL", "0 0 0").split()
        if self.taken == int(at):
            threading.Timer(float(delay), os.kill, (int(pid), signal.SIGKILL)).start()
        return self.items[index]


def get_dataset(config):
    """Training items."""
    return Killing(shapes.get_dataset(config))


def get_val_dataset(config):
    """Held-out prompts."""
    return shapes.get_val_dataset(config)

"""A data set of ``custom.count`` items, item i with a prompt of i + 1 letters; ``custom.log`` is told who took it."""

import threading

import torch


class Items:
    """For both tasks: a key ``media`` is dropped where prompts alone are wanted."""

    def __init__(self, config, letter):
        self.custom, self.letter, self.size = config.custom, letter, config.policy.diffusers.inference_size

    def __len__(self):
        return self.custom.get("count", 12)

    def __getitem__(self, index):
        if "log" in self.custom:
            with open(self.custom["log"], "a", encoding="utf-8") as log:
                log.write(f"{index} {threading.current_thread().name}\n")
        media = torch.rand(1, 3, *self.size, generator=torch.Generator().manual_seed(index))
        return {"prompt": self.letter * (index + 1), "media": media}


def get_dataset(config):
    """Training items."""
    return Items(config, "a")


def get_val_dataset(config):
    """Held-out prompts."""
    return Items(config, "b")

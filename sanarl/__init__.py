"""sanarl post-trains SANA, Stable Diffusion 3.5 and FLUX.1: fine-tuning, LoRA and reinforcement learning.

The public names of Python programs; everything else may change:

    load_config(source, overrides=())    a preset's name or a TOML file -> Config
    train(config, ...)                   run it in this process; returns the run's folder
    rewards                              the module sanarl.rewards: build(), Mix, Scores
    Config, ConfigError, UserError       what load_config gives and raises
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "load_config": "sanarl.api",
    "train": "sanarl.api",
    "rewards": "sanarl.rewards",
    "Config": "sanarl.config",
    "ConfigError": "sanarl.config",
    "UserError": "sanarl.errors",
}
__all__ = ["Config", "ConfigError", "UserError", "__version__", "load_config", "rewards", "train"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: ``import sanarl`` stays quick."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'sanarl' has no attribute {name!r}; public: {', '.join(sorted(_PUBLIC))}")
    module = import_module(_PUBLIC[name])
    return module if name == "rewards" else getattr(module, name)


def __dir__() -> list[str]:
    return __all__

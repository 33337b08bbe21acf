"""Configuration: TOML on Cosmos-RL's key paths -> one frozen, checked Config. Imports no torch."""

from sanarl.config.faults import ConfigError, Fault, Note
from sanarl.config.load import Loaded, load
from sanarl.config.saved import load_saved
from sanarl.config.schema import Config, GRPOConfig, SFTConfig
from sanarl.config.source import preset_folder, preset_names

__all__ = [
    "Config",
    "ConfigError",
    "Fault",
    "GRPOConfig",
    "Loaded",
    "Note",
    "SFTConfig",
    "load",
    "load_saved",
    "preset_folder",
    "preset_names",
]

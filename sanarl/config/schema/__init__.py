"""The keys that are honoured, one module per table. Cosmos-RL's other keys: sanarl.config.cosmos."""

from sanarl.config.schema.base import Dataset, Table
from sanarl.config.schema.guards import Guards
from sanarl.config.schema.policy import Diffusers, Lora, Policy, Sample
from sanarl.config.schema.rewards import RemoteReward, RewardFunction
from sanarl.config.schema.root import Config
from sanarl.config.schema.train import Checkpoint, GRPOConfig, SFTConfig, Train
from sanarl.config.schema.validation import Validation

__all__ = [
    "Checkpoint",
    "Config",
    "Dataset",
    "Diffusers",
    "GRPOConfig",
    "Guards",
    "Lora",
    "Policy",
    "RemoteReward",
    "RewardFunction",
    "SFTConfig",
    "Sample",
    "Table",
    "Train",
    "Validation",
]

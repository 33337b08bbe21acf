"""The model that a configuration names, and the policy that trains it."""

from contextlib import nullcontext
from pathlib import Path

from sanarl.config import Config
from sanarl.models.adapter import add_adapter, read_adapter
from sanarl.models.base import FlowModel
from sanarl.models.load import ModelSettings
from sanarl.models.policy import Policy
from sanarl.runtime.sharding import Gathered, shard
from sanarl.runtime.world import World
from sanarl.training import settings

ALONE = World()


def model_settings(config: Config) -> ModelSettings:
    """Which model a configuration names, and how it is loaded."""
    policy, diffusers = config.policy, config.policy.diffusers
    return ModelSettings(
        name_or_path=policy.model_name_or_path,
        revision=policy.model_revision,
        transformer_dtype=settings.DTYPES[config.train.param_dtype],
        other_dtype=settings.DTYPES[diffusers.dtype],
        size=diffusers.inference_size,
        modality=config.modality,
        frames=config.sample_frames,
        max_prompt_length=diffusers.max_prompt_length,
        complex_human_instruction=diffusers.complex_human_instruction,
        motion_score=diffusers.motion_score,
        image_to_video=diffusers.image_to_video,
        offload=diffusers.offload,
        vae_tiles=diffusers.vae_tiles,
        gradient_checkpointing=policy.model_gradient_checkpointing,
        vae_dtype=settings.vae_dtype(config),
        base_pipeline=policy.base_pipeline,
        native_config=policy.native_config,
    )


def build_policy(config: Config, model: FlowModel, world: World = ALONE) -> Policy:
    """The policy that [policy.lora] asks for: an adapter from scratch or from a file, or the whole transformer.

    The whole transformer is cut over ranks where dp_shard_size says so.
    """
    transformer, lora = model.transformer, config.policy.lora
    gathered: Gathered = nullcontext
    if lora is None:
        transformer.requires_grad_(True)
        if world.size > 1 and config.policy.parallelism.dp_shard_size > 1:
            gathered = shard(transformer, world, settings.sharding(config))
        start = {name: p.detach() for name, p in transformer.named_parameters()}
    else:
        slot = settings.lora_settings(config)
        start = add_adapter(transformer, slot, config.train.seed)
        if lora.lora_path is not None:
            start = read_adapter(Path(lora.lora_path), transformer, slot)
    master_dtype = settings.DTYPES[config.train.master_dtype]
    return Policy(model, start, master_dtype, kept_sets=config.is_rl, gathered=gathered)

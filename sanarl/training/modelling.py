"""The model that a configuration names, and the policy that trains it."""

import warnings
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

from sanarl.config import Config
from sanarl.errors import UserError
from sanarl.models.adapter import add_adapter, read_adapter
from sanarl.models.base import FlowModel, compile_each, repeated_blocks
from sanarl.models.checkpointing import as_written
from sanarl.models.fused import fuse
from sanarl.models.load import ModelSettings
from sanarl.models.policy import Policy
from sanarl.runtime import hardware
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
        offload=diffusers.offload or (config.data.cache is not None and not config.is_rl),
        vae_tiles=diffusers.vae_tiles,
        checkpointing=as_written(policy.model_gradient_checkpointing),
        guidance_scale=diffusers.sample.guidance_scale,
        vae_dtype=settings.vae_dtype(config),
        base_pipeline=policy.base_pipeline,
        native_config=policy.native_config,
    )


def compile_blocks(transformer: nn.Module, device: torch.device, backend: str = "inductor") -> None:
    """Compile the repeated blocks in place: one graph a shape and kind of pass serves all of them and every value set.

    Raises:
        UserError: when torch.compile lacks something here.
    """
    able, said = hardware.cuda_compiler() if device.type == "cuda" else hardware.cpu_compiler()
    if not able:
        raise UserError(f"train.compile: found true, but torch.compile needs a compiler: {said}; accepted here: false")
    # torch looks for the gradient of every input of a block while it compiles, and warns of its own look.
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
    if isinstance(embed := getattr(transformer, "patch_embed", None), nn.Module):
        embed.register_forward_hook(_in_order)
    compile_each(repeated_blocks(transformer), backend=backend)


def _in_order(_: nn.Module, __: object, tokens: torch.Tensor) -> torch.Tensor:
    """Tokens in the layout in which blocks give them to one another, so that one graph serves the first block too."""
    return tokens.contiguous()


def fuses(config: Config, device: torch.device) -> bool:
    """Whether layers shall share work: as train.fuse says, by itself where odd sizes and repeated work cost time."""
    asked = config.train.fuse
    return device.type == "cuda" and config.train.param_dtype == "bfloat16" if asked == "auto" else asked


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
    if fuses(config, world.device):
        fuse(transformer)
    if config.train.compile:
        compile_blocks(transformer, world.device)
    master_dtype = settings.DTYPES[config.train.master_dtype]
    return Policy(model, start, master_dtype, kept_sets=config.is_rl, gathered=gathered)

"""From configuration keys to the settings of each part; arithmetic and names only."""

from dataclasses import replace
from typing import Any

import torch

from sanarl.algorithms import awm, flow_grpo, nft, sft
from sanarl.config import Config
from sanarl.errors import UserError
from sanarl.maths import draw
from sanarl.maths.sde import Dynamics
from sanarl.models.adapter import LoraSettings
from sanarl.models.quantize import Rule
from sanarl.models.replicas import ReplicaSettings
from sanarl.rollout.generate import Sampler
from sanarl.rollout.stochastic import Stochastic
from sanarl.runtime.optim import OptimSettings
from sanarl.runtime.session import Saving
from sanarl.runtime.sharding import Sharding
from sanarl.training import rl
from sanarl.training import sft as sft_loop
from sanarl.training.engine import Decoding
from sanarl.training.stages import Pool, Preview

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SCORING_DEADLINE_S = 600.0


def items_per_step(config: Config) -> int:
    """Dataset items that a step takes: pictures in SFT, prompts in reinforcement learning."""
    return config.prompts_per_step if config.is_rl else config.samples_per_step


def total_steps(config: Config, num_items: int) -> int:
    """Steps of the run: ``epoch`` passes laid end to end, in whole steps, at most ``max_num_steps``.

    Raises:
        UserError: when that is not a single step.
    """
    need = items_per_step(config)
    steps = config.train.epoch * num_items // need
    if steps == 0:
        raise UserError(
            f"the dataset has {num_items} items and a step takes {need}, so train.epoch = {config.train.epoch} is no "
            f"whole step; raise train.epoch to {-(-need // num_items)} or lower train.train_batch_per_replica"
        )
    return min(steps, config.train.max_num_steps or steps)


def optim_settings(config: Config, total_updates: int) -> OptimSettings:
    """[train] optm_*; fractions become numbers of the ``total_updates``."""
    train = config.train
    warmup = train.optm_warmup_steps
    warmup_steps = round(warmup * total_updates) if isinstance(warmup, float) else warmup
    kind = train.optm_decay_type
    ratio = train.optm_decay_ratio
    if kind in (None, "none"):
        decay_steps = 0
    else:
        decay_steps = max(total_updates - warmup_steps, 0) if ratio is None else round(ratio * total_updates)
    return OptimSettings(
        name=train.optm_name,
        lr=train.optm_lr,
        betas=train.optm_betas,
        epsilon=train.epsilon,
        weight_decay=train.optm_weight_decay,
        impl=train.optm_impl,
        warmup_steps=warmup_steps,
        warmup_start_factor=train.optm_warmup_start_factor,
        decay_steps=decay_steps,
        decay_type="linear" if kind in (None, "none") else kind,
        min_lr_factor=train.optm_min_lr_factor,
    )


def sharding(config: Config) -> Sharding:
    """How weights are cut over ranks."""
    train = config.train
    return Sharding(
        shard_size=config.policy.parallelism.dp_shard_size,
        reduce_dtype=DTYPES[train.fsdp_reduce_dtype],
        reshard_after_forward=train.fsdp_reshard_after_forward != "never",
        offload=train.fsdp_offload,
    )


def saving(config: Config, num_items: int) -> Saving:
    """[train.ckpt]; epochs become steps."""
    ckpt = config.train.ckpt
    by_epoch = ckpt.save_freq_in_epoch * num_items // items_per_step(config)
    return Saving(
        enabled=ckpt.enable_checkpoint,
        every=max(by_epoch, 1) if ckpt.save_freq_in_epoch else ckpt.save_freq,
        max_keep=ckpt.max_keep,
        export=ckpt.export_safetensors,
        at_exit=config.train.save_ckpt_at_exit,
        beside=ckpt.save_mode == "async",
        max_hours=config.train.max_hours,
    )


def lora_settings(config: Config) -> LoraSettings:
    """[policy.lora]."""
    lora = config.policy.lora
    assert lora is not None, "asked for an adapter of a run without one"
    targets = lora.target_modules
    return LoraSettings(
        r=lora.r,
        alpha=lora.lora_alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        init=lora.init_lora_weights,
        use_rslora=lora.use_rslora,
        r_pattern=dict(lora.r_pattern),
        alpha_pattern=dict(lora.alpha_pattern),
    )


def sampler(config: Config, flow_shift: float, num_steps: int, mini_batch: int) -> Sampler:
    """[policy.diffusers.sample], with the model's own ``flow_shift`` where none is configured."""
    sample = config.policy.diffusers.sample
    return Sampler(
        num_steps=num_steps,
        guidance_scale=sample.guidance_scale,
        solver=sample.solver,
        flow_shift=flow_shift if sample.flow_shift is None else sample.flow_shift,
        mini_batch=mini_batch,
    )


def evaluation_sampler(config: Config, flow_shift: float) -> Sampler:
    """How held-out samples are drawn."""
    sample, asked = config.policy.diffusers.sample, config.validation.batch_size
    if config.is_rl:
        return sampler(config, flow_shift, sample.eval_num_steps, asked or at_once(config))
    return sampler(config, flow_shift, sample.num_steps, asked or config.sft.mini_batch)


def evaluation_key(seed: int) -> draw.Key:
    """What the noise of held-out samples is drawn by, with the number of each sample."""
    return (seed, "eval")


def sft_setup(config: Config, mini_batch: int | None = None) -> sft_loop.Setup:
    """Everything that the loop of supervised fine-tuning is told; ``mini_batch`` of a memory plan counts first."""
    diffusers = config.policy.diffusers
    settings = sft.Settings(
        mini_batch=mini_batch or config.sft.mini_batch,
        density=diffusers.weighting_scheme,
        logit_mean=diffusers.logit_mean,
        logit_std=diffusers.logit_std,
        flow_shift=diffusers.train_flow_shift,
        caption_dropout=diffusers.caption_dropout,
        image_to_video=diffusers.image_to_video,
    )
    return sft_loop.Setup(config.samples_per_step, settings, config.train.seed, config.sft.mini_batch)


def forward_settings(config: Config) -> dict[str, Any]:
    """What DiffusionNFT and Advantage Weighted Matching are both told; see ``algorithms.forward.Settings``."""
    diffusers, grpo = config.policy.diffusers, config.grpo
    return {
        "mini_batch": grpo.mini_batch,
        "kl_beta": grpo.kl_beta,
        "advantage_clip": grpo.advantage_high,
        "advantage_mode": grpo.advantage_mode,
        "timesteps_fraction": diffusers.timesteps_fraction,
        "decay_type": diffusers.weight_copy_decay_type,
        "decay_value": diffusers.weight_copy_decay_value or 0.0,
        "decay_steps": diffusers.weight_copy_decay_steps or 1,
    }


def nft_settings(config: Config) -> nft.Settings:
    """DiffusionNFT's numbers."""
    return nft.Settings(nft_beta=config.policy.diffusers.nft_beta, **forward_settings(config))


def awm_settings(config: Config) -> awm.Settings:
    """Advantage Weighted Matching's numbers."""
    grpo = config.grpo
    return awm.Settings(
        matching_power=grpo.matching_power,
        epsilon_low=grpo.epsilon_low,
        epsilon_high=grpo.epsilon_high,
        old_kl_beta=grpo.old_kl_beta,
        **forward_settings(config),
    )


def stochastic(config: Config, rollouts: Sampler) -> Stochastic:
    """Flow-GRPO's stochastic steps on the schedule of ``rollouts``."""
    sample, held = config.policy.diffusers.sample, config.stochastic_steps
    return Stochastic(
        dynamics=Dynamics(sample.sde_type, sample.noise_level, sigma_max=float(rollouts.sigmas[1])),
        window=config.sde_window,
        first=held.start,
        end=held.stop,
        keep_means=config.grpo.ratio_norm,
        same_latent=sample.same_latent,
    )


def flow_grpo_settings(config: Config, how: Stochastic) -> flow_grpo.Settings:
    """Flow-GRPO's numbers."""
    diffusers, grpo = config.policy.diffusers, config.grpo
    return flow_grpo.Settings(
        mini_batch=grpo.mini_batch,
        dynamics=how.dynamics,
        guidance_scale=diffusers.sample.guidance_scale,
        epsilon_low=grpo.epsilon_low,
        epsilon_high=grpo.epsilon_high,
        kl_beta=grpo.kl_beta,
        advantage_clip=grpo.advantage_high,
        advantage_mode=grpo.advantage_mode,
        timesteps_fraction=diffusers.timesteps_fraction,
        ratio_norm=grpo.ratio_norm,
        step_reweighting=grpo.step_reweighting,
    )


def at_once(config: Config) -> int:
    """Samples of a rollout that are drawn at once."""
    return config.rollout.n_generation_mini_batch or config.rollout.n_generation


def decoded_at_once(config: Config) -> int:
    """Samples that are decoded together; 0 where none are."""
    evaluated = evaluation_sampler(config, 1.0).mini_batch if config.validation.enable else 0
    return max(evaluated, at_once(config) if config.is_rl else 0)


def pool(config: Config, rollouts: Sampler) -> Pool:
    """[rollout] and [rollout.preview]; ``rollouts`` draws in full."""
    rollout, preview = config.rollout, config.rollout.preview
    first = None
    if preview.num_steps:
        sampler = replace(rollouts, num_steps=preview.num_steps, decode_scale=preview.decode_scale)
        first = Preview(sampler, preview.mode, preview.select, config.regenerated)
    return Pool(config.candidates, rollout.n_generation, rollout.select, rollout.engine.mode, first)


def replicas(config: Config) -> list[ReplicaSettings]:
    """The copies of the model that rollouts are sampled by; none in supervised fine-tuning."""
    engine = config.rollout.engine
    rule = Rule(engine.skip_modules, engine.min_dim)
    modes = dict.fromkeys(config.engine_modes) if config.is_rl else ()
    return [ReplicaSettings(m, rule, engine.compile_mode, at_once(config)) for m in modes if m != "peft"]


def vae_dtype(config: Config) -> torch.dtype | None:
    """[rollout.engine] decode_dtype, where rollouts are decoded; None: as policy.diffusers.dtype says."""
    asked = config.rollout.engine.decode_dtype if config.is_rl else None
    return None if asked is None else DTYPES[asked]


def decoding(config: Config) -> Decoding | None:
    """How the decoder is compiled; None: it is not."""
    if not config.is_rl or not config.rollout.engine.decode_compile:
        return None
    scales = (1.0, config.rollout.preview.decode_scale) if config.rollout.preview.num_steps else (1.0,)
    return Decoding(at_once(config), tuple(dict.fromkeys(scales)))


def rl_setup(config: Config, flow_shift: float, mini_batch: int | None = None) -> rl.Setup:
    """Everything that the loop of reinforcement learning is told; ``mini_batch`` of a memory plan counts first."""
    diffusers, grpo = config.policy.diffusers, config.grpo
    rollouts = sampler(config, flow_shift, diffusers.sample.num_steps, at_once(config))
    settings: rl.Algorithm
    if config.task == "flowgrpo":
        how = stochastic(config, rollouts)
        rollouts = replace(rollouts, stochastic=how)
        settings = flow_grpo_settings(config, how)
    else:
        settings = awm_settings(config) if config.task == "awm" else nft_settings(config)
    settings = replace(settings, mini_batch=mini_batch or settings.mini_batch)
    return rl.Setup(
        prompts_per_step=config.prompts_per_step,
        pool=pool(config, rollouts),
        updates_per_pass=config.samples_per_step // config.samples_per_update,
        mu_iterations=grpo.mu_iterations,
        global_std=diffusers.sample.global_std,
        sampler=rollouts,
        settings=settings,
        seed=config.train.seed,
        deadline_s=SCORING_DEADLINE_S,
        show_every=config.logging.multi_modal_log_interval,
    )

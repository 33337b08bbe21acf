"""From a configuration to a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sanarl.config import Config, Loaded
from sanarl.data.loading import Loader
from sanarl.data.module import DatasetModule
from sanarl.data.module import load as load_module
from sanarl.errors import UserError
from sanarl.models.adapter import add_adapter, read_adapter
from sanarl.models.base import FlowModel
from sanarl.models.load import ModelSettings, load_model
from sanarl.models.policy import Policy
from sanarl.rewards import build as build_rewards
from sanarl.rewards.local import Scoring
from sanarl.rollout.evaluate import HeldOut
from sanarl.runtime import folder as folders
from sanarl.runtime.console import Console
from sanarl.runtime.folder import RunFolder
from sanarl.runtime.optim import Ema
from sanarl.runtime.session import Session
from sanarl.runtime.step import StepGuard
from sanarl.runtime.track import Tracker
from sanarl.runtime.world import World
from sanarl.train import rl, settings
from sanarl.train import sft as sft_loop
from sanarl.train.job import Job

DEFAULT_MODULES = {"sft": "sanarl.datasets.diffusers_dataset", "grpo": "sanarl.datasets.diffusion_nft"}
SHAPES = "sanarl.datasets.shapes"


def refuse_unsupported(config: Config) -> None:
    """Say what a valid configuration asks for that this version does not do.

    Raises:
        UserError: listing all of it.
    """
    faults = []
    if config.family == "sd3":
        faults.append(
            f"policy.model_name_or_path: {config.policy.model_name_or_path} is a Stable Diffusion 3 model; "
            "that family is not there yet, SANA is"
        )
    if config.policy.diffusers.is_video:
        faults.append("policy.diffusers.is_video: true; video is not there yet, images are")
    for key, policy in (("train.train_policy", config.train.train_policy), ("validation", config.validation)):
        if getattr(policy, "use_remote_reward", None):
            faults.append(
                f"{key}.use_remote_reward: true; the client of reward services is not there yet; "
                f"name rewards of this process in {key}.reward_function"
            )
    if faults:
        raise UserError("this version cannot train that preset:\n" + "\n".join(f"  {fault}" for fault in faults))


def run(loaded: Loaded, dataset_module: str | None, resume: str | None) -> int:
    """Train as the configuration says, on this process's rank.

    Args:
        loaded: the configuration and where it came from.
        dataset_module: dotted module or .py file with ``get_dataset(config)``; None: the task's default.
        resume: ``auto``, ``never``, or a path; None: what train.resume says.

    Returns:
        The exit code: 0, or 130 / 143 after a signal.

    Raises:
        UserError: for whatever the user can mend.
    """
    config = loaded.config
    refuse_unsupported(config)
    module = load_module(dataset_module or default_module(config))
    dataset = module.train(config)
    total = settings.total_steps(config, len(dataset))
    torch.use_deterministic_algorithms(config.train.deterministic)
    world = World.start()
    try:
        session, resume_from = _session(loaded, world, resume, total, len(dataset))
        try:
            return _train(config, module, dataset, session, resume_from)
        finally:
            session.close()
    finally:
        world.stop()


def default_module(config: Config) -> str:
    """The dataset module for a command line that names none."""
    policy = config.train.train_policy
    return SHAPES if policy.dataset.name == "shapes" else DEFAULT_MODULES[policy.type]


def _session(
    loaded: Loaded, world: World, resume: str | None, total: int, num_items: int
) -> tuple[Session, Path | None]:
    """The run's surroundings, and the checkpoint to start from; the main rank decides and writes."""
    config = loaded.config
    train, log = config.train, config.logging
    if resume is None:
        resume = train.resume if isinstance(train.resume, str) else "auto" if train.resume else "never"
    found = folders.find(train.output_dir, config.identity(), resume) if world.main else None
    found = world.tell(found)
    folder = world.tell(folders.new(train.output_dir) if world.main and found is None else found and found[0])
    assert folder is not None, "a run has a folder"
    trackers: list[Tracker] = []
    console = Console(folder.log if world.main else None, quiet=not world.main or "console" not in log.logger)
    if world.main:
        folder.write_config(loaded.text, config.model_dump(mode="json"), config.identity())
        for note in loaded.notes:
            console.line(f"{note.level}: {note.text}")
        console.line(f"run folder: {folder.path}")
        if resume == "auto" and found is None:
            console.line(f"nothing to resume below {train.output_dir}; starting anew")
        if "wandb" in log.logger:
            trackers.append(_wandb(config, folder, console))
    session = Session(
        folder=folder,
        world=world,
        identity=config.identity(),
        saving=settings.saving(config, num_items),
        console=console,
        trackers=trackers,
        log_interval=log.log_interval,
        total=total,
    )
    return session, found[1] if found is not None else None


def _wandb(config: Config, folder: RunFolder, console: Console) -> Tracker:
    from sanarl.runtime.track.weights_and_biases import WandbTracker

    log = config.logging
    tracker = WandbTracker(
        folder.path, log.project_name, log.group_name, log.experiment_name, config.model_dump(mode="json")
    )
    if tracker.offline:
        console.line(f"wandb is offline (no login); upload later with: wandb sync {folder.path}/wandb/offline-run-*")
    return tracker


def _train(
    config: Config, module: DatasetModule, dataset: Sequence[Any], session: Session, resume_from: Path | None
) -> int:
    """Build model, policy and job, and hand over to the task's loop."""
    world, train = session.world, config.train
    wanted = {"train": _training_rewards(config), "validation": _evaluation_rewards(config)}
    mixes = {names: Scoring(build_rewards(dict(names))) for names in set(wanted.values()) if names}
    try:
        model = load_model(_model_settings(config), world.device)
        policy = build_policy(config, model)
        updates = session.total * (config.updates_per_rollout if config.task == "nft" else 1)
        job = Job(
            policy=policy,
            session=session,
            optim_settings=settings.optim_settings(config, updates),
            total_updates=updates,
            grad_clip=train.optm_grad_norm_clip,
            guard=StepGuard(train.max_skipped_steps),
            ema=Ema(policy.masters, train.ema_decay, train.ema_update_step_interval) if train.ema_enable else None,
            held_out=_held_out(config, module, model, mixes.get(wanted["validation"])),
            eval_every=config.validation.freq,
            eval_first=config.validation.val_before_train,
        )
        _describe(config, job, len(dataset))
        session.begin(job.state(), resume_from)
        if config.task == "nft":
            setup = settings.rl_setup(config, model.flow_shift)
            return rl.train(job, _loader(config, dataset, workers=0, prefetch=None), mixes[wanted["train"]], setup)
        sft = config.sft
        with _loader(config, dataset, sft.dataloader_num_workers, sft.dataloader_prefetch_factor) as loader:
            return sft_loop.train(job, loader, settings.sft_setup(config))
    finally:
        for scoring in mixes.values():
            scoring.close()


Names = tuple[tuple[str, float], ...]


def _training_rewards(config: Config) -> Names:
    return tuple(sorted(config.grpo.reward_function.items())) if config.task == "nft" else ()


def _evaluation_rewards(config: Config) -> Names:
    if not config.validation.enable:
        return ()
    return tuple(sorted(config.validation.reward_function.items())) or _training_rewards(config)


def _loader(config: Config, dataset: Sequence[Any], workers: int, prefetch: int | None) -> Loader:
    policy = config.train.train_policy
    stride = settings.items_per_step(config)
    return Loader(dataset, policy.dataloader_seed, policy.dataloader_shuffle, workers, prefetch, stride)


def _model_settings(config: Config) -> ModelSettings:
    policy, diffusers = config.policy, config.policy.diffusers
    return ModelSettings(
        name_or_path=policy.model_name_or_path,
        revision=policy.model_revision,
        transformer_dtype=settings.DTYPES[config.train.param_dtype],
        other_dtype=settings.DTYPES[diffusers.dtype],
        size=diffusers.inference_size,
        max_prompt_length=diffusers.max_prompt_length,
        complex_human_instruction=diffusers.complex_human_instruction,
        offload=diffusers.offload,
        gradient_checkpointing=policy.model_gradient_checkpointing,
    )


def build_policy(config: Config, model: FlowModel) -> Policy:
    """The policy that [policy.lora] asks for: an adapter from scratch or from a file, or the whole transformer."""
    transformer, lora = model.transformer, config.policy.lora
    if lora is None:
        transformer.requires_grad_(True)
        start = {name: p.detach() for name, p in transformer.named_parameters()}
    else:
        slot = settings.lora_settings(config)
        start = add_adapter(transformer, slot, config.train.seed)
        if lora.lora_path is not None:
            start = read_adapter(Path(lora.lora_path), transformer, slot)
    master_dtype = settings.DTYPES[config.train.master_dtype]
    return Policy(model, start, master_dtype, kept_sets=config.task == "nft")


def _held_out(config: Config, module: DatasetModule, model: FlowModel, scoring: Scoring | None) -> HeldOut | None:
    """What [validation] asks for; None when it is off."""
    validation, sample = config.validation, config.policy.diffusers.sample
    if not validation.enable:
        return None
    items = module.validation(config)
    if items is None:
        raise UserError(
            f"validation.enable: true, but {module.name} has no get_val_dataset(config); "
            "add one, or set validation.enable = false"
        )
    count = min(len(items), validation.num_prompts or len(items))
    chosen = [items[i] for i in range(count)]
    if config.task == "nft":
        steps, at_once = sample.eval_num_steps, config.rollout.n_generation_mini_batch or config.rollout.n_generation
    else:
        steps, at_once = sample.num_steps, config.sft.mini_batch
    return HeldOut(
        prompts=[item["prompt"] for item in chosen],
        metadata=[item["metadata"] for item in chosen],
        num_samples=validation.n_generation,
        sampler=settings.sampler(config, model.flow_shift, steps, validation.batch_size or at_once),
        key=(config.train.seed, "eval"),
        scoring=scoring,
        deadline_s=settings.SCORING_DEADLINE_S,
    )


def _describe(config: Config, job: Job, num_items: int) -> None:
    """Tell in a few lines what will be trained."""
    session, policy = job.session, job.policy
    trained = sum(m.numel() for m in policy.masters)
    whole = sum(p.numel() for p in policy.model.transformer.parameters())
    say = session.console.line
    say(
        f"{config.task} of {config.policy.model_name_or_path}: {trained:,} of {whole:,} transformer parameters "
        f"({trained / whole:.2%}) are trained, on {session.world.size} x {session.world.device.type}"
    )
    samples = config.samples_per_step
    what = (
        f"{config.prompts_per_step} prompts x {config.rollout.n_generation} samples a rollout, "
        f"{config.updates_per_rollout} optimiser steps each"
        if config.task == "nft"
        else f"{samples} samples a step"
    )
    say(f"{num_items} items, {session.total} steps, {what}")
    if config.gpus != session.world.size:
        say(
            f"the preset is written for {config.gpus} GPUs and runs on {session.world.size} rank(s): "
            "the same numbers, another duration"
        )
    if not config.train.ckpt.enable_checkpoint:
        say("train.ckpt.enable_checkpoint = false: neither checkpoints nor exports will be written")

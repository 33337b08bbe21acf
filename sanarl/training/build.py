"""From a configuration to the objects of a run: dataset, model, policy, rewards, held-out set, job."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch

from sanarl.config import Config
from sanarl.data.loading import Loader
from sanarl.data.module import DatasetModule, Items
from sanarl.data.module import load as load_module
from sanarl.errors import UserError
from sanarl.models.base import FlowModel
from sanarl.models.load import ModelSettings, load_model
from sanarl.models.policy import Policy
from sanarl.rewards.dry import Trial, dry_call, trial_media
from sanarl.rewards.local import Scoring
from sanarl.rewards.mix import RewardError
from sanarl.rewards.remote import RemoteScoring
from sanarl.rollout.evaluate import HeldOut
from sanarl.rollout.guards import Watch
from sanarl.runtime.optim import Ema
from sanarl.runtime.session import Session
from sanarl.runtime.step import StepGuard
from sanarl.runtime.world import World
from sanarl.training import engine, metering, rewarding, settings, trackers, watching
from sanarl.training.cached import cached, without_known_media
from sanarl.training.card import Card
from sanarl.training.engine import Engine
from sanarl.training.fitting import check_fits
from sanarl.training.job import Job
from sanarl.training.memory import planning
from sanarl.training.memory.footprints import Footprint
from sanarl.training.memory.passes import Passes, text_like, transformer_shadow
from sanarl.training.memory.planning import MemoryPlan
from sanarl.training.modelling import build_policy, model_settings

DEFAULT_MODULES = {"sft": "sanarl.datasets.diffusers_dataset", "grpo": "sanarl.datasets.diffusion_nft"}
SHAPES = "sanarl.datasets.shapes"


@dataclass
class Parts:
    """What a run is made of, before anything is written. Enter it to have its threads ended."""

    config: Config
    module: DatasetModule
    dataset: Items
    world: World
    model: FlowModel
    policy: Policy
    rewards: dict[rewarding.Rewards, Scoring | RemoteScoring]
    held_out: HeldOut | None
    watch: Watch | None
    engine: Engine
    footprint: Footprint
    plan: MemoryPlan

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for scoring in self.rewards.values():
            scoring.close()

    def tried_rewards(self) -> list[str]:
        """Score a ramp once with every reward, here and of services: a line each, or what is wrong with it."""
        samples: dict[rewarding.Rewards, tuple[str, dict[str, Any], bool]] = {}
        if self.held_out is not None:
            samples[rewarding.evaluation_rewards(self.config)] = (
                self.held_out.prompts[0],
                self.held_out.metadata[0],
                False,
            )
        if self.watch is not None:
            held_out = self.watch.held_out
            samples[rewarding.guard_rewards(self.config)] = held_out.prompts[0], held_out.metadata[0], False
        if self.config.is_rl:
            first = self.dataset[0]
            samples[rewarding.training_rewards(self.config)] = first["prompt"], first["metadata"], True
        size = self.config.policy.diffusers.inference_size
        media = trial_media(size, self.config.sample_frames, self.world.device)
        lines = [
            line
            for which, (prompt, metadata, only_strict) in samples.items()
            if (scoring := self.rewards.get(which)) is not None
            for line in dry_call(scoring, Trial(media, [prompt] * 2, [metadata] * 2, only_strict))
        ]
        lines += self._tried_on_previews()
        for scoring in self.rewards.values():
            if isinstance(scoring, Scoring):
                scoring.rest()
        return lines

    def _tried_on_previews(self) -> list[str]:
        """The same for previews, where they are smaller than samples: a reward may ask for more pixels."""
        diffusers, preview = self.config.policy.diffusers, self.config.rollout.preview
        if not (self.config.is_rl and preview.num_steps and preview.decode_scale != 1.0):
            return []
        height, width = (round(edge * preview.decode_scale) for edge in diffusers.inference_size)
        media = trial_media((height, width), self.config.sample_frames, self.world.device)
        first = self.dataset[0]
        trial = Trial(media, [first["prompt"]] * 2, [first["metadata"]] * 2, only_strict=True)
        try:
            return dry_call(self.training_rewards, trial)
        except RewardError as error:
            hint = f"previews have {height} x {width} pixels; rollout.preview.decode_scale = 1.0 scores whole ones"
            raise RewardError(f"{error}\n  {hint}", error.exit_code) from error

    @property
    def total_steps(self) -> int:
        """Steps of the run."""
        return settings.total_steps(self.config, len(self.dataset))

    @property
    def training_rewards(self) -> Scoring | RemoteScoring:
        """What scores rollouts."""
        return self.rewards[rewarding.training_rewards(self.config)]

    def loader(self) -> Loader:
        """The items of a step, in the order that the configuration asks for."""
        policy = self.config.train.train_policy
        workers = getattr(policy, "dataloader_num_workers", 0)
        prefetch = getattr(policy, "dataloader_prefetch_factor", None)
        stride = settings.items_per_step(self.config)
        dataset = without_known_media(self.dataset, self.model)
        return Loader(dataset, policy.dataloader_seed, policy.dataloader_shuffle, workers, prefetch, stride)

    def job(self, session: Session) -> Job:
        """The policy in training, with everything that acts on it."""
        config, train = self.config, self.config.train
        for scoring in self.rewards.values():
            if isinstance(scoring, RemoteScoring):
                scoring.say = session.console.line
        if config.logging.report_mfu:
            metering.measure(self.policy, session, config)
        updates = session.total * (config.updates_per_rollout if config.is_rl else 1)
        return Job(
            policy=self.policy,
            session=session,
            optim_settings=settings.optim_settings(config, updates),
            total_updates=updates,
            grad_clip=train.optm_grad_norm_clip,
            guard=StepGuard(train.max_skipped_steps),
            ema=Ema(self.policy.masters, train.ema_decay, train.ema_update_step_interval) if train.ema_enable else None,
            held_out=self.held_out,
            eval_every=config.validation.freq,
            eval_first=config.validation.val_before_train,
            card=Card(config, self.model.flow_shift, type(self.model.pipeline).__name__),
            fps=config.policy.diffusers.fps,
            engine=self.engine,
            watch=self.watch,
        )


def parts(
    config: Config,
    dataset_module: str | None,
    world: World,
    load: Callable[[ModelSettings, torch.device], FlowModel] = load_model,
) -> Parts:
    """Build everything; cheap faults are found before the model is loaded, by ``load``.

    Raises:
        UserError: for whatever the user can mend.
    """
    trackers.check(config)
    rewarding.find_services(config)
    engine.check(config)
    module = load_module(dataset_module or default_module(config))
    dataset = module.train(config)
    _agree(dataset, world)
    settings.total_steps(config, len(dataset))
    prompts = validation_items(config, module)
    fixed = watching.prompts(config, dataset) if rewarding.watches(config) else []
    evaluated, watched = rewarding.evaluation_rewards(config), rewarding.guard_rewards(config)
    asked = {rewarding.training_rewards(config), evaluated, watched} - {()}
    rewards = {which: rewarding.scoring(which, config.policy.diffusers.offload) for which in asked}
    try:
        bare = load(model_settings(config), world.device)
        model = cached(bare, config)
        check_fits(model, config, settings.decoded_at_once(config), world.device)
        shadow = transformer_shadow(config, model)
        policy = build_policy(config, model, world)
        engine.check_scale(config, model.latent_shape)
        copies = engine.build(policy, settings.replicas(config), settings.decoding(config))
        held_out = _held_out(config, prompts, model, rewards.get(evaluated))
        watch = watching.watch(config, fixed, model, rewards.get(watched)) if fixed else None
        footprint = Footprint(
            config,
            Passes(bare, shadow, partial(text_like, model), config.policy.diffusers.image_to_video),
            world.size,
            {mode: copy.num_bytes for mode, copy in copies.replicas.items()},
            rewarding.num_bytes(rewards.values()),
        )
        plan = planning.made(config, footprint, policy, world)
    except BaseException:
        for scoring in rewards.values():
            scoring.close()
        raise
    return Parts(config, module, dataset, world, model, policy, rewards, held_out, watch, copies, footprint, plan)


def _agree(dataset: Items, world: World) -> None:
    """Every rank must have found the same items, whatever was skipped.

    Raises:
        UserError: on every rank, when they have not.
    """
    found = world.gather_objects(dataset.fingerprint)
    if len(set(found)) > 1:
        sizes = ", ".join(f"{text.split()[0]} on rank {rank}" for rank, text in enumerate(found))
        raise UserError(f"the ranks found different items ({sizes}); every machine needs the same files")


def default_module(config: Config) -> str:
    """The dataset module for a command line that names none."""
    policy = config.train.train_policy
    return SHAPES if policy.dataset.name == "shapes" else DEFAULT_MODULES[policy.type]


def validation_items(config: Config, module: DatasetModule) -> list[Any]:
    """The first ``validation.num_prompts`` held-out items; none when validation is off."""
    validation = config.validation
    if not validation.enable:
        return []
    items = module.validation(config)
    if items is None:
        raise UserError(
            f"validation.enable: true, but {module.name} has no get_val_dataset(config); "
            "add one, or set validation.enable = false"
        )
    return [items[i] for i in range(min(len(items), validation.num_prompts or len(items)))]


def _held_out(config: Config, chosen: list[Any], model: FlowModel, scoring: Scoring | None) -> HeldOut | None:
    """What [validation] asks for; None when it is off."""
    validation = config.validation
    if not validation.enable:
        return None
    return HeldOut(
        prompts=[item["prompt"] for item in chosen],
        metadata=[item["metadata"] for item in chosen],
        num_samples=validation.n_generation,
        sampler=settings.evaluation_sampler(config, model.flow_shift),
        key=settings.evaluation_key(config.train.seed),
        scoring=scoring,
        deadline_s=settings.SCORING_DEADLINE_S,
        first=torch.stack([item["first"] for item in chosen]) if config.policy.diffusers.image_to_video else None,
    )

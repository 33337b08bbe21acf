"""What a run holds on its device at its worst moment, predicted part by part before it is tried.

    peak = what is always there + the most that any phase takes besides

Weights, masters, gradients, moments and value sets are counted. What passes through the models take is found on
shapes alone (``passes``), so a prediction needs no GPU, and is of a GPU also where there is none.
"""

from dataclasses import dataclass

import torch

from sanarl.config import Config
from sanarl.models import checkpointing
from sanarl.models.checkpointing import Checkpointing
from sanarl.models.footprint import num_bytes
from sanarl.models.text import PROMPTS_AT_ONCE
from sanarl.runtime.sharding import sizes
from sanarl.runtime.world import MESSAGE_BYTES
from sanarl.training import settings
from sanarl.training.memory.passes import Passes
from sanarl.training.memory.prediction import Prediction

LIBRARIES = 40 * 2**20
"""What cuBLAS keeps on a GPU for itself, through the same allocator."""
SCORING = 2**29
"""Activations of a reward model: an allowance, for any code can be a reward."""


@dataclass(frozen=True)
class Share:
    """The part of the trained values that a rank holds on its device."""

    parts: int = 1
    on_device: bool = True

    @property
    def whole(self) -> bool:
        """Whether all of them."""
        return self.parts == 1 and self.on_device

    def of(self, size: int) -> int:
        """Bytes of ``size`` that are here."""
        return size // self.parts if self.on_device else 0


@dataclass(frozen=True)
class Footprint:
    """Predictions of one run, and of what it would be with other settings."""

    config: Config
    passes: Passes
    world_size: int
    copies: dict[str, int]
    """Bytes of the copies that sample rollouts, by mode."""
    scorers: int
    """Bytes of the reward models of this process."""

    def predict(self, config: Config, how: Checkpointing, mini_batch: int) -> Prediction:
        """The run that ``config`` describes: the one at hand, or with other batch sizes, dtypes and places."""
        phases, training = self._phases(config), self.training(config, how, mini_batch)
        if config.train.encode_ahead:
            training += max(phases["text encoding"], phases["encoding of media"])
        return Prediction(self._held(config), phases | {"training pass": training}, mini_batch, how)

    def training(self, config: Config, how: Checkpointing, mini_batch: int) -> int:
        """Forward and backward pass of a mini-batch, and gradients."""
        guided = config.task == "flowgrpo" and self._guided(config)
        found, gradients = self.passes.training(how, mini_batch, guided), self._gradients()
        share, master, transformer = self._share(config), self._master(config), self.passes.transformer
        if config.train.compile:
            blocks_kept = checkpointing.kept(transformer, how) + (how != "off")
            found -= blocks_kept * self.passes.fused_away() * mini_batch * (2 if guided else 1)
        if not share.whole:  # gradients are cut as they come, and two blocks are put together at a time
            blocks = [num_bytes(block) for part in checkpointing.repeated(transformer) for block in part]
            found += 4 * max(blocks, default=0) + share.of(gradients) - gradients
        several = config.is_rl or mini_batch < self.rows(config)
        return max(found + master * several, share.of(gradients) + master)

    def rows(self, config: Config) -> int:
        """Samples of an optimiser step on the rank that has most."""
        return self._rows(config.samples_per_update if config.is_rl else config.samples_per_step)

    @property
    def tokens(self) -> int:
        """Of the transformer, for a sample."""
        return self.passes.model.num_tokens

    def _rows(self, n: int) -> int:
        return -(-n // self.world_size)

    # ---- what is always there

    def _held(self, config: Config) -> dict[str, int]:
        """Weights and what the optimiser keeps; from the second step on."""
        master = self._master(config)
        held = {
            "transformer": self._share(config).of(num_bytes(self.passes.transformer)),
            "masters": master,
            "moments": 2 * master,
        }
        if config.is_rl:
            held["old and reference values"] = 2 * master
        if config.train.ema_enable:
            held["moving average"] = master
        held |= {f"copy for rollouts ({mode})": size for mode, size in self.copies.items()}
        if not self._visits(config):
            held["text encoder"], held["autoencoder"] = self._text_encoders(config), self._autoencoder(config)
        if not config.policy.diffusers.offload:
            held["reward models"] = self.scorers
        name = "embeddings of a rollout" if config.is_rl else "embeddings of a step"
        held[name] = self._rows(config.samples_per_step) * self.passes.text_bytes
        held["libraries"] = LIBRARIES
        return {name: size for name, size in held.items() if size}

    def _gradients(self) -> int:
        """Of the working weights."""
        return sum(p.numel() * p.element_size() for p in self.passes.transformer.parameters() if p.requires_grad)

    def _master(self, config: Config) -> int:
        """A set of trained values on this rank's device."""
        trained = sum(p.numel() for p in self.passes.transformer.parameters() if p.requires_grad)
        return self._share(config).of(trained * settings.DTYPES[config.train.master_dtype].itemsize)

    def _share(self, config: Config) -> Share:
        asked = config.policy.parallelism.dp_shard_size
        if config.policy.lora is not None or self.world_size == 1 or asked == 1:
            return Share()
        return Share(sizes(self.world_size, asked)[1], not config.train.fsdp_offload)

    def _visits(self, config: Config) -> bool:
        """Whether text encoder and autoencoder stay off the device while they are idle."""
        return config.policy.diffusers.offload or (config.data.cache is not None and not config.is_rl)

    def _text_encoders(self, config: Config) -> int:
        itemsize = settings.DTYPES[config.policy.diffusers.dtype].itemsize
        return sum(p.numel() for each in self.passes.text_encoders for p in each.parameters()) * itemsize

    def _autoencoder(self, config: Config) -> int:
        return sum(p.numel() for p in self.passes.model.pipeline.vae.parameters()) * _vae_dtype(config).itemsize

    # ---- what comes and goes

    def _phases(self, config: Config) -> dict[str, int]:
        """All but training; of a cache, while it is being filled."""
        text, vae = (size * self._visits(config) for size in (self._text_encoders(config), self._autoencoder(config)))
        diffusers, rows = config.policy.diffusers, self._rows(config.samples_per_step)
        phases = {"optimiser step": self._optimiser(config)}
        prompts = min(config.prompts_per_step if config.is_rl else rows, PROMPTS_AT_ONCE)
        dtype, length = settings.DTYPES[diffusers.dtype], diffusers.max_prompt_length
        phases["text encoding"] = text + self.passes.reading(dtype, prompts, length)
        if not config.is_rl:
            media = (min(config.sft.mini_batch, rows), config.item_frames, 3, *diffusers.inference_size)
            tiles = diffusers.vae_tiles is True
            phases["encoding of media"] = vae + self.passes.encoding(_vae_dtype(config), media, tiles)
        if config.is_rl:
            phases |= self._rollout(config, vae)
        if config.validation.enable:
            batch = settings.evaluation_sampler(config, 1.0).mini_batch
            phases["evaluation: decoding"] = vae + self._decoding(config, batch)
            phases["evaluation: sampling"] = self._sampling(config, batch)
        return phases

    def _rollout(self, config: Config, vae: int) -> dict[str, int]:
        """Scores are computed beside sampling, so their memory comes on top."""
        rows = self._rows(config.samples_per_step)
        batch = min(settings.at_once(config), rows)
        around = rows * self.passes.text_bytes  # once whole and once in mini-batches
        if self.scorers:
            height, width = config.policy.diffusers.inference_size
            media = 4 * batch * config.sample_frames * 3 * height * width
            around += self.scorers * config.policy.diffusers.offload + SCORING + 3 * media
        return {
            "rollout: sampling": around + self._sampling(config, batch),
            "rollout: decoding": around + vae + self._decoding(config, batch),
        }

    def _sampling(self, config: Config, batch: int) -> int:
        return self.passes.sampling(batch, self._guided(config))

    def _guided(self, config: Config) -> bool:
        """Whether a prediction is made of two passes."""
        return config.policy.diffusers.sample.guidance_scale > 1 and not self.passes.model.embeds_guidance

    def _decoding(self, config: Config, batch: int) -> int:
        return self.passes.decoding(_vae_dtype(config), batch, config.policy.diffusers.vae_tiles is True)

    def _optimiser(self, config: Config) -> int:
        """Gradients; Adam of foreach makes the roots of the second moments anew, and sums over ranks are copied."""
        master = self._master(config)
        sums = min(master, MESSAGE_BYTES) if self.world_size > 1 and self._share(config).whole else 0
        return master + max(master if config.train.optm_impl == "foreach" else 0, 2 * sums)


def _vae_dtype(config: Config) -> torch.dtype:
    return settings.vae_dtype(config) or settings.DTYPES[config.policy.diffusers.dtype]

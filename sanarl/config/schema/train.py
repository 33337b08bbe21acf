"""[train]: optimiser, schedule, dtypes, checkpoints, and the task in [train.train_policy]."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sanarl.config.schema.base import (
    Accepts,
    Arguments,
    Count,
    Dataset,
    Fraction,
    NotNegative,
    Positive,
    RepositoryName,
    Seed,
    Table,
    Text,
    Weights,
    WholeNumber,
)
from sanarl.config.schema.rewards import RemoteReward

WARMUP = Accepts("a whole number of steps, 0 or more, or a fraction of all steps between 0.0 and 1.0")


class Checkpoint(Table):
    """What is kept of a run."""

    enable_checkpoint: bool = False
    """Save checkpoints."""
    save_freq: Count = 20
    """Steps between checkpoints."""
    save_freq_in_epoch: WholeNumber = 0
    """Epochs between checkpoints; 0: save_freq counts."""
    save_mode: Literal["async", "sync"] = "async"
    """Write beside the training, or before it goes on."""
    max_keep: Annotated[int, Field(ge=-1, le=2**31 - 1)] = 5
    """Checkpoints that are kept, the newest; 0 or -1 keeps all."""
    export_safetensors: bool = True
    """Also write what diffusers loads: the adapter, or the whole pipeline."""
    upload_hf: bool = False
    """When the run has finished, upload its last export to the Hugging Face hub, where a private repository is made if
    there is none. The login is tried before training starts; an upload that fails leaves the run finished."""
    hf_repo_name: RepositoryName | None = None
    """With upload_hf: the repository, owner/name, or a name of whoever is logged in."""


def _one_sft(_: str) -> str:
    return "sft"


class SFTConfig(Table):
    """Supervised fine-tuning with the flow-matching loss."""

    type: Literal["sft"]
    """The task."""
    trainer_type: Annotated[Literal["sft", "diffusers_sft"], AfterValidator(_one_sft)] = "sft"
    """Both names are the same task."""
    dataset: Dataset = Dataset()
    mini_batch: Count = 2
    """Samples of one forward pass on one GPU; gradients are accumulated over a step."""
    dataloader_shuffle: bool = True
    """A new order every epoch."""
    dataloader_seed: Seed = 0
    """Seed of the order."""
    dataloader_num_workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Threads that read data; 0: the training itself reads."""
    dataloader_prefetch_factor: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Steps that they read ahead; unset: 1."""


class GRPOConfig(Table):
    """Reinforcement learning on groups of samples of a prompt."""

    type: Literal["grpo"]
    """The task."""
    trainer_type: Literal["diffusion_nft", "awm", "flow_grpo"]
    """The algorithm."""
    dataset: Dataset = Dataset()
    dataloader_shuffle: bool = True
    """A new order of prompts every epoch."""
    dataloader_seed: Seed = 0
    """Seed of the order."""
    mini_batch: Count = 2
    """Samples of one forward pass on one GPU; changes memory, never a result beyond rounding."""
    batch_size_per_optimize: Count | None = None
    """Samples of one optimiser step on one GPU of [policy.parallelism]; unset: one step for the whole rollout."""
    mu_iterations: Count = 1
    """Passes over a rollout."""
    epsilon_low: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    """Flow-GRPO and AWM: clip range of the ratio below 1. Log-probabilities are means over dimensions, so ratios are
    near 1."""
    epsilon_high: Annotated[float, Field(gt=0, le=100)] = 1e-4
    """Flow-GRPO and AWM: clip range of the ratio above 1."""
    ratio_norm: bool = False
    """Flow-GRPO: GRPO-Guard's ratio: centred on 1, and equally wide at every step."""
    step_reweighting: bool = False
    """Flow-GRPO: GRPO-Guard's weights: a step's policy loss is divided by its length in sigma."""
    kl_beta: NotNegative = 0.0
    """Weight of the distance to the reference: squared, of the velocities (DiffusionNFT, AWM); KL divergence of the
    stochastic steps (Flow-GRPO)."""
    old_kl_beta: NotNegative = 0.0
    """AWM: weight of the squared distance of the velocities to the old policy's."""
    matching_power: Annotated[float, Field(gt=0, le=1)] = 0.25
    """AWM: power of the flow-matching error that stands for a log-probability; 1: the error itself."""
    advantage_low: Annotated[float, Field(lt=0)] = -5.0
    """Advantages are clipped below; must be -advantage_high."""
    advantage_high: Annotated[float, Field(gt=0)] = 5.0
    """Advantages are clipped above."""
    advantage_mode: Literal["all", "positive_only", "negative_only", "one_only", "binary"] = "all"
    """Which advantages count: every one, one sign, all as 1, or their sign only."""
    reward_function: Weights = Field(default={})
    """Rewards scored in this process: name, or "module:function", -> weight."""
    reward_args: Arguments = Field(default={})
    """What those rewards are built with; docs/rewards.md names each one's arguments."""
    use_remote_reward: bool = False
    """Let a service score, as [train.train_policy.remote_reward] says."""
    remote_reward: RemoteReward = RemoteReward()


class Train(Table):
    """The run."""

    train_policy: Annotated[SFTConfig | GRPOConfig, Field(discriminator="type")]
    optm_name: Literal["AdamW", "Adam"] = "AdamW"
    """Optimiser."""
    optm_lr: Annotated[float, Field(gt=0, le=10)] = 1e-6
    """Learning rate."""
    optm_impl: Literal["fused", "foreach", "for-loop"] = "fused"
    """The optimiser's inner loop: speed, not numbers."""
    optm_weight_decay: NotNegative = 0.01
    """Weight decay."""
    optm_betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay of the first and second moment."""
    epsilon: Positive = 1e-6
    """Added to the root of the second moment."""
    optm_warmup_steps: Annotated[WholeNumber | Fraction, WARMUP] = 20
    """Optimiser steps in which the learning rate rises; with a decimal point a fraction of all steps."""
    optm_warmup_start_factor: Fraction = 0.0
    """Factor on the learning rate at the first step of the warm-up."""
    optm_decay_type: Literal["sqrt", "cosine", "linear", "none"] | None = None
    """How the learning rate falls at the end."""
    optm_decay_ratio: Fraction | None = None
    """Share of all steps in which it falls; unset with a decay type: everything after the warm-up."""
    optm_min_lr_factor: Fraction = 0.0
    """Factor on the learning rate at the end of the decay."""
    optm_grad_norm_clip: NotNegative = 1.0
    """Largest gradient norm of a step; 0: no clipping."""
    ema_enable: bool = False
    """Keep a moving average of the trained values; evaluation and export use it."""
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.9999
    """Largest decay; the effective one is min((1 + n) / (10 + n), ema_decay)."""
    ema_update_step_interval: Count = 1
    """Optimiser steps between updates of the average."""
    master_dtype: Literal["float32"] = "float32"
    """Of the values that the optimiser moves."""
    param_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the transformer's weights and arithmetic in forward and backward."""
    compile: bool = False
    """Compile the transformer's blocks: other rounding, a longer first step, shorter others."""
    fuse: bool | Literal["auto"] = "auto"
    """Do once what layers of SANA share: adapter products of query, key and value, with ranks filled up to multiples
    of 16; keys and values of captions for rows of one prompt. Other rounding, nothing else. "auto": on GPUs in
    bfloat16."""
    encode_ahead: bool = False
    """Fine-tuning without a cache: encode the items of the next step in a thread of its own, on a GPU on a stream of
    its own, while one trains. Changes no result; takes the memory of both at once. The stream was never run."""
    fsdp_reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """In which gradients are summed over ranks that share the weights of full fine-tuning."""
    fsdp_reshard_after_forward: Literal["default", "always", "never"] = "default"
    """Free a block's weights after its forward pass and gather them again for the backward pass; default: always."""
    fsdp_offload: bool = False
    """Keep each rank's part of the weights in host memory, and step the optimiser there."""
    train_batch_per_replica: Count = 8
    """SFT: samples of a step on each GPU of [policy.parallelism]. Reinforcement learning: samples of a rollout on
    each replica."""
    epoch: Count = 1
    """Passes over the data."""
    max_num_steps: Count | None = None
    """Stop after this many steps, whatever epoch says."""
    max_hours: Annotated[float, Field(gt=0, le=10_000)] | None = None
    """Stop after this many hours with a checkpoint, to go on later."""
    rank_timeout_s: Annotated[float, Field(gt=0, le=604_800)] = 1800.0
    """Seconds that ranks wait for each other, in a step or for a slow reward, before the run ends."""
    max_skipped_steps: Count = 5
    """Stop after this many steps in a row whose gradients were not finite."""
    seed: Seed = 0
    """Of every draw: noise, timesteps, orders."""
    deterministic: bool = False
    """Ask torch for deterministic kernels."""
    output_dir: Text = "./outputs"
    """Runs are written below."""
    resume: bool | Text = False
    """true: go on with the newest run of this configuration; a path: with that one; false: start anew."""
    save_ckpt_at_exit: bool = True
    """Save a checkpoint when the run is stopped."""
    ckpt: Checkpoint = Checkpoint()

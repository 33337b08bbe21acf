"""Training steps at full size with random weights: what benchmarks/train.py and benchmarks/scale.py share.

Speed and memory do not depend on the weights' values, so models are made on the card, in this process: random weights
of the published shapes, a stand-in for the text encoder (Gemma 2's width, few layers). The reward ``constant_time`` is
no reward: it takes a fixed time and returns the pixels' deviation. Nothing is saved and no sheets are drawn.
"""

import json
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sana_video_full_size as video
from stages import free, half_precision, measured

HERE = Path(__file__).resolve()
WEIGHTS = "random, shapes of SANA1.5_1.6B_1024px and SANA-Video_2B_480p"


class Noise(video.Clips):
    """As many items as a step takes, the same in every step, kept in memory."""

    def __init__(self, config):
        super().__init__(config)
        self.count, self.made = config.samples_per_step, {}

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index not in self.made:
            self.made[index] = super().__getitem__(index)
        return self.made[index]


def get_dataset(config):
    """Noise for SFT; prompts for reinforcement learning."""
    return [{"prompt": f"number {i} of a quiet harbour"} for i in range(64)] if config.is_rl else Noise(config)


def make_pairs(folder: Path, count: int, edge: int, caption: str = "number {} of a quiet harbour") -> None:
    """Pictures with captions: smooth noise."""
    import numpy as np
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(random.integers(0, 255, (32, 32, 3), dtype=np.uint8))
        coarse.resize((edge, edge), Image.Resampling.BICUBIC).save(folder / f"{i:03d}.jpg", quality=95)
        (folder / f"{i:03d}.json").write_text(json.dumps({"prompt": caption.format(i)}))


def constant_time(media, _prompts, _metadata):
    """No reward: it takes a fixed time and tells samples apart."""
    time.sleep(float(os.environ.get("REWARD_SECONDS", "0")))
    return media[:, 0].flatten(1).float().std(dim=1)


def pictures(device, text_layers: int):
    """SANA-1.5 1.6B with random bf16 weights, made on the device."""
    from diffusers import AutoencoderDC, FlowMatchEulerDiscreteScheduler, SanaPipeline, SanaTransformer2DModel
    from torch import device as on
    from transformers import Gemma2Config, Gemma2Model

    from sanarl.models.tiny import build_tokenizer

    tokenizer = build_tokenizer()
    layers = {"num_hidden_layers": text_layers, "vocab_size": len(tokenizer)}
    sides = {
        f"{side}_{key}": value
        for side, depths in (("encoder", (2, 2, 2, 3, 3, 3)), ("decoder", (3, 3, 3, 3, 3, 3)))
        for key, value in {
            "block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
            "block_out_channels": (128, 256, 512, 512, 1024, 1024),
            "layers_per_block": depths,
            "qkv_multiscales": ((), (), (), (5,), (5,), (5,)),
        }.items()
    }
    with on(device), half_precision():
        vae = AutoencoderDC(
            in_channels=3,
            latent_channels=32,
            attention_head_dim=32,
            downsample_block_type="conv",
            upsample_block_type="interpolate",
            scaling_factor=0.41407,
            **sides,
        )
        text_encoder = Gemma2Model(Gemma2Config(bos_token_id=2, eos_token_id=1, pad_token_id=0, **layers))
        transformer = SanaTransformer2DModel(qk_norm="rms_norm_across_heads")  # the class's defaults are SANA-1.5's
    return SanaPipeline(
        tokenizer=tokenizer,
        text_encoder=text_encoder.eval(),
        vae=vae.eval(),
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


def overrides(
    preset: str,
    keys: Mapping[str, Any],
    samples: int,
    steps: int,
    tiny: bool = False,
    mini_batch: int | None = None,
) -> list[str]:
    """What ``--set`` makes of a preset: so many samples and steps, on any number of ranks, without what is not timed.

    Args:
        preset: name of a shipped preset.
        keys: of the variant; they count most. samples: of a step, over all ranks; those that train.
        steps: of the run. tiny: for a model of a few thousand parameters.
        mini_batch: samples of a backward pass; None: as the preset says.
    """
    rl, clips = "-nft" in preset, "video" in preset
    shards = keys.get("policy.parallelism.dp_shard_size", 1) * keys.get("policy.parallelism.dp_replicate_size", 1)
    found: dict[str, Any] = {
        "train.max_num_steps": steps,
        "train.epoch": 1000,
        "train.optm_warmup_steps": 0,
        "validation.enable": False,
        "guards.enable": False,
        "logging.logger": [],
        "logging.report_mfu": True,
        "logging.multi_modal_log_interval": 10**6,
        "policy.parallelism.dp_shard_size": 1,
        "policy.parallelism.dp_replicate_size": 1,
        "policy.diffusers.offload": False,
        "train.ckpt.enable_checkpoint": False,
        "train.train_batch_per_replica": samples // shards,
    }
    if rl:
        group = min(samples, 24)
        found |= {"train.train_policy.use_remote_reward": False, "rollout.n_generation": group}
        found |= {"rollout.n_generation_mini_batch": group, "train.train_policy.batch_size_per_optimize": samples}
    if mini_batch is not None:
        found["train.train_policy.mini_batch"] = mini_batch
    if tiny:
        found |= {"policy.diffusers.inference_size": [32, 32], "policy.diffusers.max_prompt_length": 16}
        found |= {"policy.diffusers.inference_frames": 5} if clips else {}
        found |= {"policy.diffusers.train_frames": 5} if clips and not rl else {}
        found |= {"policy.lora.r": 4} if preset not in ("sana-image-sft", "sana-video-sft") else {}
    sets = [f"{key}={json.dumps(value)}" for key, value in (found | dict(keys)).items()]
    if rl:
        sets.append(f'train.train_policy.reward_function={{ "{HERE}:constant_time" = 1.0 }}')
    return sets


def complete(lines: list[dict[str, float]], steps: int) -> None:
    """Raise where a run ended early, as after a signal, or left steps out: its figures would be of something else."""
    if len(lines) < steps:
        raise RuntimeError(f"ended after {len(lines)} of {steps} steps")
    if left_out := [number for number, line in enumerate(lines, 1) if "loss" not in line]:
        raise RuntimeError(f"steps {left_out} were left out: a loss or gradient is not finite")


class Bench:
    """This rank, and the models, made anew for every variant."""

    def __init__(self, tiny: bool, text_layers: int, reward_seconds: float, timeout_s: float = 1800.0):
        import torch

        import sanarl.training.run  # noqa: F401  # seconds that belong to no step
        from sanarl.runtime.world import World

        self.tiny, self.text_layers, self.world = tiny, text_layers, World.start(timeout_s)
        self.device = self.world.device
        self.cuda = self.device.type == "cuda"
        self.card = torch.cuda.get_device_name() if self.cuda else "cpu"
        os.environ["REWARD_SECONDS"] = str(reward_seconds)

    def matmul_tflops(self) -> float | None:
        """bf16 products of square matrices on this card."""
        import torch

        if not self.cuda:
            return None
        a = torch.randn(8192, 8192, device=self.device, dtype=torch.bfloat16)
        for count in (5, 30):  # the first warms up
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(count):
                a @ a
            torch.cuda.synchronize()
        return round(2 * 8192**3 * 30 / (time.perf_counter() - started) / 1e12, 1)

    def load(self, settings, device):
        """The model as a configuration asks for it; the same weights on every rank and in every variant."""
        import torch

        from sanarl.models import tiny
        from sanarl.models.load import wrapped

        clips = settings.modality == "video"
        torch.manual_seed(0)
        if self.tiny:
            pipeline = tiny.random_video_pipeline() if clips else tiny.random_pipeline()
        else:
            pipeline = (video.published if clips else pictures)(self.device, self.text_layers)
            torch.nn.Module.to(pipeline.text_encoder, settings.other_dtype)
            torch.nn.Module.to(pipeline.vae, settings.vae_dtype or settings.other_dtype)
        return wrapped(pipeline, settings, device)

    def measure(
        self, name: str, preset: str, sets: list[str], limit: float, work=None, module: str | None = str(HERE)
    ) -> dict[str, Any]:
        """One variant, within the limit; never raises. ``work`` finds something else than the time of steps."""
        import torch

        result: dict[str, Any] = {"name": name, "preset": preset, "ranks": self.world.size, "set": sets}
        measured(result, limit, work or (lambda: self.steps(preset, sets, module)))
        torch.compiler.reset()  # graphs are counted by code, which the next variant shares
        torch.use_deterministic_algorithms(False)
        free()
        return result

    def steps(self, preset: str, sets: list[str], module: str | None, warm: int = 1) -> dict[str, Any]:
        """Take the steps of a configuration; the median of those after the first ones, which warm up and compile."""
        import torch

        from sanarl.config import load
        from sanarl.training import build, run

        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        config = load(preset, sets).config
        with build.parts(config, module, self.world, self.load) as made:
            lines, _ = run.measured(made, config.train.max_num_steps)
            found = self.exchange(made.policy) | {"memory_peak_gib": self._peaks(lines)}
            found |= self._arithmetic(config, made.model)
            plan = made.plan
        if not lines:  # not the main rank
            return {}
        complete(lines, config.train.max_num_steps)
        timed = lines[warm:] or lines
        seconds = {
            key: statistics.median(line[key] for line in timed)
            for key in timed[0]
            if key.startswith(("time/", "perf/"))
        }
        samples = config.samples_per_step
        train_ms = 1e3 * seconds["time/train"] / samples
        found |= {
            "samples_a_step": samples,
            "memory_plan": f"{plan.kind}: checkpointing {plan.checkpointing}, mini_batch {plan.mini_batch}",
            "losses": [line["loss"] for line in lines],
            "grad_norms": [line["grad_norm"] for line in lines],
            "medians": {key: round(value, 4) for key, value in seconds.items()},
            "first_step_s": round(lines[0]["time/step"], 2),
            "samples_a_second": round(samples / seconds["time/step"], 3),
            "ms_a_sample": round(1e3 * seconds["time/step"] / samples, 2),
            "ms_trained_a_sample_and_timestep": round(train_ms / found["timesteps"], 3),
            "trained_tflops_a_rank": round(
                found["tflop_trained_a_sample_and_timestep"]
                * samples
                * found["timesteps"]
                / seconds["time/train"]
                / self.world.size,
                1,
            ),
        }
        return found

    def _peaks(self, lines: list[dict[str, float]]) -> list[float]:
        """The most memory that tensors took on every rank, GiB; the main rank's own is read, and reset, every step."""
        import torch

        mine = torch.cuda.max_memory_allocated() / 2**30 if self.cuda else 0.0
        mine = max([mine, *(line.get("memory/peak_gib", 0.0) for line in lines)])
        return [round(peak, 2) for peak in self.world.gather_objects(mine)]

    def _arithmetic(self, config, model) -> dict[str, Any]:
        """How many timesteps a sample is trained on, and what that takes; see ``sanarl.runtime.meter``."""
        from sanarl.models.flops import ForwardFlops
        from sanarl.training import settings

        shape, timesteps, without = model.latent_shape, 1, 0
        if config.is_rl:
            num_steps = settings.rl_setup(config, model.flow_shift).sampler.num_steps
            timesteps = max(1, int(num_steps * config.policy.diffusers.timesteps_fraction + 1e-9))
            without = 1 + (config.grpo.kl_beta > 0)  # the old policy's pass and the reference's
        weights, attention = ForwardFlops(model)(shape, model.text_tokens)
        trained = 3 if config.policy.lora is None else 2
        flops = without * (weights + attention) + trained * weights + 3 * attention
        return {"timesteps": timesteps, "tflop_trained_a_sample_and_timestep": round(flops / 1e12, 3)}

    def exchange(self, policy) -> dict[str, Any]:
        """Milliseconds to sum an adapter's gradients over the ranks, by themselves: as the step does it, and the bare
        all-reduce of as many bytes; medians over 20, each after a barrier."""
        import torch
        import torch.distributed as dist

        if self.world.size == 1 or policy.is_sharded:
            return {}
        gradients = [torch.zeros_like(master) for master in policy.masters]
        flat = torch.cat([g.flatten() for g in gradients])

        def timed(work) -> float:
            seconds = []
            for _ in range(23):
                self.world.barrier()
                if self.cuda:
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    work()
                    end.record()
                    end.synchronize()
                    seconds.append(begin.elapsed_time(end))
                else:
                    started = time.perf_counter()
                    work()
                    seconds.append(1e3 * (time.perf_counter() - started))
            return round(statistics.median(seconds[3:]), 3)

        return {
            "gradient_bytes": flat.nbytes,
            "gradient_sum_ms": timed(lambda: self.world.sum_all(gradients)),
            "all_reduce_ms": timed(lambda: dist.all_reduce(flat)),
        }

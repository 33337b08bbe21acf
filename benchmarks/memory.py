"""Memory at full size on one GPU: what was predicted on shapes alone against what tensors took, and small cards.

    python benchmarks/memory.py [--only NAME ...] [--limit SECONDS] [--tiny] [--write [FOLDER]]

Every configuration is predicted (``sanarl train --dry-run`` prints the same numbers), then runs --steps steps, in this
process, with random weights of the published shapes: SANA-1.5 1.6B, SANA-Video 2B, their autoencoders, and Gemma 2 2B
with all of its layers and words (5.2 GB in bf16). A line says predicted, measured (``torch.cuda.max_memory_allocated``)
and their ratio; below it both by part and by phase, so that a part that is wrong can be found.

The card-N configurations have the process's share of the card capped at N GiB less what a CUDA context takes; they pass
when their steps are taken. card-16-nft is scored by ``constant_time``, no reward but a stand-in for a service's answer;
card-24-nft by PickScore in this process, with random weights of CLIP ViT-H/14's shape in float32 (3.9 GB).

A configuration that takes longer than --limit is broken off; the JSON is written again after each. --tiny tries all of
it on a CPU, where nothing is measured.
"""

import argparse
import json
import string
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from full_size import Bench, complete, constant_time, get_dataset, overrides  # noqa: F401  # two are named in configurations
from stages import head, keep

from sanarl.rewards.scorers.clip import Clip, PickScore

HERE = Path(__file__).resolve()
RESULTS = HERE.parent / "results"
GIB = 2**30
CONTEXT = int(0.6 * GIB)
"""What a CUDA context and its kernels take of a card, outside of torch's allocator."""
WORDS = 256_000
"""Gemma 2's."""
HALF = {"policy.diffusers.dtype": "bfloat16"}
SMALL = HALF | {"policy.diffusers.offload": True, "policy.model_gradient_checkpointing": True}
CACHED = SMALL | {"data.cache": "CACHE"}
FEW = {"policy.diffusers.timesteps_fraction": 0.2}

# name -> GiB of the card that it stands for, preset, samples of a step, samples of a backward pass, other keys
CONFIGURATIONS: dict[str, tuple[int | None, str, int, int, dict[str, Any]]] = {
    "card-12-sft-lora": (12, "sana-image-sft-lora", 2, 1, CACHED),
    "card-16-nft": (16, "sana-image-nft", 8, 2, SMALL | FEW | {"rollout.n_generation_mini_batch": 2}),
    "card-24-nft": (
        24,
        "sana-image-nft",
        8,
        4,
        SMALL | FEW | {"rollout.n_generation_mini_batch": 4, "REWARD": "RandomPickScore"},
    ),
    "card-48-sft": (48, "sana-image-sft", 4, 2, CACHED),
    "card-24-video-sft-lora": (24, "sana-video-sft-lora", 1, 1, SMALL),
    "sft-lora": (None, "sana-image-sft-lora", 8, 4, {"policy.diffusers.offload": True}),
    "sft-lora-selective": (
        None,
        "sana-image-sft-lora",
        8,
        8,
        CACHED | {"policy.model_gradient_checkpointing": "selective"},
    ),
    "sft-lora-off": (None, "sana-image-sft-lora", 8, 8, CACHED | {"policy.model_gradient_checkpointing": False}),
    "sft": (None, "sana-image-sft", 8, 8, CACHED | {"policy.model_gradient_checkpointing": False}),
    "nft-as-written": (None, "sana-image-nft", 24, 9, FEW),
    "nft-auto": (None, "sana-image-nft", 24, 9, HALF | FEW | {"policy.memory_plan": "auto"}),
    "flowgrpo": (None, "sana-image-flowgrpo", 4, 2, HALF | FEW),
    "video-sft-lora-off": (
        None,
        "sana-video-sft-lora",
        1,
        1,
        CACHED | {"policy.model_gradient_checkpointing": False},
    ),
    "video-nft": (None, "sana-video-nft", 2, 1, HALF | FEW),
    "nft-compiled": (
        None,
        "sana-image-nft",
        12,
        12,
        HALF | FEW | {"train.compile": True, "policy.model_gradient_checkpointing": False},
    ),
}


class RandomPickScore(PickScore):
    """PickScore's model of CLIP ViT-H/14's shape in float32, with random weights: its scores mean nothing."""

    def __init__(self):
        import torch
        from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer

        cuda = torch.cuda.is_available()
        letters = [*string.ascii_lowercase, *(f"{c}</w>" for c in string.ascii_lowercase)]
        vocabulary = {token: row for row, token in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
        wide = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 16}
        text = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
        small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
        ends = {"bos_token_id": len(letters), "eos_token_id": len(letters) + 1, "pad_token_id": len(letters) + 1}
        config = CLIPConfig(
            projection_dim=1024,
            text_config=(text if cuda else small) | ends,
            vision_config=(wide if cuda else small) | {"patch_size": 14},
        )
        self.clip = object.__new__(Clip)  # whose constructor reads files
        self.clip.dtype, self.clip.device = torch.float32, None
        with torch.device("cuda" if cuda else "cpu"):
            self.clip.model = CLIPModel(config).eval().requires_grad_(False)
        self.clip.model.to("cpu")
        self.clip.tokenizer = CLIPTokenizer(vocab=vocabulary, merges=[])
        self.clip.processor = CLIPImageProcessor()
        self.batch_size, self.frames, self.over = 16, 8, "mean"


class Watch:
    """The most that tensors take in every phase; allocations are counted as they are asked for, so nothing waits."""

    def __init__(self, cuda: bool):
        self.cuda, self.label = cuda, "between"
        self.peaks: dict[str, int] = {}
        self.reserved = self.held = 0
        self.switch("between")

    def switch(self, label: str) -> None:
        """What follows belongs to ``label``."""
        import torch

        if self.cuda:
            self.peaks[self.label] = max(self.peaks.get(self.label, 0), torch.cuda.max_memory_allocated())
            self.reserved = max(self.reserved, torch.cuda.max_memory_reserved())
            torch.cuda.reset_peak_memory_stats()
            if label == "training pass":
                self.held = max(self.held, torch.cuda.memory_allocated())
        self.label = label

    def around(self, owner: Any, name: str, label: str | Callable[[], str], stays: bool = False) -> None:
        """Let every call of a method be a phase, which goes on after it where it ``stays``."""
        inner = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            self.switch(label if isinstance(label, str) else label())
            try:
                return inner(*args, **named)
            finally:
                if not (stays and self.label == "training pass"):
                    self.switch("between")

        object.__setattr__(owner, name, call)


def watched(made: Any, cuda: bool) -> Watch:
    """A watch over the phases of a run."""
    import torch

    watch, model, policy = Watch(cuda), made.footprint.passes.model, made.policy
    watch.around(model, "encode_prompts", "text encoding")
    watch.around(model, "encode_media", "encoding of media")
    watch.around(model, "decode", "rollout: decoding")

    def of_pass() -> str:
        return "training pass" if torch.is_grad_enabled() else "passes without gradients"

    watch.around(policy, "velocity", of_pass, stays=True)
    watch.around(policy, "collect_gradients", "collecting gradients")
    return watch


class Memory(Bench):
    """The models with the real size of their text encoder."""

    def load(self, settings, device):
        """As ``Bench.load`` has it, with all of Gemma's words."""
        import full_size
        import torch

        from sanarl.models import tiny
        from sanarl.models.load import wrapped

        clips = settings.modality == "video"
        if self.tiny:
            return wrapped(tiny.random_video_pipeline() if clips else tiny.random_pipeline(), settings, device)
        torch.manual_seed(0)
        pipeline = (full_size.video.published if clips else full_size.pictures)(self.device, self.text_layers)
        pipeline.text_encoder.resize_token_embeddings(WORDS, mean_resizing=False)
        torch.nn.Module.to(pipeline.text_encoder, settings.other_dtype)
        torch.nn.Module.to(pipeline.vae, settings.vae_dtype or settings.other_dtype)
        return wrapped(pipeline, settings, device)

    def compared(self, name: str, sets: list[str]) -> dict[str, Any]:
        """Predict a configuration, take its steps within its share of the card, and compare."""
        import torch

        from sanarl.config import load
        from sanarl.training import build, run
        from sanarl.training.memory import planning, shortage

        card, preset, *_ = CONFIGURATIONS[name]
        config = load(preset, sets).config
        with build.parts(config, str(HERE), self.world, self.load) as made, shortage.explained(made):
            started = time.perf_counter()
            made.plan = plan = planning.predicted(made.plan, config, made.footprint, None)
            seconds = time.perf_counter() - started
            made.tried_rewards()
            found: dict[str, Any] = {"plan": plan.line(), "seconds_to_predict": round(seconds, 2)}
            found["predicted_gib"] = predicted = gib(plan.prediction.record())
            self._cap(card)
            watch = watched(made, self.cuda)
            try:
                lines, _ = run.measured(made, config.train.max_num_steps)
            finally:
                self._cap(None)
            complete(lines, config.train.max_num_steps)
            watch.switch("end")
            if card is not None:
                found["passes_on_a_card_of_gib"] = card
            if self.cuda:
                watch.peaks["between"] = max(
                    watch.peaks["between"], *(int(line["memory/peak_gib"] * GIB) for line in lines)
                )
                peak = max(watch.peaks.values())
                found |= {
                    "measured_gib": gib({"peak": peak, "held": watch.held, "phases": watch.peaks}),
                    "ratio": round(predicted["peak"] * GIB / peak, 3),
                    "reserved_over_peak": round(watch.reserved / peak, 3),
                    "at_the_end_gib": round(torch.cuda.memory_allocated() / GIB, 2),
                }
            found["seconds_a_step"] = [round(line["time/step"], 2) for line in lines]
        return found

    def _cap(self, card: int | None) -> None:
        """The share of the card that this process may have: all of it, or what a card of so many GiB would give."""
        import torch

        if not self.cuda:
            return
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(self.device).total_memory
        share = 1.0 if card is None else (card * GIB - CONTEXT) / total
        torch.cuda.set_per_process_memory_fraction(share, self.device)


def gib(values: dict[str, Any]) -> dict[str, Any]:
    """Bytes as GiB, at any depth."""
    return {
        key: gib(value) if isinstance(value, dict) else round(value / GIB, 3) if isinstance(value, int) else value
        for key, value in values.items()
    }


def chosen(name: str, steps: int, tiny: bool, place: Path) -> list[str]:
    """What ``--set`` makes of a configuration's preset."""
    _, preset, samples, mini_batch, keys = CONFIGURATIONS[name]
    reward = keys.get("REWARD", "constant_time")
    keys = {key: str(place / name) if value == "CACHE" else value for key, value in keys.items() if key != "REWARD"}
    if "flowgrpo" in preset:
        keys |= {"train.train_policy.use_remote_reward": False, "rollout.n_generation": samples}
        keys |= {"rollout.n_generation_mini_batch": samples, "train.train_policy.batch_size_per_optimize": samples}
    sets = overrides(preset, keys, samples, steps, tiny, mini_batch)
    sets = [line for line in sets if not line.startswith("train.train_policy.reward_function")]
    if preset.endswith(("nft", "flowgrpo")):
        sets.append(f'train.train_policy.reward_function={{ "{HERE}:{reward}" = 1.0 }}')
    return sets


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CONFIGURATIONS), default=list(CONFIGURATIONS))
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--limit", type=float, default=150.0, help="seconds that a configuration may take")
    parser.add_argument("--text-layers", type=int, default=26)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = options(arguments)
    bench, runs = Memory(asked.tiny, asked.text_layers, reward_seconds=0.05), []
    with tempfile.TemporaryDirectory() as place:
        for name in asked.only:
            sets = chosen(name, asked.steps, asked.tiny, Path(place))
            work = lambda name=name, sets=sets: bench.compared(name, sets)  # noqa: E731
            runs.append(run := bench.measure(name, CONFIGURATIONS[name][1], sets, asked.limit, work))
            said = run.get("failed", f"predicted / measured {run.get('ratio')}")
            print(f"{name}: {said}", flush=True)
            print(json.dumps({k: v for k, v in run.items() if k not in ("name", "set")}), flush=True)
            if asked.write is not None:
                print(f"wrote {keep(asked.write, head('memory', bench.card) | {'runs': runs})}", flush=True)
    off = {run["name"]: run["ratio"] for run in runs if "ratio" in run and abs(run["ratio"] - 1) > 0.1}
    print(f"more than 10 % off: {off or 'none'}; failed: {[r['name'] for r in runs if 'failed' in r] or 'none'}")
    return any("failed" in run for run in runs) or bool(off)


if __name__ == "__main__":
    sys.exit(main())

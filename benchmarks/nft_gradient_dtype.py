"""How far is the bf16 gradient of the DiffusionNFT loss from the float32 one? On the embedded trained model.

    python benchmarks/nft_gradient_dtype.py [--device cuda] [--write]

A rollout of tiny-image is made in float32 (8 prompts x 8, 10 Euler steps). The gradient of one whole step is computed
over the same draws in float32 and with the transformer in bfloat16, in two situations: on the first optimiser step of a
rollout, where old is the learner (its prediction is shared), and on the second, where old is one update (AdamW, 3e-4)
behind. There the two predictions differ by less than what bfloat16 rounds away. For the second also with the old
prediction from a bf16 copy into which the adapter was merged. Base weights are rounded to bf16 first, as published ones
are. Reported: ||g - g32|| / ||g32|| and the cosine, after one and after ten optimiser steps.
"""

import argparse
import datetime
import json
import platform
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch

from sanarl.algorithms import nft
from sanarl.maths.advantage import group_advantages
from sanarl.models.adapter import LoraSettings, add_adapter
from sanarl.models.load import ModelSettings, load_model
from sanarl.models.policy import Policy
from sanarl.rewards.scorers.shapes import Shapes
from sanarl.rollout.generate import Sampler, generate
from sanarl.shapes.captions import balanced
from sanarl.types import Rollout

RESULTS = Path(__file__).parent / "results"
TARGETS = [f"{a}.{p}" for a in ("attn1", "attn2") for p in ("to_q", "to_k", "to_v", "to_out.0")]
SETTINGS = nft.Settings(
    mini_batch=64,
    nft_beta=1.0,
    kl_beta=0.0,
    advantage_clip=5.0,
    advantage_mode="all",
    timesteps_fraction=0.3,
    decay_type=0,
)


def policy_in(dtype: torch.dtype, device: torch.device) -> Policy:
    sizes = {"size": (64, 64), "modality": "image", "frames": 1, "max_prompt_length": 12}
    prompts = {"complex_human_instruction": False, "motion_score": None}
    settings = ModelSettings(
        "tiny-image", None, dtype, torch.float32, **sizes, **prompts, offload=False, gradient_checkpointing=False
    )
    model = load_model(settings, device)
    with torch.no_grad():  # published SANA weights are bf16, so rounding them is no part of the question
        for weight in model.transformer.parameters():
            weight.copy_(weight.bfloat16())
    return Policy(model, add_adapter(model.transformer, LoraSettings(16, 32.0, TARGETS), 0), torch.float32, True)


def gradient(policy: Policy, rollout: Rollout) -> torch.Tensor:
    for master in policy.masters:
        master.grad = None
    for term in nft.terms(policy, rollout, SETTINGS, (0, 2)):
        (term.loss * term.weight).backward()
        policy.collect_gradients()
    return torch.cat([m.grad.flatten() for m in policy.masters]).double().cpu()


def merged_bf16_old(policy: Policy) -> None:
    """Let the old prediction come from weights with the adapter merged in and rounded to bf16."""
    layers = {
        n: m for n, m in policy.model.transformer.named_modules() if hasattr(m, "lora_A") and hasattr(m, "base_layer")
    }
    plain = policy.velocity

    def old_velocity(x_t: torch.Tensor, sigma: torch.Tensor, cond: object) -> torch.Tensor:
        if torch.is_grad_enabled():
            return plain(x_t, sigma, cond)
        kept = {}
        for name, layer in layers.items():
            kept[name] = (layer.base_layer.weight.data, layer.scaling["default"])
            delta = layer.lora_B["default"].weight.float() @ layer.lora_A["default"].weight.float() * kept[name][1]
            layer.base_layer.weight.data = (kept[name][0].float() + delta).bfloat16().to(kept[name][0].dtype)
            layer.scaling["default"] = 0.0
        out = plain(x_t, sigma, cond)
        for name, layer in layers.items():
            layer.base_layer.weight.data, layer.scaling["default"] = kept[name]
        return out

    policy.velocity = old_velocity


def compared(exact: Policy, rollout: Rollout, reference: torch.Tensor, device: torch.device, merged: bool) -> dict:
    """The gradient of a bf16 policy with the values of ``exact``, against ``reference``."""
    policy = policy_in(torch.bfloat16, device)
    with torch.no_grad():
        torch._foreach_copy_(list(policy.masters), list(exact.masters))
        torch._foreach_copy_(policy.sets["old"], exact.sets["old"])
    policy.publish()
    policy.old_is_learner = exact.old_is_learner
    if merged:
        merged_bf16_old(policy)
    g = gradient(policy, rollout)
    error = float((g - reference).norm() / reference.norm())
    return {"error": round(error, 4), "cosine": round(float(torch.cosine_similarity(g, reference, 0)), 5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False

    exact = policy_in(torch.float32, device)
    prompts = [p for p in balanced("dev", 8) for _ in range(8)]
    groups = torch.arange(64) // 8
    parts = list(generate(exact, prompts, torch.arange(64), groups, Sampler(10, 1.0, "euler", 1.0, 64), (0, 1)))
    media = torch.cat([m for _, _, m in parts])
    rewards = Shapes()(media, prompts, [{}] * 64)["reward"]
    advantages = group_advantages(rewards.cpu(), groups, False).to(device, torch.float32)
    rollout = replace(Rollout.cat([r for _, r, _ in parts]), advantages=advantages)
    optimizer = torch.optim.AdamW(exact.masters, lr=3e-4)
    rows = {}
    for update in range(1, 11):
        exact.blend_old(0.0)
        shared = gradient(exact, rollout)
        if update in (1, 10):
            rows[f"update {update}, old is the learner"] = compared(exact, rollout, shared, device, merged=False)
        optimizer.step()
        exact.publish()
        exact.learner_moved()
        if update in (1, 10):
            apart = gradient(exact, rollout)
            rows[f"update {update}, old one behind"] = compared(exact, rollout, apart, device, merged=False)
            rows[f"update {update}, old one behind and merged"] = compared(exact, rollout, apart, device, merged=True)
    for name, row in rows.items():
        print(f"{name:40} error {row['error']:7.2%}   cosine {row['cosine']:.5f}")
    if asked.write is not None:
        today = datetime.date.today().isoformat()
        card = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        versions = {n: version(n) for n in ("torch", "diffusers", "peft")}
        result = {"benchmark": "nft_gradient_dtype", "date": today, "card": card, "python": platform.python_version()}
        path = asked.write / f"nft_gradient_dtype_{card.replace(' ', '-').lower()}_{today}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result | {"versions": versions, "rows": rows}, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()

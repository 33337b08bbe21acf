"""Fixtures shared by all tests. The environment is set before torch is imported anywhere: one thread, no network."""

import atexit
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ["SANARL_HOME"] = tempfile.mkdtemp(prefix="sanarl-tests-")
atexit.register(shutil.rmtree, os.environ["SANARL_HOME"], ignore_errors=True)

ATTENTION = [f"attn{i}.{name}" for i in (1, 2) for name in ("to_q", "to_k", "to_v", "to_out.0")]


@pytest.fixture(autouse=True)
def _gradients_stay_on():
    """A test that leaves gradients switched off fails here, not in a test after it."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        pytest.fail("gradients were left switched off")


@pytest.fixture(scope="session")
def golden():
    """Published figures of solvers, SDE log-probabilities, NFT losses, advantages and decays."""
    return json.loads((Path(__file__).parent / "golden" / "diffusion_rl.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def saved_pipeline(tmp_path_factory):
    """A function that gives the folder of the smallest random pipeline (flow shift 3) for this many frames."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    from sanarl.models.tiny import random_pipeline, random_video_pipeline

    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    parent = tmp_path_factory.mktemp("pipeline")

    def folder(frames):
        path = parent / ("smallest" if frames == 1 else "smallest-clips")
        if not path.exists():
            (random_pipeline if frames == 1 else random_video_pipeline)(0, flow_shift=3.0).save_pretrained(path)
        return path

    return folder


@pytest.fixture(scope="session")
def pipeline_folder(saved_pipeline):
    """The smallest random pipeline for pictures, saved as diffusers does."""
    return saved_pipeline(1)


@pytest.fixture(scope="module")
def frames(request):
    """Frames of a sample: 1, a picture, unless a module is parametrised over both families."""
    return getattr(request, "param", 1)


@pytest.fixture(scope="module")
def make_sana(frames):
    """A function that wraps a fresh smallest pipeline; ``frames`` above 1 makes it one for video."""
    import torch

    from sanarl.models.base import Use
    from sanarl.models.sana import Sana
    from sanarl.models.tiny import random_pipeline, random_video_pipeline

    def make(
        seed=0, *, size=(32, 64), frames=frames, instruction=False, motion_score=None, dtype=torch.float32, **options
    ):
        pipeline = (random_pipeline if frames == 1 else random_video_pipeline)(seed, **options)
        torch.nn.Module.to(pipeline.transformer, dtype)  # without diffusers' remark on modules kept in float32
        use = Use(
            size=size,
            device=torch.device("cpu"),
            frames=frames,
            max_prompt_length=12,
            complex_human_instruction=instruction,
            motion_score=motion_score,
        )
        return Sana(pipeline, use)

    return make


FAMILIES = ("sana", "sana-video", "sd3", "flux")


@pytest.fixture(scope="session")
def random_family():
    """A function that gives the smallest random pipeline of a family; ``options`` are its constructor's."""

    def make(family, seed=0, **options):
        from sanarl.models import tiny, tiny_joint

        constructors = (
            tiny.random_pipeline,
            tiny.random_video_pipeline,
            tiny_joint.random_sd3_pipeline,
            tiny_joint.random_flux_pipeline,
        )
        return dict(zip(FAMILIES, constructors, strict=True))[family](seed, **options)

    return make


@pytest.fixture(scope="session")
def make_model(random_family):
    """A function that wraps a family's smallest pipeline in 32 x 64 pixels, prompts cut to 24 tokens."""
    import torch

    from sanarl.models.base import Use
    from sanarl.models.families import FAMILIES as TABLE

    def make(family, *, dtype=torch.float32, size=(32, 64), guidance_scale=1.0, offload=False, **options):
        pipeline = random_family(family, **options)
        torch.nn.Module.to(pipeline.transformer, dtype)  # without diffusers' remark on modules kept in float32
        use = Use(
            size=size,
            device=torch.device("cpu"),
            frames=5 if family == "sana-video" else 1,
            max_prompt_length=24,
            guidance_scale=guidance_scale,
            offload=offload,
        )
        return TABLE[type(pipeline).__name__].wrapper()(pipeline, use)

    return make


@pytest.fixture(scope="session")
def lora():
    """Settings of the adapter that tests use: its alpha differs from its rank."""
    from sanarl.models.adapter import LoraSettings

    return LoraSettings(r=4, alpha=8.0, target_modules=list(ATTENTION))


@pytest.fixture(scope="module")
def make_policy(make_sana, lora):
    """A function that gives a policy with an adapter, or without one (``settings=None``), and all value sets."""
    import torch

    from sanarl.models.adapter import add_adapter
    from sanarl.models.policy import Policy

    def make(settings=lora, *, kept_sets=True, model=None, **options):
        model = model or make_sana(**options)
        if settings is None:
            model.transformer.requires_grad_(True)
            start = {n: p.detach() for n, p in model.transformer.named_parameters()}
        else:
            start = add_adapter(model.transformer, settings, seed=1)
        return Policy(model, start, torch.float32, kept_sets)

    return make


@pytest.fixture
def load_config(tmp_path):
    """A function that reads TOML text, with ``key=value`` overrides, through a file as a person would."""
    from sanarl.config import load

    def read(text, *overrides):
        file = tmp_path / "preset.toml"
        file.write_text(text, encoding="utf-8")
        return load(file, overrides)

    return read


@pytest.fixture(scope="session")
def native_state():
    """A function that gives a transformer's weights in NVlabs/Sana's names; ``linear``: as LinearFFN."""
    import torch

    def write(transformer, linear):
        """The weights in NVlabs/Sana's names."""
        s = transformer.state_dict()
        out = {
            "x_embedder.proj.weight": s["patch_embed.proj.weight"],
            "x_embedder.proj.bias": s["patch_embed.proj.bias"],
            "attention_y_norm.weight": s["caption_norm.weight"],
            "final_layer.scale_shift_table": s["scale_shift_table"],
            "y_embedder.y_embedding": torch.zeros(3, 4),
            "pos_embed": torch.zeros(1, 4, 8),
        }
        for kind in ("weight", "bias"):
            out[f"y_embedder.y_proj.fc1.{kind}"] = s[f"caption_projection.linear_1.{kind}"]
            out[f"y_embedder.y_proj.fc2.{kind}"] = s[f"caption_projection.linear_2.{kind}"]
            out[f"t_embedder.mlp.0.{kind}"] = s[f"time_embed.emb.timestep_embedder.linear_1.{kind}"]
            out[f"t_embedder.mlp.2.{kind}"] = s[f"time_embed.emb.timestep_embedder.linear_2.{kind}"]
            out[f"t_block.1.{kind}"] = s[f"time_embed.linear.{kind}"]
            out[f"final_layer.linear.{kind}"] = s[f"proj_out.{kind}"]
        for n in range(len(transformer.transformer_blocks)):
            ours, theirs = f"transformer_blocks.{n}", f"blocks.{n}"
            out[f"{theirs}.scale_shift_table"] = s[f"{ours}.scale_shift_table"]
            out[f"{theirs}.attn.qkv.weight"] = torch.cat([s[f"{ours}.attn1.to_{x}.weight"] for x in "qkv"])
            for kind in ("weight", "bias"):
                out[f"{theirs}.attn.proj.{kind}"] = s[f"{ours}.attn1.to_out.0.{kind}"]
                out[f"{theirs}.cross_attn.q_linear.{kind}"] = s[f"{ours}.attn2.to_q.{kind}"]
                out[f"{theirs}.cross_attn.kv_linear.{kind}"] = torch.cat(
                    [s[f"{ours}.attn2.to_{x}.{kind}"] for x in "kv"]
                )
                out[f"{theirs}.cross_attn.proj.{kind}"] = s[f"{ours}.attn2.to_out.0.{kind}"]
                out[f"{theirs}.mlp.depth_conv.conv.{kind}"] = s[f"{ours}.ff.conv_depth.{kind}"]
            name, cut = ("linear", (..., 0, 0)) if linear else ("conv", ...)
            out[f"{theirs}.mlp.inverted_conv.{name}.weight"] = s[f"{ours}.ff.conv_inverted.weight"][cut]
            out[f"{theirs}.mlp.inverted_conv.{name}.bias"] = s[f"{ours}.ff.conv_inverted.bias"]
            out[f"{theirs}.mlp.point_conv.{name}.weight"] = s[f"{ours}.ff.conv_point.weight"][cut]
        return {key: value.clone() for key, value in out.items()}

    return write

"""[rollout] beside its sizes: pools, previews, engines; each case shows its key being honoured or refused."""

import pytest

from sanarl.config import ConfigError
from sanarl.errors import UserError
from sanarl.training.engine import check_scale

honours = pytest.mark.honours
POOL = ("rollout.n_candidates=8", "rollout.n_generation_mini_batch=8")
PREVIEW = (*POOL, "rollout.preview.num_steps=2")
FEW = 'rollout.preview.mode="emulated_fp8"'


def line(lab, *overrides):
    """What the first step says."""
    return lab.quick("nft", *lab.plain, *overrides).metrics[0]


def engine(lab, *overrides):
    """The report of what runs in what."""
    return (lab.quick("nft", *lab.plain, *overrides).folder / "engine.txt").read_text().splitlines()


@honours("rollout.n_candidates")
def test_candidates(lab, seen):
    # By hand: 3 prompts x 8 candidates in mini-batches of 8, 3 steps each; 4 a prompt train.
    found = lab.fresh("nft", *lab.plain, *POOL).metrics[0]
    assert seen.sizes(trained=False)[:9] == [8] * 9
    assert (found["pool/size"], found["group_size"]) == (8, 4)
    with pytest.raises(
        ConfigError, match=r"rollout\.n_candidates: found 2; accepted at least rollout\.n_generation = 4"
    ):
        lab.loaded("nft", "rollout.n_candidates=2")


@honours("rollout.select")
def test_which_train(lab):
    names = ("best_worst", "random", "mean_deviation", "extremes_random")
    keys = "rollout.n_candidates=15", "rollout.n_generation_mini_batch=15"
    spread = {name: line(lab, *keys, f'rollout.select="{name}"')["reward_std_mean"] for name in names}
    assert len(set(spread.values())) == 4
    assert spread["random"] < spread["best_worst"]
    assert lab.idle("nft", 'rollout.select="random"') == ["rollout.select"]


@honours("rollout.preview.num_steps")
@pytest.mark.parametrize("steps", [1, 2])
def test_steps_of_a_preview(lab, seen, steps):
    # By hand: 24 candidates in mini-batches of 8, then 12 in full: 8 and 4, 3 steps each.
    lab.fresh("nft", *lab.plain, *POOL, f"rollout.preview.num_steps={steps}")
    assert seen.sizes(trained=False)[: 3 * steps + 6] == [8] * 3 * steps + [8] * 3 + [4] * 3


@honours("rollout.preview.n_regenerate")
def test_how_many_are_drawn_again(lab, seen):
    lab.fresh("nft", *lab.plain, *PREVIEW, "rollout.preview.n_regenerate=6")
    assert seen.sizes(trained=False)[6:15] == [8] * 6 + [2] * 3  # 18 of 24
    with pytest.raises(ConfigError, match=r"n_regenerate: found 9; accepted 4 \(what trains\) to 8 \(candidates\)"):
        lab.loaded("nft", *PREVIEW, "rollout.preview.n_regenerate=9")
    assert lab.idle("nft", "rollout.preview.n_regenerate=4") == ["rollout.preview.n_regenerate"]


@honours("rollout.preview.select")
def test_which_are_drawn_again(lab):
    found = {name: line(lab, *PREVIEW, f'rollout.preview.select="{name}"') for name in ("best_worst", "random")}
    assert found["best_worst"]["preview/reward_mean"] == found["random"]["preview/reward_mean"]
    assert found["best_worst"]["reward_std_mean"] > found["random"]["reward_std_mean"]


@honours("rollout.preview.decode_scale")
def test_size_of_a_preview(lab):
    half = line(lab, *PREVIEW, "rollout.preview.decode_scale=0.5")
    assert half["preview/reward_mean"] != line(lab, *PREVIEW)["preview/reward_mean"]
    odd = "policy.diffusers.inference_size=[32, 64]", "rollout.preview.decode_scale=0.5"
    with lab.parts("nft", *PREVIEW, *odd):  # 4 x 8 cells
        pass
    with pytest.raises(UserError, match=r"decode_scale: found 0\.5; latents of 1 x 3 cells cannot be halved"):
        check_scale(lab.loaded("nft", *PREVIEW, *odd).config, (32, 1, 3))
    with pytest.raises(ConfigError, match=r"decode_scale: found 0\.25; accepted 1\.0 or 0\.5"):
        lab.loaded("nft", *PREVIEW, "rollout.preview.decode_scale=0.25")


@honours("rollout.preview.mode", "rollout.engine.mode")
@pytest.mark.parametrize("key", ["rollout.preview.mode", "rollout.engine.mode"])
def test_engines(lab, key):
    few = line(lab, *PREVIEW, f'{key}="emulated_fp8"', "rollout.engine.min_dim=0")
    full = line(lab, *PREVIEW)
    changed = few["preview/reward_mean"] != full["preview/reward_mean"]
    assert changed is (key == "rollout.preview.mode")
    if not changed:
        assert few["pool/reward_mean" if "pool/reward_mean" in few else "reward/mean"] != full["reward/mean"]
    with pytest.raises(UserError, match=rf'{key}: mode "compile_fp8" cannot run here: .*; "(compile|peft)" can'):
        lab.parts("nft", *PREVIEW, f'{key}="compile_fp8"')
    with pytest.raises(ConfigError, match=rf'{key}: found "compile"; accepted "peft": copies'):
        lab.loaded("nft", *PREVIEW, f'{key}="compile"', "policy.diffusers.is_video=true")


@honours("rollout.engine.min_dim", "rollout.engine.skip_modules")
def test_which_layers_are_quantised(lab):
    # 4 layers of each of 2 blocks are 16 wide at most, qkv is skipped by its name.
    counts = {
        keys: sum("emulated" in row for row in engine(lab, *PREVIEW, FEW, *keys))
        for keys in (
            ("rollout.engine.min_dim=16",),
            ("rollout.engine.min_dim=0",),
            ("rollout.engine.min_dim=0", "rollout.engine.skip_modules=[]"),
            ("rollout.engine.min_dim=0", 'rollout.engine.skip_modules=["mlp"]'),
        )
    }
    assert list(counts.values()) == [7, 13, 15, 11]  # the first line names the mode
    with pytest.raises(UserError, match="min_dim = 2240 and skip_modules leave no layer"):
        engine(lab, *PREVIEW, FEW)
    assert lab.idle("nft", *PREVIEW, "rollout.engine.min_dim=0") == ["rollout.engine.min_dim"]


@honours("rollout.engine.compile_mode")
def test_compile_mode(lab, monkeypatch):
    # torch is asked with it; nothing is compiled here.
    import torch

    asked = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda _, **named: asked.append(named["mode"]))
    monkeypatch.setattr("sanarl.runtime.hardware.cpu_compiler", lambda: (True, "g++"))
    keys = *PREVIEW, 'rollout.engine.mode="compile"'
    with lab.parts("nft", *keys, 'rollout.engine.compile_mode="max-autotune-no-cudagraphs"'):
        assert asked == ["max-autotune-no-cudagraphs"] * 2
    with lab.parts("nft", *keys):
        assert asked[2:] == ["default"] * 2
    assert lab.idle("nft", 'rollout.engine.compile_mode="default"') == ["rollout.engine.compile_mode"]


@honours("rollout.engine.decode_dtype")
def test_dtype_of_the_decoder(lab):
    import torch

    for given, expected in (((), torch.float32), (('rollout.engine.decode_dtype="bfloat16"',), torch.bfloat16)):
        with lab.parts("nft", *given) as made:
            assert {p.dtype for p in made.model.pipeline.vae.parameters()} == {expected}
            assert {p.dtype for p in made.model.pipeline.text_encoder.parameters()} == {torch.float32}
    half, full = (line(lab, *given)["reward/mean"] for given in (('rollout.engine.decode_dtype="bfloat16"',), ()))
    assert half != full
    assert half == pytest.approx(full, abs=0.01)  # of rewards between -1 and 1: as far as bf16 is from float32


@honours("rollout.engine.decode_compile")
def test_compiled_decoder(lab, monkeypatch):
    # What is compiled is asked of torch, and fewer samples are filled up: nothing is compiled here.
    import torch

    asked, sizes = [], []
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda module, **named: asked.append((type(module).__name__, named))
    )
    monkeypatch.setattr("sanarl.runtime.hardware.cpu_compiler", lambda: (True, "g++"))
    with lab.parts("nft", "rollout.engine.decode_compile=true", "rollout.n_generation_mini_batch=8") as made:
        assert asked == [("Decoder", {"dynamic": False})]
        made.model.pipeline.vae.decoder.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
        (said,) = made.engine.warm_up()
        assert said.startswith("decoder: compiled, channels last; warm-up ")
        assert made.model.decode(torch.zeros(3, *made.model.latent_shape)).shape[0] == 3
    assert sizes == [8, 8]
    with pytest.raises(
        ConfigError, match="decode_compile: found true; accepted false: the decoder is compiled for pic"
    ):
        lab.loaded("nft", "rollout.engine.decode_compile=true", "policy.diffusers.is_video=true")


@pytest.mark.parametrize(
    "key", ["rollout.n_candidates=8", "rollout.preview.num_steps=2", 'rollout.engine.mode="emulated_fp8"']
)
def test_flow_grpo_refuses(lab, key):
    with pytest.raises(ConfigError, match="flow_grpo learns from every step of the samples that it draws"):
        lab.loaded("flowgrpo", key)

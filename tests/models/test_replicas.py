"""Copies that sample. References: the policy that they copy; formats by closed forms and torch's own casts."""

import dataclasses

import pytest
import torch

from sanarl.errors import UserError
from sanarl.models.adapter import LoraSettings
from sanarl.models.quantize import Rule, fp4_rounded, fp8_rows
from sanarl.models.replicas import Replica, ReplicaSettings

EVERYTHING = Rule(skip_modules=(), min_dim=0)
SOL_RL = Rule(
    skip_modules=(
        "t_embedder",
        "t_block",
        "cfg_embedder",
        "y_embedder",
        "x_embedder",
        "final_layer",
        "logvar_linear",
        "attn.qkv",
    ),
    min_dim=2240,
)


def settings(mode="emulated_fp8", rule=EVERYTHING, batch=4):
    return ReplicaSettings(mode=mode, rule=rule, compile_mode="default", batch=batch)


def asked(policy, rows=3):
    cond = policy.model.encode_prompts(["a red circle", "two blue squares", "two blue squares"][:rows])
    x = torch.randn(rows, *policy.model.latent_shape, generator=torch.Generator().manual_seed(0))
    return x, torch.linspace(0.9, 0.2, rows), cond


def far(policy, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(v.shape, generator=rng) / 4 for v in policy.masters]


def distance(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def test_outputs_against_the_policy(make_policy):
    """A rule that quantises nothing leaves rounding in float32; batches are filled up without a trace."""
    policy = make_policy()
    replica = Replica(policy, settings(rule=Rule((), min_dim=10_000)))
    x, sigma, cond = asked(policy)
    for values in (far(policy), far(policy, 1)):
        with policy.using(values), torch.no_grad():
            replica.sync()
            expected = policy.velocity(x, sigma, cond)
        assert distance(replica.velocity(x, sigma, cond), expected) < 2e-6
        assert distance(replica.velocity(x[:1], sigma[:1], cond[torch.tensor([0])]), expected[:1]) < 2e-6


def test_guidance(make_policy):
    policy = make_policy()
    replica = Replica(policy, settings(rule=Rule((), min_dim=10_000)))
    x, sigma, cond = asked(policy)
    empty = replica.empty_prompt(4.5)
    with torch.no_grad():
        expected = policy.guided_velocity(x, sigma, cond, empty, 4.5)
    assert distance(replica.guided_velocity(x, sigma, cond, empty, 4.5), expected) < 5e-6


@pytest.mark.parametrize(("mode", "worst"), [("emulated_fp8", 0.1), ("emulated_nvfp4", 0.6)])
def test_what_a_synthetic_adapter_changes(make_policy, mode, worst):
    warm = Replica(make_policy(), settings(mode)).warm_up()
    assert 0.001 < warm.error < worst
    assert warm.graphs == 0


def test_a_copy_without_its_adapter_is_found(make_policy, monkeypatch):
    from sanarl.models.live import LiveLinear

    replica = Replica(make_policy(), settings())
    monkeypatch.setattr(LiveLinear, "take_adapters", lambda _: torch.tensor(True))
    with pytest.raises(UserError, match=r"changes its output by 100\.0% differently"):
        replica.warm_up()


def test_values_that_did_not_arrive_are_found(make_policy):
    policy = make_policy()
    replica = Replica(policy, settings())
    values = far(policy)
    values[3] = torch.full_like(values[3], float("nan"))  # equal to nothing
    with policy.using(values), pytest.raises(RuntimeError, match=r"did not arrive in blocks\.0\.\w+$"):
        replica.sync()


def test_keys_of_captions_follow_the_adapter(make_policy):
    """They are kept between steps, and must go when the values of their layer change."""
    policy = make_policy()
    replica = Replica(policy, settings(rule=Rule((), min_dim=10_000)))
    x, sigma, cond = asked(policy)
    before = replica.velocity(x, sigma, cond)
    values = [v if ".attn2.to_k." in n else torch.zeros_like(v) for n, v in zip(policy.names, far(policy), strict=True)]
    with policy.using(values), torch.no_grad():
        replica.sync()
        expected = policy.velocity(x, sigma, cond)
    assert distance(replica.velocity(x, sigma, cond), expected) < 2e-6
    assert distance(expected, before) > 1e-3


@pytest.mark.parametrize("target", ["proj_out", "caption_projection.linear_1"])
def test_adapters_without_a_place_are_refused(make_policy, target):
    policy = make_policy(LoraSettings(r=2, alpha=2.0, target_modules=["attn1.to_q", target]))
    with pytest.raises(UserError, match=rf"{target} cannot be adapted in mode emulated_fp8.*mode = \"peft\""):
        Replica(policy, settings())


def test_video_is_refused(make_policy):
    with pytest.raises(UserError, match="found a SanaVideoTransformer3DModel"):
        Replica(make_policy(size=(32, 32), frames=5), settings())


# ---- which layers


def test_sol_rls_layers_at_full_size():
    """Reference: their rule applied to their own module names, written out; the shapes are SANA 1.6B's."""
    from diffusers import SanaTransformer2DModel

    from sanarl.models.native import linear_layers

    with torch.device("meta"):
        transformer = SanaTransformer2DModel()
    replaced, skipped = set(), set()
    for layer in linear_layers(transformer):
        (skipped if SOL_RL.reason(layer.name, layer.in_features, layer.out_features) else replaced).add(layer.name)
    inside = ["mlp.inverted_conv.linear", "mlp.point_conv.linear", "cross_attn.kv_linear"]
    left = ["attn.qkv", "attn.proj", "cross_attn.q_linear", "cross_attn.proj"]
    outside = ["t_embedder.mlp.0", "t_embedder.mlp.2", "t_block.1", "final_layer.linear"]
    outside += ["y_embedder.y_proj.fc1", "y_embedder.y_proj.fc2"]
    assert replaced == {f"blocks.{n}.{name}" for n in range(20) for name in inside}
    assert skipped == {f"blocks.{n}.{name}" for n in range(20) for name in left} | set(outside)
    assert (len(replaced), len(skipped)) == (60, 86)


def test_the_report_is_read_from_the_modules_that_run(make_policy):
    policy = make_policy()
    rule = Rule(skip_modules=("attn.qkv", "final_layer"), min_dim=16)
    replica = Replica(policy, settings("emulated_nvfp4", rule))
    names = {f"blocks.{n}.{x}" for n in (0, 1) for x in ("cross_attn.kv_linear", "mlp.inverted_conv.linear")}
    names |= {f"blocks.{n}.mlp.point_conv.linear" for n in (0, 1)}
    assert set(replica.report.replaced) == names
    assert replica.report.skipped["blocks.0.attn.qkv"] == "its name contains attn.qkv"
    assert replica.report.skipped["blocks.0.attn.proj"] == "no side is larger than 16"
    assert replica.report.skipped["t_block.1"] == "it is outside the blocks"
    assert str(replica.report) == "emulated NVFP4 (E2M1 in blocks of 16) in 6 linear layers, 14 skipped"
    replica.transformer.blocks[1].point.base = torch.nn.Linear(32, 16, bias=False)
    from sanarl.models.quantize import report

    assert len(report(replica.layers, [], rule).replaced) == 5


# ---- formats


def test_fp8_is_torchs_cast_with_a_scale_a_row():
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1e-4], [1.0], [30.0], [5], [0]])
    rows, scale = fp8_rows(x)
    assert rows.dtype == torch.float8_e4m3fn
    assert torch.equal(rows.float().abs().amax(1)[:4], torch.full((4,), 448.0))
    back = rows.float() * scale
    assert torch.equal(back[4], torch.zeros(32))
    # Three bits after the leading one: half a step of the value, or of the smallest step near zero.
    assert bool(((back - x).abs() <= x.abs() / 16 + scale * 2**-10).all())


def test_fp4_in_closed_cases():
    """One block whose largest entry is 6: the grid itself is kept, and ties go to the even neighbour."""
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -6, -0.5, -3, 0, 1, 1, 1, 1.0])
    assert torch.equal(fp4_rounded(grid[None])[0], grid)
    ties = torch.tensor(
        [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, *[-x for x in (0.25, 0.75, 1.25, 1.75)], 0.3, 2.4, 5.1, 0]
    )
    expected = torch.tensor([0.0, 1, 1, 2, 2, 4, 4, 6, 0, -1, -1, -2, 0.5, 2, 6, 0])
    assert torch.equal(fp4_rounded(ties[None])[0], expected)


def test_fp4_blocks_have_their_own_scales():
    """A block a hundred times smaller keeps its shape; its scale has E4M3's precision of 1/16."""
    grid = torch.tensor([0.5, 1, 1.5, 2, 3, 4, 6, 6] * 2)
    found = fp4_rounded(torch.cat([grid, grid / 100])[None])[0]
    assert torch.equal(found[:16], grid)
    assert distance(found[16:], grid / 100) < 1 / 16
    assert torch.equal(fp4_rounded(torch.zeros(2, 32)), torch.zeros(2, 32))


def test_fp4_and_fp8_errors_of_normal_products():
    """Products of two rounded factors: 3.5 % off in FP8, as its 4 significant bits give, about 13 % in NVFP4."""
    rng = torch.Generator().manual_seed(0)
    x, w = torch.randn(64, 256, generator=rng), torch.randn(128, 256, generator=rng)
    assert 0.10 < distance(fp4_rounded(x) @ fp4_rounded(w).T, x @ w.T) < 0.16
    (a, s), (b, t) = fp8_rows(x), fp8_rows(w)
    assert 0.02 < distance((a.float() * s) @ (b.float() * t).T, x @ w.T) < 0.05


def test_emulated_layers_compute_what_they_say():
    from sanarl.models.quantize import EmulatedFp8Linear, EmulatedNvfp4Linear

    linear = torch.nn.Linear(32, 48)
    x = torch.randn(2, 5, 32)
    with torch.no_grad():
        found = EmulatedNvfp4Linear(linear)(x)
        expected = torch.nn.functional.linear(
            torch.stack([fp4_rounded(one) for one in x]), fp4_rounded(linear.weight), linear.bias
        )
        assert distance(found, expected) < 1e-6
        (a, s), (b, t) = fp8_rows(x.flatten(0, 1)), fp8_rows(linear.weight)
        expected = (a.float() * s) @ (b.float() * t).T + linear.bias
        assert distance(EmulatedFp8Linear(linear)(x).flatten(0, 1), expected) < 1e-6


@pytest.mark.parametrize("mode", ["emulated_fp8", "emulated_nvfp4"])
def test_a_sample_does_not_depend_on_its_batch(make_policy, mode):
    """Beside a sample a thousand times larger, which would take the range of a scale that both share."""
    replica = Replica(make_policy(size=(32, 32)), settings(mode))
    replica.sync()
    x, _, cond = asked(replica.policy, 2)
    x[1] *= 1000
    sigma = torch.tensor([0.7, 0.7])
    alone = replica.velocity(x[:1], sigma[:1], cond[torch.tensor([0])])
    assert distance(replica.velocity(x, sigma, cond)[:1], alone) < 1e-5


def test_settings_that_compile():
    assert settings("compile").compiles
    assert not settings("emulated_nvfp4").compiles
    assert dataclasses.replace(settings(), mode="compile_fp8").compiles


@pytest.mark.parametrize("renamed", [True, False])
def test_transformer_engine_up_to_its_call(make_policy, monkeypatch, renamed):
    """A stand-in with TransformerEngine's names, of 2.9 and of before: what it is asked, not what it computes."""
    import sys
    from contextlib import contextmanager
    from types import ModuleType

    active, asked_with = [], []

    class Linear(torch.nn.Linear):
        def __init__(self, rows, columns, bias, params_dtype, device):
            super().__init__(rows, columns, bias=bias, dtype=params_dtype, device=device)

        def forward(self, x):
            assert active
            return super().forward(x)

    @contextmanager
    def autocast(**named):
        asked_with.append({name: type(value).__name__ for name, value in named.items()})
        active.append(1)
        yield
        active.pop()

    modules = {f"transformer_engine{x}": ModuleType("x") for x in ("", ".pytorch", ".common", ".common.recipe")}
    modules["transformer_engine.common.recipe"].NVFP4BlockScaling = type("NVFP4BlockScaling", (), {})
    modules["transformer_engine.pytorch"].Linear = Linear
    modules["transformer_engine"].pytorch = modules["transformer_engine.pytorch"]
    setattr(modules["transformer_engine.pytorch"], "autocast" if renamed else "fp8_autocast", autocast)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda *_, **__: None)
    policy = make_policy(dtype=torch.bfloat16)
    replica = Replica(policy, settings("compile_nvfp4"))
    x, sigma, cond = asked(policy)
    with torch.no_grad():
        assert distance(replica.velocity(x, sigma, cond), policy.velocity(x, sigma, cond)) < 0.02
    keyword = "recipe" if renamed else "fp8_recipe"
    assert asked_with[0] == {"enabled": "bool", keyword: "NVFP4BlockScaling"}
    assert set(replica.report.replaced.values()) == {"NVFP4 (TransformerEngine; never run by its authors)"}


@pytest.mark.slow
def test_compiled_blocks_are_compiled_once(make_policy):
    """Reference: the policy in bf16. Other noise levels, prompts, batches and values compile nothing anew."""
    from sanarl.models.replicas import compiled_graphs

    policy = make_policy(dtype=torch.bfloat16)
    replica = Replica(policy, settings("compile"))
    warm = replica.warm_up()
    assert warm.graphs >= 1
    assert warm.error < 0.1
    x, sigma, cond = asked(policy)
    before = compiled_graphs()
    for values in (far(policy), far(policy, 1)):
        with policy.using(values), torch.no_grad():
            replica.sync()
            for rows in (3, 1):
                some = torch.arange(rows)
                expected = policy.velocity(x[some], sigma[some] / 2, cond[some])
                assert distance(replica.velocity(x[some], sigma[some] / 2, cond[some]), expected) < 0.02
    assert compiled_graphs() == before

"""Exports and copies of SD3.5 and FLUX.1. References: what the policy predicts, and diffusers' loading."""

import copy

import pytest
import torch
from diffusers import DiffusionPipeline

from sanarl.errors import UserError
from sanarl.models.adapter import LoraSettings, add_adapter
from sanarl.models.copies import PlainCopy
from sanarl.models.export import export
from sanarl.models.live import as_it_is
from sanarl.models.policy import Policy
from sanarl.models.quantize import Rule
from sanarl.models.replicas import Replica, ReplicaSettings, compiled_graphs
from sanarl.types import Cond

pytestmark = pytest.mark.parametrize("family", ["sd3", "flux"])
EIGHT = ["attn.add_k_proj", "attn.add_q_proj", "attn.add_v_proj", "attn.to_add_out", "attn.to_k", "attn.to_out.0"]
TARGETS = {"sd3": [*EIGHT, "attn.to_q", "attn.to_v"], "flux": ["to_q", "to_k", "to_v", "to_out.0"]}
"""As the presets choose them."""
PROMPTS = ["a red circle", "two blue squares", "two blue squares"]
NOTHING = Rule((), min_dim=10_000)


@pytest.fixture
def make(family, make_model):
    """A function that gives a policy with the presets' layers adapted, or with all weights in the slot."""

    def policy(adapter=True, guidance_scale=3.5, **options):
        model = make_model(family, guidance_scale=guidance_scale, **options)
        if not adapter:
            model.transformer.requires_grad_(True)
            start = {n: p.detach() for n, p in model.transformer.named_parameters()}
        else:
            settings = LoraSettings(r=2, alpha=8.0, target_modules=TARGETS[family])
            start = add_adapter(model.transformer, settings, seed=1)
        return Policy(model, start, torch.float32, kept_sets=adapter)

    return policy


@torch.no_grad()
def moved(policy, size=0.1):
    g = torch.Generator().manual_seed(2)
    for master in policy.masters:
        master += size * torch.randn(master.shape, generator=g)
    policy.publish()
    return policy


def asked(policy, rows=3):
    cond = policy.model.encode_prompts(PROMPTS[:rows])
    x = torch.randn(rows, *policy.model.latent_shape, generator=torch.Generator().manual_seed(0))
    return x, torch.linspace(0.9, 0.2, rows), cond


@torch.no_grad()
def prediction(policy, transformer):
    model = copy.copy(policy.model)
    model.transformer = transformer
    return model.velocity(*asked(policy))


def distance(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


# ---- exports


def test_an_exported_adapter_predicts_what_the_trainer_did(make, family, random_family, tmp_path):
    policy = moved(make())
    export(policy, policy.masters, tmp_path, "# a card")
    fresh = random_family(family)
    before = prediction(policy, copy.deepcopy(fresh.transformer))
    fresh.load_lora_weights(tmp_path)
    wanted = prediction(policy, policy.model.transformer)
    assert distance(prediction(policy, fresh.transformer), wanted) < 1e-5
    assert distance(before, wanted) > 1e-2


def test_an_exported_pipeline_predicts_what_the_trainer_did(make, tmp_path):
    policy = moved(make(adapter=False))
    export(policy, policy.masters, tmp_path / "out", "# a card")
    found = DiffusionPipeline.from_pretrained(tmp_path / "out")
    assert type(found) is type(policy.model.pipeline)
    assert torch.equal(
        prediction(policy, found.transformer.requires_grad_(False)), prediction(policy, policy.model.transformer)
    )


# ---- copies that sample


def settings(mode="emulated_fp8", rule=NOTHING, batch=4):
    return ReplicaSettings(mode=mode, rule=rule, compile_mode="default", batch=batch)


def test_a_copy_is_the_policy(make):
    """A rule that quantises nothing leaves rounding in float32; batches are filled up without a trace."""
    policy = make()
    replica = Replica(policy, settings())
    x, sigma, cond = asked(policy)
    g = torch.Generator().manual_seed(5)
    for _ in range(2):
        values = [torch.randn(v.shape, generator=g) / 4 for v in policy.masters]
        with policy.using(values), torch.no_grad():
            replica.sync()
            expected = policy.velocity(x, sigma, cond)
            empty = policy.model.encode_prompts([""])
            guided = policy.guided_velocity(x, sigma, cond, empty, 3.0)
        assert distance(replica.velocity(x, sigma, cond), expected) < 2e-6
        assert distance(replica.velocity(x[:1], sigma[:1], cond[torch.tensor([0])]), expected[:1]) < 2e-6
        assert distance(replica.guided_velocity(x, sigma, cond, empty, 3.0), guided) < 5e-6
    assert {name.partition(".lora_")[0] for name in policy.names} == {
        name for name, live in replica.layers.items() if live.is_adapted
    }


def test_a_copy_shares_no_memory_and_keeps_what_is_kept_in_float32(make):
    policy = make(dtype=torch.bfloat16)
    with torch.no_grad():
        policy.model.transformer.norm_out.linear.bias.data = policy.model.transformer.norm_out.linear.bias.float()
    made = PlainCopy(policy.model, torch.bfloat16, as_it_is)
    theirs = {p.data_ptr() for p in (*policy.model.transformer.parameters(), *policy.model.transformer.buffers())}
    mine = [t for t in (*made.transformer.parameters(), *made.transformer.buffers()) if t.numel()]
    assert not theirs & {t.data_ptr() for t in mine}
    assert {t.dtype for t in mine} == {torch.bfloat16}
    assert next(policy.model.transformer.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize(("mode", "worst"), [("emulated_fp8", 0.1), ("emulated_nvfp4", 0.6)])
def test_what_a_synthetic_adapter_changes(make, mode, worst):
    warm = Replica(make(), settings(mode, Rule(("norm", "embed"), 0))).warm_up()
    assert 0.001 < warm.error < worst
    assert warm.graphs == 0


def test_an_adapter_on_a_convolution_has_no_place(family, make_model):
    if family == "flux":
        return  # it has none
    model = make_model(family)
    start = add_adapter(model.transformer, LoraSettings(r=2, alpha=2.0, target_modules=["pos_embed.proj"]), seed=0)
    policy = Policy(model, start, torch.float32, kept_sets=True)
    with pytest.raises(UserError, match=r"pos_embed\.proj cannot be adapted in mode emulated_fp8.*on linear layers"):
        Replica(policy, settings())


def test_sol_rls_layers_at_full_size(family):
    """Reference: Sol-RL's rule on diffusers' names, written out for the published shapes; here the last layer stays."""
    from diffusers import FluxTransformer2DModel, SD3Transformer2DModel

    from sanarl.models.copies import _linear
    from sanarl.models.joint_layers import FLUX_LARGEST, SD3_LARGEST

    with torch.device("meta"):
        if family == "flux":
            transformer = FluxTransformer2DModel(**FLUX_LARGEST)
            rule = Rule(("x_embedder", "context_embedder", "time_text_embed", "norm_out"), 1000)
        else:
            large = SD3_LARGEST | {"dual_attention_layers": (), "caption_projection_dim": 2432, "qk_norm": "rms_norm"}
            transformer = SD3Transformer2DModel(**large)
            rule = Rule(("pos_embed", "context_embedder", "time_text_embed", "norm_out", "norm1", "ff_context"), 2432)
    layers = {name: (m.in_features, m.out_features) for name, m in _linear(transformer)}
    taken = {name for name, shape in layers.items() if rule.reason(name, *shape) is None}
    if family == "sd3":  # 2432 wide, so that only the feed-forward layers have a larger side
        assert taken == {f"transformer_blocks.{n}.ff.net.{x}" for n in range(38) for x in ("0.proj", "2")}
    else:  # 3072 wide: everything inside the blocks, modulation too, and the last layer
        inside = {name for name in layers if "transformer_blocks." in name}
        assert taken == {*inside, "proj_out"}
        assert len(inside) == 19 * 14 + 38 * 6


def test_the_report_names_every_layer(make, family):
    replica = Replica(make(), settings("emulated_nvfp4", Rule(("norm", "embed"), 16)))
    names = {n for n, m in replica.policy.model.transformer.named_modules() if isinstance(m, torch.nn.Linear)}
    names = {n.removesuffix(".base_layer") for n in names if ".lora_" not in n}
    assert set(replica.report.replaced) | set(replica.report.skipped) == names
    block = "transformer_blocks.0"
    assert replica.report.replaced[f"{block}.ff.net.2"] == "emulated NVFP4 (E2M1 in blocks of 16)"
    assert replica.report.skipped[f"{block}.attn.to_q"] == "no side is larger than 16"
    assert replica.report.skipped[f"{block}.norm1.linear"] == "its name contains norm"
    assert ("single_transformer_blocks.0.proj_out" in replica.report.replaced) == (family == "flux")
    all_of_them = Replica(make(), settings("emulated_nvfp4", Rule(("norm", "embed"), 0))).report
    assert all_of_them.skipped["proj_out"] == "it is outside the blocks"
    assert f"{block}.attn.to_q" in all_of_them.replaced


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_no_kind_of_block_is_given_up_on(family, random_family):
    """Policy and copy share diffusers' code: three kinds of block, with and without gradients, and live layers.

    Reference: torch's own counters; what it gives up on is a frame that is not ok.
    """
    from torch._dynamo.utils import counters

    from sanarl.models.base import Use, compile_each, repeated_blocks
    from sanarl.models.families import FAMILIES

    torch._dynamo.reset()
    pipeline = random_family(family)
    kinds = {"dual_attention_layers": (0, 1)} if family == "sd3" else {"num_single_layers": 4}
    config = {**pipeline.transformer.config, "num_layers": 4, **kinds}
    pipeline.register_modules(transformer=type(pipeline.transformer).from_config(config).eval())
    use = Use((32, 64), torch.device("cpu"), max_prompt_length=24)
    model = FAMILIES[type(pipeline).__name__].wrapper()(pipeline, use)
    settings = LoraSettings(r=2, alpha=8.0, target_modules=TARGETS[family])
    policy = Policy(model, add_adapter(model.transformer, settings, seed=1), torch.float32, kept_sets=True)
    copied = PlainCopy(model, torch.float32, as_it_is)
    compile_each(repeated_blocks(model.transformer), backend="eager")
    compile_each(copied.blocks, backend="eager", dynamic=False, fullgraph=True)
    x, sigma, cond = asked(policy)
    counters.clear()
    for rows in (3, 2):  # as an evaluation has another batch than training
        some = torch.arange(rows)
        policy.velocity(x[some], sigma[some], cond[some]).sum().backward()
        with torch.no_grad():
            expected = policy.velocity(x[some], sigma[some], cond[some])
            assert distance(copied.velocity(x[some], sigma[some], cond[some], 3), expected) < 2e-6
    assert counters["frames"]["total"] == counters["frames"]["ok"] > 8
    torch._dynamo.reset()


@pytest.mark.slow
def test_compiled_blocks_are_compiled_once(make):
    """Reference: the policy in bf16. Other noise levels, prompts, batches and values compile nothing anew."""
    policy = make(dtype=torch.bfloat16)
    replica = Replica(policy, settings("compile"))
    warm = replica.warm_up()
    assert warm.graphs >= 1
    assert warm.error < 0.1
    x, sigma, cond = asked(policy)
    before = compiled_graphs()
    with torch.no_grad():
        for rows in (3, 1):
            some = torch.arange(rows)
            expected = policy.velocity(x[some], sigma[some] / 2, cond[some])
            assert distance(replica.velocity(x[some], sigma[some] / 2, cond[some]), expected) < 0.03
    assert compiled_graphs() == before


def test_ranks_are_filled_up_without_a_trace(make):
    # Reference: PEFT's own layers; what layers share on GPUs leaves these families' attention as it is.
    from sanarl.models.fused import PaddedLora, fuse

    found = []
    for shares in (False, True):
        policy = moved(make())
        if shares:
            fuse(policy.model.transformer)
            assert any(isinstance(m, PaddedLora) for m in policy.model.transformer.modules())
        v = policy.velocity(*asked(policy))
        v.square().mean().backward()
        policy.collect_gradients()
        found.append([v.detach(), *(m.grad for m in policy.masters)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


def test_conditions_are_joined_row_by_row(make):
    # Reference: rows picked by hand; one row may serve all samples.
    policy = make()
    _, _, cond = asked(policy)
    both = Cond.cat([cond, cond])
    assert both.pooled.shape[0] == 6
    assert torch.equal(both[torch.tensor([4])].pooled, cond.pooled[1:2])

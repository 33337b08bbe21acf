import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sanarl.errors import UserError
from sanarl.models.adapter import add_adapter, read_adapter
from sanarl.models.export import export
from sanarl.models.policy import Policy

pytestmark = pytest.mark.parametrize("frames", [1, 5], ids=["image", "video"], indirect=True, scope="module")
FILE = "pytorch_lora_weights.safetensors"


@torch.no_grad()
def moved(policy, size=0.05):
    g = torch.Generator().manual_seed(2)
    for master in policy.masters:
        master += size * torch.randn(master.shape, generator=g)
    policy.publish()
    return policy


@pytest.fixture(scope="module")
def saved(make_policy, tmp_path_factory):
    """An exported adapter and the policy that it is of."""
    policy, folder = moved(make_policy()), tmp_path_factory.mktemp("adapter") / "step_1"
    export(policy, policy.masters, folder, "# a card")
    return policy, folder


def slot(make_sana, lora):
    model = make_sana()
    add_adapter(model.transformer, lora, seed=9)
    return model.transformer


def test_a_fresh_adapter_depends_on_its_seed_alone(make_sana, lora):
    # Reference: the same seed again; torch's global random state is neither read nor moved.
    first = add_adapter(make_sana().transformer, lora, seed=1)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    again = add_adapter(make_sana().transformer, lora, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    other = add_adapter(make_sana().transformer, lora, seed=2)
    assert first.keys() == again.keys()
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not all(torch.equal(first[n], other[n]) for n in first)
    assert all((value == 0).all() for name, value in first.items() if "lora_B" in name)


def test_an_adapter_binds_every_target_and_freezes_the_rest(make_sana, lora):
    transformer = make_sana().transformer
    start = add_adapter(transformer, lora, seed=1)
    trainable = {n for n, p in transformer.named_parameters() if p.requires_grad}
    assert trainable == set(start)
    for target in lora.target_modules:
        assert sum(f".{target}.lora_A" in name for name in start) == len(transformer.transformer_blocks)
    assert {v.shape[0] for n, v in start.items() if "lora_A" in n} == {lora.r}


def test_start_values_do_not_depend_on_the_transformers_type(make_sana, lora):
    # Reference: the adapter of a float32 transformer; PEFT rounds what it drew to the transformer's type.
    exact = add_adapter(make_sana().transformer, lora, seed=1)
    transformer = make_sana(dtype=torch.bfloat16).transformer
    found = add_adapter(transformer, lora, seed=1)
    assert all(torch.equal(found[n], exact[n].bfloat16().float()) for n in exact)
    assert {v.dtype for v in found.values()} == {torch.float32}
    assert {p.dtype for p in transformer.parameters()} == {torch.bfloat16}


def test_patterns_give_single_layers_their_own_rank(make_sana, lora):
    start = add_adapter(make_sana().transformer, replace(lora, r_pattern={"attn2.to_q": 2}), seed=1)
    assert {v.shape[0] for n, v in start.items() if "attn2.to_q.lora_A" in n} == {2}
    assert {v.shape[0] for n, v in start.items() if "attn2.to_k.lora_A" in n} == {4}


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            ["attn1.to_q", "attn1.to_qq"],
            r"nothing in Sana\w*Transformer[23]DModel is called attn1\.to_qq; did you mean attn1",
        ),
        (["nonsense"], r"is called nonsense; its layers are .*attn1\.to_k"),
        ("nothing.*at_all", r"is called nothing\.\*at_all"),
        ("(", r"'\(' is no regular expression"),
    ],
)
def test_a_target_that_binds_nothing_is_named(make_sana, lora, targets, message):
    with pytest.raises(UserError, match=message):
        add_adapter(make_sana().transformer, replace(lora, target_modules=targets), seed=1)


def test_defect_an_adapter_that_is_not_bound_is_caught(make_sana, lora, monkeypatch):
    # PEFT itself accepts a list of which one name binds nothing; the check on every name is what catches it.
    half = replace(lora, target_modules=["attn1.to_q", "to_nowhere"])
    with pytest.raises(UserError, match="to_nowhere"):
        add_adapter(make_sana().transformer, half, seed=1)
    monkeypatch.setattr("sanarl.models.adapter._check_targets", lambda *_: None)
    assert all("attn1.to_q" in name for name in add_adapter(make_sana().transformer, half, seed=1))


def test_regular_expressions_choose_targets(make_sana, lora):
    start = add_adapter(
        make_sana().transformer, replace(lora, target_modules=r"transformer_blocks\.0\.attn\d\.to_q"), seed=1
    )
    assert len(start) == 4


# ---- reading


@pytest.mark.parametrize("as_file", [True, False])
def test_an_exported_adapter_is_read_exactly(saved, make_sana, lora, as_file):
    # Reference: the values that were exported.
    policy, folder = saved
    found = read_adapter(folder / FILE if as_file else folder, slot(make_sana, lora), lora)
    for name, master in zip(policy.names, policy.masters, strict=True):
        assert torch.equal(found[name], master.detach())


def test_an_adapter_as_peft_writes_it_is_read(saved, make_sana, lora, tmp_path):
    # Reference: the same values under PEFT's names, with its configuration beside them.
    policy, folder = saved
    weights = load_file(folder / FILE)
    save_file(
        {k.replace("transformer.", "base_model.model.", 1): v for k, v in weights.items()},
        tmp_path / "adapter_model.safetensors",
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    found = read_adapter(tmp_path, slot(make_sana, lora), lora)
    assert all(torch.equal(found[n], m.detach()) for n, m in zip(policy.names, policy.masters, strict=True))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 16}))
    with pytest.raises(UserError, match=r"policy\.lora\.lora_alpha: found 8.0, .* has 16; write lora_alpha = 16"):
        read_adapter(tmp_path, slot(make_sana, lora), lora)


def test_scales_of_single_layers_travel_with_an_adapter(make_policy, make_sana, lora, tmp_path):
    settings = replace(lora, alpha_pattern={"attn1.to_q": 2.0})
    policy = moved(make_policy(settings))
    export(policy, policy.masters, tmp_path, "# a card")
    assert len(read_adapter(tmp_path, slot(make_sana, settings), settings)) == len(policy.masters)
    with pytest.raises(UserError, match=r"alpha_pattern: found \{\}, but the adapter .* has \{'attn1\.to_q': 2\.0\}"):
        read_adapter(tmp_path, slot(make_sana, lora), lora)


def test_a_read_adapter_is_the_start_and_the_reference(saved, make_sana, lora):
    # Reference: the policy that was exported.
    old, folder = saved
    model = make_sana()
    add_adapter(model.transformer, lora, seed=9)
    policy = Policy(model, read_adapter(folder, model.transformer, lora), torch.float32, kept_sets=True)
    for values in (policy.masters, policy.sets["old"], policy.sets["reference"]):
        assert all(torch.equal(a, b) for a, b in zip(values, old.masters, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r": 2}, r"policy\.lora\.r: found 2, but .* has 4; write r = 4"),
        ({"alpha": 4.0}, r"policy\.lora\.lora_alpha: found 4.0, but .* has 8"),
        ({"use_rslora": True}, r"policy\.lora\.use_rslora: found True, but .* has False"),
        ({"target_modules": ["attn1.to_q"]}, r"does not fit policy\.lora .*attn1\.to_k\S* has no place.* and \d+ more"),
        (
            {"target_modules": ["attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "conv_inverted"]},
            r"conv_inverted\S* is missing",
        ),
        ({"alpha_pattern": {"attn1.to_q": 2.0}}, r"policy\.lora\.alpha_pattern: found \{.*but the adapter .* has \{\}"),
        ({"r_pattern": {"attn1.to_q": 2}}, r"attn1\.to_q\S* has shape \(\d+, \d+\), the slot"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(saved, make_sana, lora, change, message):
    settings = replace(lora, **change)
    with pytest.raises(UserError, match=message):
        read_adapter(saved[1], slot(make_sana, settings), settings)


def test_without_metadata_alpha_is_taken_for_the_rank(saved, make_sana, lora, tmp_path):
    # What diffusers assumes too.
    save_file(load_file(saved[1] / FILE), tmp_path / FILE)
    read_adapter(tmp_path, slot(make_sana, replace(lora, alpha=4.0)), replace(lora, alpha=4.0))
    with pytest.raises(UserError, match=r"lora_alpha: found 8\.0, .* has 4"):
        read_adapter(tmp_path, slot(make_sana, lora), lora)


def damage(saved, tmp_path, kind) -> Path:
    raw = (saved[1] / FILE).read_bytes()
    path = tmp_path / FILE
    match kind:
        case "cut short":
            path.write_bytes(raw[: len(raw) // 2])
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("not an adapter")
        case "metadata":
            save_file(load_file(saved[1] / FILE), path, metadata={"lora_adapter_metadata": "{"})
        case "config":
            save_file(load_file(saved[1] / FILE), path)
            (tmp_path / "adapter_config.json").write_text("{")
    return path


@pytest.mark.parametrize("kind", ["cut short", "empty", "text", "metadata", "config"])
def test_a_damaged_adapter_is_refused(saved, make_sana, lora, tmp_path, kind):
    path = damage(saved, tmp_path, kind)
    with pytest.raises(UserError, match=r"policy\.lora\.lora_path: .* is no readable"):
        read_adapter(path, slot(make_sana, lora), lora)


@pytest.mark.parametrize("path", ["nothing/here", "."])
def test_no_adapter_there(make_sana, lora, tmp_path, path):
    with pytest.raises(UserError, match=r"no adapter in .*; expected a folder with pytorch_lora_weights"):
        read_adapter(tmp_path / path, slot(make_sana, lora), lora)

"""Native checkpoints. References: the pipeline in memory, written out in native names by the tests' own mapping."""

import json
import pickle
import random
import re
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sanarl.errors import UserError
from sanarl.models import native, native_files
from sanarl.models.adapter import LoraSettings, add_adapter, read_adapter
from sanarl.models.adapter_file import described
from sanarl.models.load import load_model
from sanarl.models.tiny import random_pipeline

CPU = torch.device("cpu")
NATIVE_TARGETS = ["attn.qkv", "attn.proj", "cross_attn.q_linear", "cross_attn.kv_linear", "cross_attn.proj"]


@pytest.fixture(scope="module")
def pipeline():
    return random_pipeline(3)


@pytest.fixture
def saved(pipeline, native_state, tmp_path):
    """A function that writes the weights, changed as asked, and gives the path."""

    def save(linear=True, under="state_dict", change=lambda state: state):
        state = change(native_state(pipeline.transformer, linear))
        path = tmp_path / "SANA_tiny.pth"
        torch.save({under: state} if under else state, path)
        return path

    return save


def settings(path, **changes):
    from sanarl.models.load import ModelSettings

    values = {
        "name_or_path": str(path),
        "revision": None,
        "transformer_dtype": torch.float32,
        "other_dtype": torch.float32,
        "size": (32, 32),
        "modality": "image",
        "frames": 1,
        "max_prompt_length": 12,
        "complex_human_instruction": False,
        "motion_score": None,
        "offload": True,
        "vae_tiles": "auto",
        "checkpointing": "off",
    }
    return ModelSettings(**(values | changes))


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("under", ["state_dict", "model", ""])
def test_round_trip(saved, pipeline, pipeline_folder, linear, under):
    """The weights come back bit by bit, in the base pipeline (another seed, flow shift 3)."""
    model = load_model(settings(saved(linear, under), base_pipeline=str(pipeline_folder)), CPU)
    found, expected = model.transformer.state_dict(), pipeline.transformer.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert model.flow_shift == 3.0


def test_both_forms_are_told_apart_and_unused_keys_are_named(pipeline, native_state):
    for linear in (True, False):
        converted = native.convert(native_state(pipeline.transformer, linear), "x")
        assert converted.linear_ffn is linear
        assert sorted(converted.unused) == ["pos_embed", "y_embedder.y_embedding"]
        assert (converted.num_layers, converted.width) == (2, 16)


def test_depth_and_norms_come_from_the_weights(pipeline, native_state):
    from diffusers import SanaTransformer2DModel

    config = {k: v for k, v in pipeline.transformer.config.items() if not k.startswith("_")}
    larger = SanaTransformer2DModel.from_config(config | {"num_layers": 3, "qk_norm": "rms_norm_across_heads"})
    state = native_state(larger, True)
    for n in range(3):
        for theirs, ours in (("attn", "attn1"), ("cross_attn", "attn2")):
            for x in "qk":
                state[f"blocks.{n}.{theirs}.{x}_norm.weight"] = larger.state_dict()[
                    f"transformer_blocks.{n}.{ours}.norm_{x}.weight"
                ]
    converted = native.convert(state, "x")
    found = native.configured(converted, config, "x", "base")
    assert (found["num_layers"], found["qk_norm"], found["mlp_ratio"]) == (3, "rms_norm_across_heads", 2.0)
    assert converted.state.keys() == {k for k in larger.state_dict() if k != "patch_embed.pos_embed"}


def dropped(*keys):
    return lambda state: {k: v for k, v in state.items() if k not in keys}


def added(**new):
    return lambda state: state | new


MISSHAPEN = [
    (key, shape)
    for key in ("x_embedder.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.point_conv.linear.weight")
    for shape in ((), (5,), (0, 16))
] + [("x_embedder.proj.weight", (16, 4, 0, 0)), ("final_layer.linear.weight", ()), ("t_block.1.bias", (2, 2))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dropped("blocks.1.attn.proj.bias"), r"transformer_blocks\.1\.attn1\.to_out\.0\.bias is missing"),
        (dropped("t_block.1.weight"), r"time_embed\.linear \(in diffusers' names\) are missing"),
        (added(mystery=torch.zeros(1)), "mystery belong to no SANA"),
        (lambda s: s | {"x_embedder.proj.bias": torch.zeros(5)}, r"patch_embed\.proj\.bias has shape \(5,\)"),
        (lambda s: s | {"blocks.1.mlp.point_conv.conv.weight": s["blocks.1.mlp.point_conv.linear.weight"]}, "mixes"),
        (lambda _: {"a": torch.zeros(1)}, "no transformer blocks"),
        (dropped("blocks.0.mlp.point_conv.linear.weight"), r"blocks\.0\.ff\.conv_point .* are missing"),
        (lambda s: {k: v for k, v in s.items() if "blocks.0." not in k}, "blocks are not numbered 0 to 0"),
        (added(**{"blocks.10000000.scale_shift_table": torch.zeros(6, 16)}), "blocks are not numbered 0 to 2"),
        (added(**{"blocks.01.scale_shift_table": torch.zeros(6, 16)}), r"blocks\.01\.scale_shift_table belong to no"),
        *((added(**{key: torch.zeros(shape)}), "have not the dimensions") for key, shape in MISSHAPEN),
    ],
)
def test_every_key_is_accounted_for(saved, pipeline_folder, change, message):
    with pytest.raises(UserError, match=message):
        load_model(settings(saved(change=change), base_pipeline=str(pipeline_folder)), CPU)


def test_what_is_no_checkpoint(tmp_path, pipeline_folder):
    broken, strange = tmp_path / "broken.pth", tmp_path / "strange.pth"
    broken.write_bytes(b"not a checkpoint")
    torch.save({"state_dict": {"a": 3}}, strange)
    for path, message in ((broken, "no readable checkpoint"), (strange, "no table of weights")):
        with pytest.raises(UserError, match=message):
            load_model(settings(path, base_pipeline=str(pipeline_folder)), CPU)
    with pytest.raises(UserError, match=r"no file .*absent\.pth; from the hub: hf://owner/repo/absent\.pth"):
        load_model(settings(tmp_path / "absent.pth", base_pipeline=str(pipeline_folder)), CPU)
    with pytest.raises(UserError, match=r"accepted hf://owner/repo/file\.pth"):
        load_model(settings("hf://owner/file.pth", base_pipeline=str(pipeline_folder)), CPU)


class Code:
    """A pickle that runs what it likes when it is loaded."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_code_in_a_pickle_is_not_run(tmp_path):
    """Neither in torch's own format nor in a plain pickle of any protocol."""
    files = [tmp_path / f"{n}.pth" for n in range(3)]
    torch.save({"weight": Code(tmp_path / "run")}, files[0])
    torch.save({"weight": Code(tmp_path / "run")}, files[1], _use_new_zipfile_serialization=False)
    files[2].write_bytes(pickle.dumps({"weight": Code(tmp_path / "run")}, protocol=4))
    for file in files:
        with pytest.raises(UserError, match="more than tensors and plain values"):
            native_files.read(file)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_files_are_said_to_be(tmp_path, zipped):
    """Cut anywhere or with bytes of the pickle changed: an error for people, or weights, never another exception."""
    whole, broken = tmp_path / "whole.pth", tmp_path / "broken.pth"
    torch.save({f"layer{n}": torch.ones(3) for n in range(4)}, whole, _use_new_zipfile_serialization=zipped)
    raw, rng = whole.read_bytes(), random.Random(0)
    for n in range(250):
        data = bytearray(raw)
        if n < 50:
            del data[len(raw) * n // 50 :]
        else:
            data[rng.randrange(min(len(raw), 600))] = rng.randrange(256)
        broken.write_bytes(data)
        with suppress(UserError):
            assert native_files.read(broken)


@pytest.mark.parametrize(
    "entry",
    [
        {7: torch.ones(2)},
        {("a", "b"): torch.ones(2)},
        {"whole": torch.ones(2, dtype=torch.int64)},
        {"truth": torch.ones(2, dtype=torch.bool)},
        {"complex": torch.ones(2, dtype=torch.complex64)},
        {"quantised": torch.ones(2).to(torch.float8_e4m3fn)},
        {"nowhere": torch.ones(2, device="meta")},
        {"undefined": torch.tensor([1.0, float("nan")])},
        {"endless": torch.tensor([1.0, float("inf")])},
    ],
    ids=lambda entry: str(*entry),
)
def test_what_is_no_weight_is_named(tmp_path, entry):
    path = tmp_path / "a.pth"
    torch.save({"fine": torch.ones(2)} | entry, path)
    with pytest.raises(UserError, match=rf"holds what no weights are, finite numbers .*: {re.escape(str(*entry))}$"):
        native_files.read(path)


def test_a_checkpoint_in_the_hubs_cache(saved, pipeline_folder, tmp_path, monkeypatch):
    """The hub's client fetches to another name and renames; offline it gives what it has, or says so."""
    from huggingface_hub import constants

    snapshot = tmp_path / "cache" / "models--some--repo" / "snapshots" / ("1" * 40)
    (snapshot / "deep").mkdir(parents=True)
    saved().rename(snapshot / "deep" / "SANA.pth")
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("1" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    asked = settings("hf://some/repo/deep/SANA.pth", base_pipeline=str(pipeline_folder))
    assert load_model(asked, CPU).transformer.config.num_layers == 2
    with pytest.raises(UserError, match=r"hf://some/repo/other\.pth could not be fetched: \w+"):
        load_model(settings("hf://some/repo/other.pth", base_pipeline=str(pipeline_folder)), CPU)


YAML = """\
model:
  model: SanaMSLinearFFN_1600M_P1_D2
  attn_type: linear
  ffn_type: glumbconv_linear
  mlp_ratio: 2.0
  use_pe: true
  qk_norm: false
  linear_head_dim: 8
vae:
  vae_latent_dim: 4
text_encoder:
  y_norm: true
  caption_channels: 16
scheduler:
  pred_sigma: false
  flow_shift: 3.0
"""


def test_a_native_configuration_that_agrees(saved, pipeline_folder, tmp_path):
    file = tmp_path / "native.yaml"
    file.write_text(YAML, encoding="utf-8")
    asked = settings(saved(), base_pipeline=str(pipeline_folder), native_config=str(file))
    assert load_model(asked, CPU).transformer.config.num_layers == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("D2", "D20"),
        ("P1", "P2"),
        ("glumbconv_linear", "glumbconv"),
        ("attn_type: linear", "attn_type: flash"),
        ("mlp_ratio: 2.0", "mlp_ratio: 2.5"),
        ("use_pe: true", "use_pe: false"),
        ("qk_norm: false", "qk_norm: true"),
        ("linear_head_dim: 8", "linear_head_dim: 32"),
        ("vae_latent_dim: 4", "vae_latent_dim: 32"),
        ("y_norm: true", "y_norm: false"),
        ("caption_channels: 16", "caption_channels: 2304"),
        ("pred_sigma: false", "pred_sigma: true"),
    ],
)
def test_a_native_configuration_that_contradicts(saved, pipeline_folder, tmp_path, old, new):
    file = tmp_path / "native.yaml"
    file.write_text(YAML.replace(old, new), encoding="utf-8")
    asked = settings(saved(), base_pipeline=str(pipeline_folder), native_config=str(file))
    with pytest.raises(UserError, match=rf"contradicts the checkpoint: [^;]*{new.split(': ')[-1]}[^;]*$"):
        load_model(asked, CPU)


def test_a_native_configuration_whose_tables_are_none(saved, pipeline_folder, tmp_path):
    file = tmp_path / "flat.yaml"
    file.write_text("model: 3\nvae: [1]\n")
    asked = settings(saved(), base_pipeline=str(pipeline_folder), native_config=str(file))
    with pytest.raises(UserError, match="is no configuration of SANA: model is no table; vae is no table"):
        load_model(asked, CPU)


def test_native_adapters_convert_exactly(pipeline, native_state, tmp_path):
    """Reference: the native layers' own outputs with their adapter, in float64."""
    r, alpha, rng = 2, 3.0, torch.Generator().manual_seed(0)
    state = native_state(pipeline.transformer, True)
    saved = {}
    for n in range(2):
        for target in NATIVE_TARGETS:
            rows, columns = state[f"blocks.{n}.{target}.weight"].shape
            name = f"base_model.model.blocks.{n}.{target}"
            saved[f"{name}.lora_A.weight"] = torch.randn(r, columns, generator=rng)
            saved[f"{name}.lora_B.weight"] = torch.randn(rows, r, generator=rng)
    save_file(saved, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": r, "lora_alpha": alpha}))
    ours = [f"attn{i}.{x}" for i in (1, 2) for x in ("to_q", "to_k", "to_v", "to_out.0")]
    transformer = random_pipeline(3).transformer
    slot = LoraSettings(r=r, alpha=alpha, target_modules=ours)
    add_adapter(transformer, slot, seed=0)
    values = read_adapter(tmp_path, transformer, slot)

    def added(name):
        a, b = (values[f"transformer_blocks.1.{name}.lora_{x}.default.weight"].double() for x in "AB")
        return alpha / r * b @ a

    for target in NATIVE_TARGETS:
        name = f"base_model.model.blocks.1.{target}"
        a, b = (saved[f"{name}.lora_{x}.weight"].double() for x in "AB")
        assert torch.equal(torch.cat([added(part) for part in native.BLOCK[target]]), alpha / r * b @ a)


def test_adapters_of_the_linear_ffn_become_those_of_convolutions():
    a, b = torch.ones(2, 16), torch.ones(64, 2)
    name = "blocks.0.mlp.inverted_conv.linear"
    found = native.convert_adapter({f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b, "other": a})
    assert {k: tuple(v.shape) for k, v in found.items()} == {
        "transformer_blocks.0.ff.conv_inverted.lora_A.weight": (2, 16, 1, 1),
        "transformer_blocks.0.ff.conv_inverted.lora_B.weight": (64, 2, 1, 1),
        "other": (2, 16),
    }


@pytest.mark.parametrize(
    ("layer", "part", "shape"),
    [
        ("attn.qkv", "B", (100, 2)),  # not divisible by the three parts
        ("attn.qkv", "B", (4, 2)),
        ("cross_attn.kv_linear", "B", (1, 2)),
        ("attn.qkv", "A", ()),
        ("mlp.point_conv.linear", "A", (5,)),
        ("mlp.point_conv.conv", "A", (5, 2)),  # a convolution's has four dimensions
    ],
)
def test_adapters_that_fit_no_fused_layer_are_refused(tmp_path, layer, part, shape):
    save_file({f"blocks.0.{layer}.lora_{part}.weight": torch.zeros(shape)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(UserError, match=rf"lora_{part}\.weight has shape .*, which fits no {re.escape(layer)}$"):
        described(tmp_path, "--lora")


def test_a_base_of_another_width_is_refused(saved):
    with pytest.raises(UserError, match=r"the transformer of tiny-image is 96 wide and .* is 16"):
        load_model(settings(saved(), base_pipeline="tiny-image"), CPU)


def test_is_native():
    assert native_files.is_native("hf://a/b/c.pth")
    assert not native_files.is_native("a/b")

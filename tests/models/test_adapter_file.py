"""What an adapter's file says of it; reference: the settings that it was made with."""

import json

import pytest
import torch
from safetensors.torch import save_file

from sanarl.errors import UserError
from sanarl.models.adapter import LoraSettings, add_adapter, read_adapter
from sanarl.models.adapter_file import described
from sanarl.models.export import export
from sanarl.models.native import convert_adapter

ONE = {"transformer_blocks.0.attn1.to_q.lora_A.weight": torch.ones(2, 8)}


@pytest.mark.parametrize("target", ["diffusers", "peft"])
def test_an_export_says_how_it_was_made(target, make_policy, make_sana, tmp_path):
    settings = LoraSettings(4, 8.0, ["attn1.to_q", "attn2.to_v"], r_pattern={"attn2.to_v": 2}, use_rslora=True)
    policy = make_policy(settings)
    export(policy, policy.masters, tmp_path / "out", "", target, "base")
    found = described(tmp_path / "out", "--lora")
    assert (found.r, found.alpha, found.use_rslora) == (4, 8.0, True)
    layers = [f"transformer_blocks.{n}.{name}" for n in range(2) for name in ("attn1.to_q", "attn2.to_v")]
    assert found.target_modules == sorted(layers)
    transformer = make_sana().transformer
    assert add_adapter(transformer, found, 0).keys() == set(policy.names)
    read = read_adapter(tmp_path / "out", transformer, found)
    assert all(torch.equal(read[n], m) for n, m in zip(policy.names, policy.masters, strict=True))


def test_without_a_description_alpha_is_the_rank(tmp_path):
    layers = {"transformer.transformer_blocks.0.attn1.to_q.lora_A.weight": torch.ones(3, 8)}
    layers |= {"transformer.transformer_blocks.0.attn1.to_q.lora_B.weight": torch.ones(8, 3)}
    save_file(layers, tmp_path / "mine.safetensors")
    assert described(tmp_path / "mine.safetensors", "--lora") == LoraSettings(
        3, 3.0, ["transformer_blocks.0.attn1.to_q"]
    )


def test_an_adapter_on_native_layers(tmp_path):
    native = {"blocks.0.attn.qkv.lora_A.weight": torch.ones(2, 8), "blocks.0.attn.qkv.lora_B.weight": torch.ones(24, 2)}
    save_file(native, tmp_path / "native.safetensors")
    found = described(tmp_path / "native.safetensors", "--lora")
    assert found.target_modules == sorted({n.partition(".lora_")[0] for n in convert_adapter(native)})
    assert found.r == 2


def test_what_is_no_adapter(tmp_path):
    with pytest.raises(UserError, match=r"--lora: no adapter in .*; expected a folder with"):
        described(tmp_path, "--lora")
    save_file({"weight": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="holds no LoRA of a transformer"):
        described(tmp_path / "other.safetensors", "--lora")
    (tmp_path / "broken.safetensors").write_bytes(b"{}")
    with pytest.raises(UserError, match="is no readable adapter"):
        described(tmp_path / "broken.safetensors", "--lora")


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"r": "two"}, r'has r = "two": a rank is a whole number, 1 or more'),
        ({"r": 0}, "has r = 0"),
        ({"r": True}, "has r = true"),
        ({"lora_alpha": "x"}, r'has lora_alpha = "x": a scale is a finite number above 0'),
        ({"lora_alpha": float("inf")}, "has lora_alpha = Infinity"),
        ({"use_rslora": 1}, "has use_rslora = 1: this is true or false"),
        ({"alpha_pattern": 3}, "has alpha_pattern = 3: this is a table of scales"),
        ({"alpha_pattern": {"to_q": [1]}}, "has alpha_pattern"),
        ([1], "is no readable JSON table: it holds no table"),
    ],
)
def test_descriptions_that_say_nothing_of_use(tmp_path, make_sana, lora, description, message):
    """Read for a slot of its own or for one that is there: the same words."""
    save_file(
        {"transformer_blocks.0.attn1.to_q.lora_A.weight": torch.ones(2, 8)}, tmp_path / "adapter_model.safetensors"
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps(description))
    with pytest.raises(UserError, match=f"--lora: the description of .*{message}"):
        described(tmp_path, "--lora")
    with pytest.raises(UserError, match=f"lora_path: the description of .*{message}"):
        read_adapter(tmp_path, make_sana().transformer, lora)


def test_what_a_description_leaves_open_is_read_from_the_weights(tmp_path):
    save_file(
        {"transformer_blocks.0.attn1.to_q.lora_A.weight": torch.ones(2, 8)}, tmp_path / "adapter_model.safetensors"
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": None, "lora_alpha": 3, "use_rslora": None}))
    assert described(tmp_path, "--lora") == LoraSettings(2, 3.0, ["transformer_blocks.0.attn1.to_q"])


@pytest.mark.parametrize("value", [torch.ones(2, 8, dtype=torch.int32), torch.full((2, 8), float("nan"))])
def test_what_no_weights_are(tmp_path, value):
    save_file({"blocks.0.attn.qkv.lora_A.weight": value}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"holds what no weights are: blocks\.0\.attn\.qkv\.lora_A\.weight"):
        described(tmp_path, "--lora")

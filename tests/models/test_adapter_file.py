"""What an adapter's file says of it; reference: the settings that it was made with."""

import pytest
import torch
from safetensors.torch import save_file

from sanarl.errors import UserError
from sanarl.models.adapter import LoraSettings, add_adapter, read_adapter
from sanarl.models.adapter_file import described
from sanarl.models.export import export
from sanarl.models.native import convert_adapter


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

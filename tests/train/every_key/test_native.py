"""[policy] base_pipeline and native_config: a .pth in the place of a pipeline's transformer."""

import pytest
import torch

from sanarl.errors import UserError

honours = pytest.mark.honours


@pytest.fixture(scope="module")
def native(tmp_path_factory, native_state):
    """The weights of another seed in native names; its own pipeline."""
    from sanarl.models.tiny import random_pipeline

    pipeline = random_pipeline(5)
    path = tmp_path_factory.mktemp("native") / "SANA.pth"
    torch.save({"state_dict": native_state(pipeline.transformer, linear=True)}, path)
    return path, pipeline


@honours("policy.base_pipeline")
def test_base_pipeline(lab, native, pipeline_folder):
    # Reference: the transformer that was written, and the shift of the folder's scheduler.
    path, pipeline = native
    keys = f'policy.model_name_or_path="{path}"', f'policy.base_pipeline="{pipeline_folder}"'
    with lab.parts("sft-lora", *keys) as made:
        weight = made.model.transformer.transformer_blocks[1].attn2.to_v.weight
        assert torch.equal(weight, pipeline.transformer.transformer_blocks[1].attn2.to_v.weight)
        assert made.model.flow_shift == 3.0
    run = lab.fresh("sft-lora", *keys, "train.ckpt.export_safetensors=true")
    card = next(run.folder.glob("safetensors/*/README.md")).read_text()
    assert f'pipeline("{path}", None, "{pipeline_folder}", None' in card


@honours("policy.native_config")
def test_native_config(lab, native, pipeline_folder, tmp_path):
    file = tmp_path / "native.yaml"
    file.write_text("model:\n  model: SanaMSLinearFFN_1600M_P1_D20\n", encoding="utf-8")
    keys = f'policy.model_name_or_path="{native[0]}"', f'policy.base_pipeline="{pipeline_folder}"'
    with pytest.raises(UserError, match=r"contradicts the checkpoint: model\.model = .*D20, the weights are D2"):
        lab.parts("sft-lora", *keys, f'policy.native_config="{file}"')

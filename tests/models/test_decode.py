"""How far decoding in bf16 is from float32, on pictures that mean something."""

import torch

from sanarl.models.load import ModelSettings, load_model


def model(vae_dtype):
    return load_model(
        ModelSettings(
            name_or_path="tiny-image",
            revision=None,
            transformer_dtype=torch.float32,
            other_dtype=torch.float32,
            size=(64, 64),
            modality="image",
            frames=1,
            max_prompt_length=12,
            complex_human_instruction=False,
            motion_score=None,
            offload=False,
            vae_tiles=False,
            checkpointing="off",
            vae_dtype=vae_dtype,
        ),
        torch.device("cpu"),
    )


def test_bf16_agrees_with_float32_within_grey_levels():
    from random import Random

    from sanarl.shapes.captions import all_prompts
    from sanarl.shapes.drawing import render

    prompts = [kind[i] for kind in all_prompts().values() for i in (0, len(kind) // 2)]
    pictures = torch.stack([torch.from_numpy(render(p, Random(i))) for i, p in enumerate(prompts)])
    exact, half = model(None), model(torch.bfloat16)
    latents = exact.encode_media(pictures.permute(0, 3, 1, 2)[:, None], 16)
    difference = (exact.decode(latents) - half.decode(latents)).abs() * 255
    print(f"mean {difference.mean():.3f}, largest {difference.max():.2f} grey levels")
    assert 0 < difference.mean() < 0.6
    assert difference.max() < 6

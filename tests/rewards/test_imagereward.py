"""ImageReward: the package's own class with random weights, one block and one layer, under the installed transformers.

Reference: BLIP's picture encoder, BERT with cross-attention and the head written out with torch.nn.functional on the
same values, one pair at a time, on Pillow's resize and crop.
"""

import json
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional
from transformers import BertTokenizer, modeling_utils

from sanarl.errors import UserError
from sanarl.rewards.scorers import imagereward
from sanarl.rewards.scorers.imagereward import ImageReward

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MED = {"hidden_size": 768, "num_hidden_layers": 1, "num_attention_heads": 12, "intermediate_size": 512}
MED |= {"vocab_size": 200, "encoder_width": 768, "add_cross_attention": True, "max_position_embeddings": 64}
NONE = [{}] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What a reward_ckpts folder holds: ImageReward.pt, med_config.json and BERT's vocabulary."""
    folder = tmp_path_factory.mktemp("imagereward")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{c}" for c in LETTERS), "red", "cat", "dogs"]
    (folder / "vocab.txt").write_text("\n".join(words))
    (folder / "med_config.json").write_text(json.dumps(MED))
    torch.manual_seed(0)
    model = imagereward.construct(folder / "med_config.json", folder, blocks=1)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.ndim > 1:  # an untrained head is nearly 0 and scores every picture alike
                values.normal_(std=0.06 if name.startswith("mlp") else 0.04)
    torch.save(model.state_dict(), folder / "ImageReward.pt")
    return folder


@pytest.fixture(scope="module")
def make(folder):
    def make(**given):
        return ImageReward(model_path=str(folder), tokenizer_path=str(folder), blocks=1, **given)

    return make


def norm(x, w, name, eps):
    return functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)


def linear(x, w, name):
    return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def attended(q, k, v, heads, mask=None):
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(0, 1) for t in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(0, 1).flatten(1)


def encoded_picture(w, picture):
    image = Image.fromarray((picture[0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())
    scale = 224 / min(image.size)
    image = image.resize([int(side * scale) for side in image.size], Image.Resampling.BICUBIC)
    left, top = (round((side - 224) / 2) for side in image.size)
    pixels = torch.from_numpy(np.asarray(image.crop((left, top, left + 224, top + 224))).copy()).permute(2, 0, 1) / 255
    mean, std = torch.tensor([0.48145466, 0.4578275, 0.40821073]), torch.tensor([0.26862954, 0.26130258, 0.27577711])
    pixels = (pixels - mean[:, None, None]) / std[:, None, None]
    v = "blip.visual_encoder"
    patches = functional.conv2d(pixels[None], w[f"{v}.patch_embed.proj.weight"], w[f"{v}.patch_embed.proj.bias"], 16)
    x = torch.cat([w[f"{v}.cls_token"][0], patches.flatten(2)[0].T]) + w[f"{v}.pos_embed"][0]
    b = f"{v}.blocks.0"
    q, k, values = linear(norm(x, w, f"{b}.norm1", 1e-6), w, f"{b}.attn.qkv").chunk(3, -1)
    x = x + linear(attended(q, k, values, 16), w, f"{b}.attn.proj")
    x = x + linear(functional.gelu(linear(norm(x, w, f"{b}.norm2", 1e-6), w, f"{b}.mlp.fc1")), w, f"{b}.mlp.fc2")
    return norm(x, w, f"{v}.norm", 1e-6)


def reference(folder, picture, prompt):
    w = torch.load(folder / "ImageReward.pt")
    image = encoded_picture(w, picture)
    text = BertTokenizer.from_pretrained(folder)(prompt, truncation=True, max_length=35, return_tensors="pt")
    t = "blip.text_encoder"
    ids = text.input_ids[0]
    x = w[f"{t}.embeddings.word_embeddings.weight"][ids] + w[f"{t}.embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x, w, f"{t}.embeddings.LayerNorm", 1e-12)
    layer = f"{t}.encoder.layer.0"
    for kind, context in (("attention", None), ("crossattention", image)):
        a = f"{layer}.{kind}"
        source = x if context is None else context
        q, k, v = (linear(s, w, f"{a}.self.{n}") for s, n in ((x, "query"), (source, "key"), (source, "value")))
        x = norm(x + linear(attended(q, k, v, 12), w, f"{a}.output.dense"), w, f"{a}.output.LayerNorm", 1e-12)
    inner = linear(functional.gelu(linear(x, w, f"{layer}.intermediate.dense")), w, f"{layer}.output.dense")
    x = norm(x + inner, w, f"{layer}.output.LayerNorm", 1e-12)[0]
    for index in (0, 2, 4, 6, 7):
        x = linear(x, w, f"mlp.layers.{index}")
    return ((x - 0.16717362830052426) / 1.0333394966054072).item()


def test_scores_are_the_published_ones(make, folder, pictures, prompts):
    scores = make()(pictures, prompts, NONE)
    assert scores.dtype == torch.float32
    assert not scores.requires_grad
    expected = [reference(folder, m, p) for m, p in zip(pictures, prompts, strict=True)]
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert np.ptp(expected) > 0.01


def test_batches_clips_and_lower_precision(make, pictures, prompts):
    scorer = make(frames=3)
    whole = scorer(pictures, prompts, NONE)
    single = torch.cat([scorer(pictures[i : i + 1], prompts[i : i + 1], [{}]) for i in range(4)])
    torch.testing.assert_close(whole, single, rtol=1e-4, atol=1e-5)
    clip = scorer(pictures.transpose(0, 1), prompts[:1], [{}])
    each = scorer(pictures[[0, 2, 3]], prompts[:1] * 3, [{}] * 3)
    torch.testing.assert_close(clip, each.mean()[None], rtol=1e-4, atol=1e-5)
    half = make(dtype="bfloat16", device="cpu")
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(half(pictures, prompts, NONE), whole, rtol=0.1, atol=0.1)


def test_the_own_method_of_the_class_agrees(make, pictures, prompts):
    """Reference: score() of the package on a Pillow picture."""
    scorer = make()
    image = Image.fromarray((pictures[1, 0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())
    with torch.no_grad():
        expected = scorer.model.score(prompts[1], image)
    assert scorer(pictures, prompts, NONE)[1].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_nothing_of_the_import_stays_behind(folder):
    filters, names = list(warnings.filters), set(vars(modeling_utils))
    imagereward.construct(folder / "med_config.json", folder, blocks=1)
    assert not [name for name in sys.modules if name.partition(".")[0] in ("ImageReward", "fairscale")]
    assert warnings.filters == filters
    assert set(vars(modeling_utils)) == names


def test_a_missing_package_is_named_with_its_line(folder, monkeypatch):
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "site-packages" not in p])
    with pytest.raises(
        UserError, match=r"imagereward needs the package image-reward .*\n.* install --no-deps image-reward$"
    ):
        imagereward.construct(folder / "med_config.json", folder, blocks=1)


def test_a_checkpoint_that_lacks_values_is_refused(folder, tmp_path):
    for name in ("med_config.json", "vocab.txt"):
        (tmp_path / name).write_text((folder / name).read_text())
    state = torch.load(folder / "ImageReward.pt")
    state.pop("mlp.layers.0.weight")
    torch.save(state, tmp_path / "ImageReward.pt")
    with pytest.raises(UserError, match=r"ImageReward\.pt lacks 1 values, the first mlp\.layers\.0\.weight"):
        ImageReward(model_path=str(tmp_path), tokenizer_path=str(tmp_path), blocks=1)

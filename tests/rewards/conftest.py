"""Small random models of the classes that rewards load, in folders as the hub lays them."""

import json
import string

import pytest
import torch

CHARACTERS = string.ascii_lowercase + string.digits


@pytest.fixture
def pictures():
    """Four pictures (4, 1, 3, 40, 56) with 8-bit values, each unlike the others."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(4, 3, 5, 7, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(40, 56), mode="bilinear")
    return smooth.mul(255).round().div(255)[:, None]


PROMPTS = ["a red cat", "two dogs", "a red cat", "a blue vase on a table"]


@pytest.fixture
def prompts():
    return list(PROMPTS)


def _tokenizer(folder):
    from transformers import CLIPTokenizer

    merges = [("r", "e"), ("re", "d</w>"), ("c", "a"), ("ca", "t</w>")]
    tokens = [*CHARACTERS, *(f"{c}</w>" for c in CHARACTERS), *("".join(pair) for pair in merges)]
    vocab = {token: row for row, token in enumerate([*tokens, "<|startoftext|>", "<|endoftext|>"])}
    tokenizer = CLIPTokenizer(vocab=vocab, merges=merges)
    tokenizer.model_max_length = 77
    tokenizer.save_pretrained(folder)
    return vocab


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory):
    """A folder with a random CLIPModel, its tokenizer and its preprocessing."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    folder = tmp_path_factory.mktemp("clip")
    vocab = _tokenizer(folder)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    start, end = vocab["<|startoftext|>"], vocab["<|endoftext|>"]
    text = {"vocab_size": len(vocab), "bos_token_id": start, "eos_token_id": end, "pad_token_id": end}
    vision = {"image_size": 32, "patch_size": 8}
    torch.manual_seed(1)
    model = CLIPModel(CLIPConfig(projection_dim=16, text_config=size | text, vision_config=size | vision))
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.mul_(8)  # an untrained CLIP tells nothing apart
    model.save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_open_clip(tmp_path_factory):
    """(architecture, checkpoint): a small model that open_clip knows by name, in a file laid out as HPSv2's."""
    import open_clip

    folder = tmp_path_factory.mktemp("open_clip")
    vision = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    (folder / "sanarl-tiny.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)
    torch.manual_seed(2)
    model = open_clip.create_model("sanarl-tiny", load_weights=False)
    torch.save({"epoch": 1, "state_dict": model.state_dict()}, folder / "HPS_v2.1_compressed.pt")
    return "sanarl-tiny", folder / "HPS_v2.1_compressed.pt"

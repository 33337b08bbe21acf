"""Memory that runs out: torch's own error, raised where it would come from, ends in a page about this run.

SANARL_SNAPSHOTS=write pytest tests/train/test_shortage.py writes the page anew; read the diff.
"""

import os
import re
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderDC
from diffusers.models.transformers.sana_transformer import SanaTransformerBlock

from sanarl.errors import UserError

SAID = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 12.00 GiB\nand more"
PAGE = Path(__file__).parent / "out_of_memory.txt"


def short(*_, **__):
    raise torch.OutOfMemoryError(SAID)


def page(train, *arguments):
    with pytest.raises(UserError) as caught:
        train(*arguments, "validation.enable=false")
    assert getattr(caught.value, "exit_code", 2) == 2
    return str(caught.value)


def savings(text):
    return [float(n) * {"B": 1, "kB": 1e3, "MB": 1e6}[u] for n, u in re.findall(r"saves ([\d.]+) (B|kB|MB)", text)]


def test_the_page_of_a_training_pass(train, monkeypatch):
    forward = SanaTransformerBlock.forward

    def full(self, x, *rest):
        return short() if torch.is_grad_enabled() and type(x) is torch.Tensor else forward(self, x, *rest)

    monkeypatch.setattr(SanaTransformerBlock, "forward", full)  # predictions have tensors of another type
    text = page(train, "nft")
    numberless = re.sub(r"[\d.,]+ (B|kB|MB|GB)\b", "N", text) + "\n"  # sizes differ between versions of torch
    if os.environ.get("SANARL_SNAPSHOTS") == "write":
        PAGE.write_text(numberless, encoding="utf-8")
    assert numberless == PAGE.read_text(encoding="utf-8")
    assert "train.train_policy.mini_batch = 2  saves" in text
    assert savings(text) == sorted(savings(text), reverse=True)
    assert len(savings(text)) == 3


@pytest.mark.parametrize("task", ["sft-lora", "nft"])
def test_wherever_it_comes_from(train, monkeypatch, task):
    name = "encode" if task == "sft-lora" else "decode"
    method = getattr(AutoencoderDC, name)
    monkeypatch.setattr(AutoencoderDC, name, lambda s, x: short() if type(x) is torch.Tensor else method(s, x))
    text = page(train, task, "policy.diffusers.vae_tiles=false")
    assert text.startswith("the memory of the GPU is not enough: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert "memory plan (as_written): checkpointing off, mini_batch" in text
    assert "what would help most here" in text


def test_a_reward_that_takes_too_much_is_named(train, tmp_path):
    file = tmp_path / "large.py"
    file.write_text(f"import torch\ndef large(m, p, d):\n    raise torch.OutOfMemoryError({SAID!r})\n")
    text = page(train, "nft", f'train.train_policy.reward_function={{ "{file}:large" = 1.0 }}')
    assert "the memory of the GPU is not enough" in text
    assert "reward 'large' failed on a batch" in text


def test_other_errors_stay_what_they_are(train, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(SanaTransformerBlock, "forward", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        train("sft-lora", "validation.enable=false")

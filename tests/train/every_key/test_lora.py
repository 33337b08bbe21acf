"""[policy.lora]: each case shows its key being honoured, or the value refused.

Of an adapter's two factors, B starts at zero unless a case says otherwise.
"""

import pytest
import torch

from sanarl.config import ConfigError
from sanarl.errors import UserError

pytestmark = pytest.mark.parametrize("frames", [1, 5], ids=["image", "video"], indirect=True, scope="module")
honours = pytest.mark.honours
LORA = "policy.lora"


def start(lab, *overrides):
    """Name -> starting value."""
    return lab.learner(lab.quick("sft-lora", lab.still, *overrides))


@honours(f"{LORA}.lora_names")
def test_value_sets(lab):
    for task, names in (("sft-lora", '["default", "old"]'), ("nft", '["default"]')):
        with pytest.raises(ConfigError, match=r"policy\.lora\.lora_names"):
            lab.loaded(task, f"{LORA}.lora_names={names}")
    for task, sets in (("sft-lora", {"learner"}), ("nft", {"learner", "old", "reference"})):
        paths = [p.split("/") for p in lab.quick(task).state(1) if p.startswith("/policy/sets/")]
        assert {path[3] for path in paths} == sets


@honours(f"{LORA}.r")
def test_rank(lab):
    assert {min(v.shape) for v in start(lab, f"{LORA}.r=3").values()} == {3}


@honours(f"{LORA}.r_pattern")
def test_rank_of_single_layers(lab):
    ranks = {name: min(v.shape) for name, v in start(lab, f'{LORA}.r_pattern={{ "attn2.to_q" = 2 }}').items()}
    assert {rank for name, rank in ranks.items() if "attn2.to_q" in name} == {2}
    assert {rank for name, rank in ranks.items() if "attn2.to_q" not in name} == {4}
    for key in ("r_pattern", "alpha_pattern"):
        with pytest.raises(UserError, match=rf"policy\.lora\.{key}: 'attn2.to_k' is the name of no layer"):
            lab.parts("sft-lora", f'{LORA}.{key}={{ "attn2.to_k" = 2 }}')
        with pytest.raises(UserError, match=rf"policy\.lora\.{key}: '\(' is no regular expression"):
            lab.parts("sft-lora", f'{LORA}.{key}={{ "(" = 2 }}')


@pytest.mark.parametrize(
    ("override", "factor"),
    [
        pytest.param(f"{LORA}.lora_alpha=16", 2.0, marks=honours(f"{LORA}.lora_alpha")),
        pytest.param(f"{LORA}.use_rslora=true", 2.0, marks=honours(f"{LORA}.use_rslora")),
        pytest.param(f'{LORA}.alpha_pattern={{ "attn2.to_q" = 16.0 }}', None, marks=honours(f"{LORA}.alpha_pattern")),
        pytest.param(f'{LORA}.alpha_pattern={{ ".*" = 16.0 }}', 2.0, marks=honours(f"{LORA}.alpha_pattern")),
    ],
)
def test_scale(lab, override, factor):
    # By hand: rank 4 and alpha 8 scale by 2; alpha 16 by 4, and 8 / sqrt(4) by 4. B's gradient grows in proportion,
    # and while B is zero the loss does not move. A pattern for some layers lies between.
    plain, scaled = lab.quick("sft-lora").metrics[0], lab.quick("sft-lora", override).metrics[0]
    assert scaled["loss"] == plain["loss"]
    ratio = scaled["grad_norm"] / plain["grad_norm"]
    assert ratio == pytest.approx(factor, rel=1e-4) if factor else 1 < ratio < 2


@honours(f"{LORA}.target_modules")
def test_target_modules(lab):
    names = start(lab, f'{LORA}.target_modules=["attn1.to_k"]')
    assert {name.partition(".lora_")[0].split(".", 2)[2] for name in names} == {"attn1.to_k"}


@honours(f"{LORA}.init_lora_weights")
def test_start_of_the_adapter(lab):
    # Of width 16 and rank 4: Kaiming-uniform A lies within 1 / sqrt(16); the normal one has a deviation of 1 / 4.
    for value, within, zero in (("true", True, True), ('"gaussian"', False, True), ("false", True, False)):
        values = start(lab, f"{LORA}.init_lora_weights={value}")
        largest = max(v.abs().max() for name, v in values.items() if "lora_A" in name)
        assert (largest <= 0.25) == within
        assert all(bool((v.abs() < 1e-20).all()) == zero for name, v in values.items() if "lora_B" in name)


@honours(f"{LORA}.lora_path")
def test_start_from_an_adapter(lab):
    first = lab.quick("sft-lora", "train.ckpt.export_safetensors=true")
    went_on = start(lab, f'{LORA}.lora_path="{first.folder / "safetensors" / "step_1"}"')
    saved = lab.learner(first)
    assert all(torch.equal(value, saved[name]) for name, value in went_on.items())

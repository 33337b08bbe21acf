"""Full fine-tuning with weights cut over ranks, on gloo, against one process: numbers, checkpoints, exports."""

import pytest
import torch
from diffusers import SanaTransformer2DModel, SanaVideoTransformer3DModel

from sanarl.runtime.sharding import sizes

ROUNDING = 5e-5


@pytest.mark.parametrize(
    ("world", "asked", "expected"),
    [(8, 8, (1, 8)), (8, 4, (2, 4)), (2, 8, (1, 2)), (3, 2, (1, 3)), (12, 8, (1, 12)), (12, 5, (2, 6)), (4, 2, (2, 2))],
)
def test_nobody_holds_more_than_was_asked(world, asked, expected):
    # By hand: copies x ranks of a copy.
    assert sizes(world, asked) == expected


def cut(text, shards, mini_batch=1):
    """The TOML with weights shared by so many ranks; the global batch stays 6."""
    text = text.replace("train_batch_per_replica = 6", f"train_batch_per_replica = {6 // shards}")
    text = text.replace("mini_batch = 3", f"mini_batch = {mini_batch}")
    return text.replace("[train]\n", f"[policy.parallelism]\ndp_shard_size = {shards}\n[train]\n", 1)


@pytest.mark.slow
def test_cut_weights_train_as_whole_ones(toml, same, run_text, make_run, on_ranks, tmp_path):
    # Reference: one process with the same configuration, uninterrupted. On four ranks (two copies, each on two ranks)
    # two have two samples and two have one, so that some have fewer backward passes; six held-out samples likewise.
    # "moved": saved by two ranks after step 1, gone on with by one process, from step 2 by three, from step 3 by two.
    cases, texts = [], {}
    for name, count, shards, frames in (("two", 2, 2, 1), ("three", 3, 3, 1), ("copies", 4, 2, 1), ("clips", 2, 2, 5)):
        texts[name] = cut(toml("sft", tmp_path / name, frames), shards)
        (tmp_path / f"{name}.toml").write_text(texts[name], encoding="utf-8")
        cases.append((count, tmp_path / f"{name}.toml", "never"))
    moved = tmp_path / "moved"
    text = cut(toml("sft", moved), 2).replace("save_freq = 2", "save_freq = 1")
    file = moved.with_suffix(".toml")
    file.write_text(text, encoding="utf-8")
    on_ranks([*cases, (2, file, "never")])
    saved = next(moved.iterdir()) / "checkpoints"
    run_text(text, moved, resume=str(saved / "step_1"))
    on_ranks([(3, file, saved / "step_2"), (2, file, saved / "step_3")])
    expected = {}
    for name, text in texts.items():
        place = tmp_path / f"{name}-one"
        expected[name] = run_text(text.replace(str(tmp_path / name), str(place)), place)
        many = make_run(next((tmp_path / name).iterdir()))
        same(many, expected[name], rounding=ROUNDING)
        assert (many.folder / "checkpoints" / "step_4" / "parts").is_dir()
        export = many.folder / "safetensors" / "step_4"
        theirs = expected[name].folder / "safetensors" / "step_4"
        assert sorted(p.relative_to(export) for p in export.rglob("*")) == sorted(
            p.relative_to(theirs) for p in theirs.rglob("*")
        )
        kind = SanaVideoTransformer3DModel if name == "clips" else SanaTransformer2DModel
        mine, other = (kind.from_pretrained(folder / "transformer").state_dict() for folder in (export, theirs))
        torch.testing.assert_close(mine, other, rtol=0, atol=ROUNDING)
    assert [(saved / f"step_{step}" / "parts").is_dir() for step in (1, 2, 3, 4)] == [True, False, True, True]
    assert len(list((saved / "step_3" / "parts").glob("*.distcp"))) == 3
    same(make_run(saved.parent), expected["two"], rounding=ROUNDING)

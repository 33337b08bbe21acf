"""Two and three ranks over gloo against one: the same trajectory up to the rounding of sums in another order."""

import pytest

ROUNDING = 5e-5

CASES = {
    "sft": ("sft", ()),
    # Two optimiser steps a rollout; 3 prompts x 4 samples on 2 ranks cut the second group in half.
    "nft": ("nft", ()),
    # Of six candidates five are drawn in full and four trained: rows change ranks twice.
    "nft-pool": (
        "nft",
        (("n_generation = 4", "n_generation = 4\nn_candidates = 6\npreview = { num_steps = 2, n_regenerate = 5 }"),),
    ),
    "nft-one-update": ("nft", ("batch_size_per_optimize = 6", "batch_size_per_optimize = 12")),
    # One prompt of two samples, an optimiser step a sample: a rank has no rows in each; three held-out samples.
    "nft-few": (
        "nft",
        (
            ("train_batch_per_replica = 12", "train_batch_per_replica = 2"),
            ("n_generation = 4", "n_generation = 2"),
            ("batch_size_per_optimize = 6", "batch_size_per_optimize = 1"),
            ("num_prompts = 3\nn_generation = 2", "num_prompts = 3\nn_generation = 1"),
        ),
    ),
    # Nine samples of three fixed prompts: one rank takes five of them.
    "nft-guards": (
        "nft",
        ("[guards]\nenable = false", "[guards]\nfreq = 2\nnum_prompts = 3\nn_generation = 3"),
    ),
    # The plan is made for the rank with the least memory and the most rows.
    "nft-auto": ("nft", ("is_diffusers = true", 'is_diffusers = true\nmemory_plan = "auto"')),
    "flowgrpo": ("flowgrpo", ()),
    # The same, with a window drawn for every group, shared starting noise, guidance, old means and two passes.
    "flowgrpo-few": (
        "flowgrpo",
        (
            ("train_batch_per_replica = 12", "train_batch_per_replica = 2"),
            ("n_generation = 4", "n_generation = 2"),
            ("batch_size_per_optimize = 6", "batch_size_per_optimize = 1\nmu_iterations = 2\nratio_norm = true"),
            ("guidance_scale = 1.0", "guidance_scale = 2.0\nsde_window_size = 1\nsame_latent = true"),
        ),
    ),
    # One sample a step and one held-out picture: the main rank has neither.
    "sft-one": (
        "sft-lora",
        (
            ("train_batch_per_replica = 6", "train_batch_per_replica = 1"),
            ("num_prompts = 3\nn_generation = 2", "num_prompts = 1\nn_generation = 1"),
        ),
    ),
    "clips-sft": ("sft", ()),
    "clips-nft": ("nft", ()),
    # On three ranks: 6 samples a step; 12 samples of groups of 4.
    "three-sft": ("sft-lora", ()),
    "three-nft": ("nft", ()),
}


def text_of(toml, case, output):
    task, changes = CASES[case]
    text = toml(task, output, 5 if case.startswith("clips") else 1)
    for old, new in [changes] if changes and isinstance(changes[0], str) else changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.mark.slow
def test_ranks_are_one(toml, run_text, same, baseline, tmp_path, make_run, on_ranks):
    # Reference: one rank in this process; for the last, one rank without a break: the checkpoint of step 2 was written
    # by one rank, and says nothing about ranks.
    cases = []
    for case in CASES:
        file = tmp_path / f"{case}-two.toml"
        file.write_text(text_of(toml, case, tmp_path / f"{case}-two"), encoding="utf-8")
        cases.append((3 if case.startswith("three") else 2, file, "never"))
    begun = run_text(toml("nft", tmp_path / "resumed"), tmp_path / "resumed")
    cases.append((2, tmp_path / "resumed.toml", begun.folder / "checkpoints" / "step_2"))
    # A signal that only the second rank hears, in its third step of three items each, ends both with a checkpoint.
    heard = tmp_path / "heard.toml"
    heard.write_text(toml("sft", tmp_path / "heard"), encoding="utf-8")
    cases.append((2, heard, "signal:7"))
    on_ranks(cases)
    (stopped,) = (tmp_path / "heard").iterdir()
    assert sorted(p.name for p in (stopped / "checkpoints").iterdir()) == ["step_2", "step_3"]
    for case in CASES:
        one = run_text(text_of(toml, case, tmp_path / case), tmp_path / case)
        two = make_run(next((tmp_path / f"{case}-two").iterdir()))
        same(two, one, rounding=ROUNDING)
    same(begun, baseline("nft"), rounding=ROUNDING)

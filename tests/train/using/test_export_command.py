"""sanarl export: what it wrote is loaded here once more, without its own check, and what is wrong is refused."""

import json
import shutil

import pytest
import torch
from diffusers import SanaPipeline
from peft import PeftModel
from safetensors.torch import load_file, save_file

from sanarl.errors import UserError
from sanarl.models.proof import Proof, prove
from sanarl.using.subject import Asked, opened


def subject(run, step="last"):
    return opened(Asked(run.folder, None, None, step, ()), torch.device("cpu"))


@torch.no_grad()
def prediction(transformer, cond):
    x = torch.randn(2, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    named = {"encoder_hidden_states": cond.embeds, "encoder_attention_mask": cond.mask, "return_dict": False}
    return transformer(x, timestep=torch.tensor([300.0, 800.0]), **named)[0]


@pytest.mark.parametrize(("task", "target"), [("nft", "diffusers"), ("sft-lora", "peft"), ("sft", "diffusers")])
def test_an_export_predicts_what_the_run_does(task, target, baseline, sanarl, tmp_path, pipeline_folder):
    # Reference: the run's own transformer with the values of the moving average, called as diffusers calls it.
    run = baseline(task)
    out = tmp_path / "out"
    done = sanarl("export", run.folder, "--to", target, "--step", "last", "--out", out)
    assert (done.code, done.out) == (0, f"{out}\n"), done.err
    whole = subject(run)
    cond = whole.policy.model.encode_prompts(["a red circle", "two blue squares"])
    found = SanaPipeline.from_pretrained(out if task == "sft" else pipeline_folder)
    if target == "peft":
        found.transformer = PeftModel.from_pretrained(found.transformer, out)
    elif task == "nft":
        found.load_lora_weights(out)
    theirs = prediction(found.transformer, cond)
    with whole.policy.using(whole.values["trained"]):
        torch.testing.assert_close(theirs, prediction(whole.policy.model.transformer, cond), rtol=0, atol=1e-6)
    with whole.policy.using(whole.values["base"]):
        assert (theirs - prediction(whole.policy.model.transformer, cond)).abs().max() > 1e-4
    card = (out / "README.md").read_text(encoding="utf-8")
    assert ("PeftModel" in card) == (target == "peft")
    assert "4, " in card


def test_a_checkpoint_alone_is_exported(baseline, sanarl, tmp_path):
    # Reference: the export that the run wrote.
    run = shutil.copytree(baseline("nft").folder, tmp_path / "run")
    shutil.rmtree(run / "safetensors")
    assert sanarl("export", run, "--step", 4, "-q").code == 0
    name = "pytorch_lora_weights.safetensors"
    found, expected = (
        load_file(f / name) for f in (run / "export/diffusers_step_4", baseline("nft").folder / "safetensors/step_4")
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert "held-out reward" in (run / "export/diffusers_step_4/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("frames", [5], indirect=True)
def test_a_run_of_clips_is_exported_and_scored(baseline, sanarl, tmp_path):
    # Reference: the command's own proof; eval/reward of the run's last evaluation.
    run = baseline("nft")
    for target in ("diffusers", "peft"):
        done = sanarl("export", run.folder, "--to", target, "--step", "last", "--out", tmp_path / target)
        assert done.code == 0, done.err
    done = sanarl("eval", run.folder, "--step", "last", "--num-samples", 2, "--out", tmp_path / "eval", "--json")
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)["rewards"].values()
    assert row["trained"]["mean"] == pytest.approx(run.metrics[-1]["eval/reward"], rel=1e-6)


@pytest.mark.parametrize("target", ["diffusers", "peft"])
def test_a_damaged_export_fails_its_proof(target, baseline, sanarl, tmp_path):
    from sanarl.models.load import load_transformer
    from sanarl.training.modelling import model_settings

    run = baseline("nft")
    out = tmp_path / "out"
    assert sanarl("export", run.folder, "--to", target, "--step", "last", "--out", out).code == 0
    whole = subject(run)

    def proof():
        fresh = lambda: load_transformer(model_settings(whole.config), torch.device("cpu"))  # noqa: E731
        return prove(whole.policy, whole.values["trained"], whole.values["base"], out, target, fresh)

    proof().require(out)
    (file,) = out.glob("*.safetensors")
    layers = load_file(file)
    save_file(
        {name: 0.9 * value if "lora_B" in name else value for name, value in layers.items()},
        file,
        metadata=None if target == "peft" else metadata(file),
    )
    with pytest.raises(UserError, match="loaded again it is not what was trained"):
        proof().require(out)


def metadata(file):
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened_file:
        return opened_file.metadata()


@pytest.mark.parametrize(
    ("error", "effect", "words"),
    [
        (0.0, 0.0, "nothing was trained"),
        (1e-3, 1.0, "is not what was trained"),
        (6e-6, 1e-5, "is not what was trained"),
    ],
)
def test_what_a_proof_refuses(error, effect, words, tmp_path):
    with pytest.raises(UserError, match=words):
        Proof(error, effect, 1e-5).require(tmp_path)
    Proof(1e-6, 1e-5, 1e-5).require(tmp_path)


def test_what_cannot_be_exported(baseline, sanarl, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("")
    for arguments, words in (
        (["sft", "--to", "peft"], "all weights were trained, there is no adapter"),
        (["nft", "--to", "comfyui"], "accepted: diffusers or peft"),
        (["nft", "--step", "0"], "--step 0 is the base itself"),
        (["nft", "--step", "3"], "accepted: best, last, 0 (the start), 2, 4"),
        (["nft", "--out", tmp_path / "taken"], "is not empty"),
    ):
        task, *rest = arguments
        rest = rest if "--out" in rest else [*rest, "--out", tmp_path / "out"]
        done = sanarl("export", baseline(task).folder, *rest)
        assert (done.code, words in done.err) == (2, True), done.err
        assert not (tmp_path / "out").exists()

"""sanarl validate and sanarl presets, through the command line's own entry point."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sanarl import cli


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["sanarl", *arguments])
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_shipped_presets_are_valid_without_torch() -> None:
    code = "import sys; sys.argv = ['sanarl', 'validate', 'presets']\nfrom sanarl import cli\ntry:\n    cli.main()\n"
    code += "except SystemExit as stop:\n    assert not stop.code, stop.code\nassert 'torch' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok: ") == 106


def test_faults_go_to_stderr_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text("[policy]\nmodel_name_or_path = 'x'\nis_diffusers = true\nxyz = 1\n")
    code, out, err = run(capsys, monkeypatch, "validate", "tiny-image-sft", "bad.toml")
    assert code == 2
    assert "ok: sft" in out
    assert "2 faults" in out
    assert err.splitlines() == [
        "bad.toml:4: policy.xyz: unknown key",
        'bad.toml: train.train_policy: missing; accepted a table with type = "sft" or type = "grpo"',
    ]


def test_json_is_one_document_on_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(
        capsys, monkeypatch, "validate", "--json", "tiny-image-nft", "nowhere.toml", "--set", "mode=colocated"
    )
    assert code == 2
    good, bad = json.loads(out)["files"]
    assert (good["valid"], good["task"], good["model"], good["faults"]) == (True, "nft", "tiny-image", [])
    assert good["notes"] == [{"level": "info", "text": "no effect here: mode"}]
    assert (bad["valid"], bad["faults"][0]["line"]) == (False, None)
    assert "no such file" in bad["faults"][0]["text"]
    assert "nowhere.toml" in err


def test_keys(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(capsys, monkeypatch, "validate", "--keys", "--json")
    assert code == 0
    rows = json.loads(out)["keys"]
    fates = {row["key"]: row["fate"] for row in rows}
    assert fates["train.optm_lr"] == "honoured"
    assert fates["policy.diffusers.timestep_fraction"] == "alias"
    assert fates["redis"] == "no effect"
    assert fates["policy.parallelism.tp_size"] == "unsupported value"
    code, out, _ = run(capsys, monkeypatch, "validate", "--keys")
    assert len(out.splitlines()) == len(rows)


def test_nothing_to_validate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run(capsys, monkeypatch, "validate")
    assert (code, out) == (2, "")
    assert "name a TOML file or a preset" in err


def test_presets_list_and_show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(capsys, monkeypatch, "presets", "list")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert len(lines) == 106
    start = sorted(name for name, line in lines.items() if "start here" in line)
    assert start == ["sana-image-nft-diffusionnft-pickscore", "tiny-image-nft"]
    assert "needs a compiler for torch.compile, a GPU of compute" in lines["sana-image-nft-sol_rl-fp8-hpsv2"]
    assert lines["sana-image-nft-naive_scaling-hpsv2"].endswith("needs the weights of hpsv2")
    assert lines["sana-image-nft-diffusionnft-pickscore"].endswith("start here; needs the weights of pickscore")
    assert lines["sana-image-nft"].endswith("needs a reward service")
    assert "needs" not in lines["tiny-image-nft"] + lines["sana-image-sft"]
    code, out, _ = run(capsys, monkeypatch, "presets", "show", "tiny-image-nft.toml")
    assert out == Path("presets/tiny-image-nft.toml").read_text(encoding="utf-8")
    names = "sana_sol_rl_hpsv2", "sana-image-nft-sol_rl-hpsv2"
    shown = [run(capsys, monkeypatch, "presets", "show", name)[1] for name in names]
    assert shown[0] == shown[1] != ""
    code, out, err = run(capsys, monkeypatch, "presets", "show", "tiny-image-ntf")
    assert (code, out, err) == (2, "", "tiny-image-ntf: no preset of that name; did you mean tiny-image-nft?\n")


def test_presets_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path("presets/tiny-image-nft.toml").read_text(encoding="utf-8")
    mine = tmp_path / "mine.toml"
    mine.write_text("# mine\n" + text.replace("optm_lr = 1e-3", "optm_lr = 5e-4"), encoding="utf-8")
    code, out, _ = run(capsys, monkeypatch, "presets", "diff", "tiny-image-nft", str(mine))
    assert (code, out) == (0, "train.optm_lr: 0.001 -> 0.0005\n")
    code, out, _ = run(capsys, monkeypatch, "presets", "diff", "tiny-image-sft", "tiny-image-sft-lora")
    assert "policy.lora.r: unset -> 16" in out.splitlines()
    assert not any(line.startswith("policy.lora:") for line in out.splitlines())


def test_names_are_checked_at_their_lines_without_torch(tmp_path: Path) -> None:
    text = Path("presets/tiny-image-nft.toml").read_text(encoding="utf-8")
    file = tmp_path / "mine.toml"
    text = text.replace('"attn1.to_q"', '"attn1.to_qq"').replace(
        "{ shapes = 1.0 }", '{ shapez = 1.0, "no.py:f" = 1.0 }'
    )
    file.write_text(text, encoding="utf-8")
    lines = text.splitlines()
    targets, rewards = (next(n for n, line in enumerate(lines, 1) if key in line) for key in ("target_mod", "shapez"))
    code = f"import sys; sys.argv = ['sanarl', 'validate', {str(file)!r}, '--set', 'guards.reward_function=ocrr']\n"
    code += "from sanarl import cli\ntry:\n    cli.main()\nexcept SystemExit as stop:\n    assert stop.code == 2\n"
    code += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = [line.partition("; accepted")[0] for line in done.stderr.splitlines()]
    assert said == [
        "--set guards.reward_function=ocrr: guards.reward_function.ocrr: is not known; did you mean 'ocr'?",
        f"{file}:{rewards}: train.train_policy.reward_function.shapez: is not known; did you mean 'shapes'?",
        f'{file}:{rewards}: train.train_policy.reward_function."no.py:f": is in no file: there is none at no.py',
        f"{file}:{targets}: policy.lora.target_modules: no layer is called attn1.to_qq; did you mean attn1.to_q?",
    ]


def test_a_text_of_layers_is_an_expression_for_whole_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = "policy.lora.target_modules='attn1.to_q'"
    code, _, err = run(capsys, monkeypatch, "validate", "tiny-image-nft", "--set", given)
    assert code == 2
    words = "a text is a regular expression for whole names; layers that end so are a list"
    assert f'no layer is called attn1.to_q; {words}: ["attn1.to_q"]' in err


@pytest.mark.parametrize(("preset", "most"), [("tiny-image-sft-lora", 96), ("sana-image-sft-lora", 2240)])
def test_a_rank_beyond_the_layers_is_refused(
    preset: str, most: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capsys, monkeypatch, "validate", preset, "--set", "policy.lora.r=4096")
    assert code == 2
    assert f"policy.lora.r: found 4096; accepted at most {most}, the width of the widest of these layers" in err
    assert run(capsys, monkeypatch, "validate", preset, "--set", f"policy.lora.r={most}")[0] == 0

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
    assert done.stdout.count("ok: ") == 16


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
    assert len(out.splitlines()) == 16
    code, out, _ = run(capsys, monkeypatch, "presets", "show", "tiny-image-nft.toml")
    assert out == Path("presets/tiny-image-nft.toml").read_text(encoding="utf-8")
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

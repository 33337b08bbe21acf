"""sanarl doctor, through the command line's own entry point. Nothing is replaced but what the machine holds."""

import json
import os
import socket
import subprocess
import sys

import pytest

from sanarl import cli

SECRET = "marker-that-must-not-be-seen"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """A function that runs doctor in an empty folder, with secrets set and the network forbidden."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)

    def refuse(*arguments):
        raise AssertionError(f"network access: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)

    def doctor(*arguments):
        monkeypatch.setattr(sys, "argv", ["sanarl", "doctor", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        assert SECRET not in out + err
        assert "Traceback" not in out + err
        return int(stop.value.code or 0), out, err

    return doctor


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of distributions in front of all others."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def put(name, version, *headers):
        (folder / f"{name}-{version}.dist-info").mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *headers]
        (folder / f"{name}-{version}.dist-info" / "METADATA").write_text("\n".join(lines) + "\n")
        return folder

    return put


def test_this_machine_is_ready(run):
    code, out, err = run("--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert set(report) == {
        *("ready", "problems", "version", "location", "python", "executable"),
        *("checks", "packages", "extras", "devices", "precisions"),
    }
    assert (report["ready"], report["problems"], report["executable"]) == (True, [], sys.executable)
    packages = {one["name"]: one for one in report["packages"]}
    assert {"torch", "torchvision", "diffusers", "transformers", "peft", "accelerate", "safetensors"} <= set(packages)
    assert {one["state"] for one in packages.values()} == {"ok"}
    assert set(packages["torch"]) == {"name", "needs", "found", "state", "reason", "install"}
    extras = {one["name"]: one for one in report["extras"]}
    assert set(extras) == {"rewards", "serve", "plots", "tensorboard", "docs", "data", "nvfp4", "dev"}
    for one in extras.values():
        assert one["installed"] == (not one["missing"]) == (one["install"] is None)
    checks = {(one["section"], one["name"]): one for one in report["checks"]}
    assert checks["machine", "memory"]["value"] > 2**28
    assert all(checks["embedded model", name]["ok"] is True for name in ("tiny-image", "tiny-video"))
    engines = {name: one for (section, name), one in checks.items() if section == "presets"}
    assert {"sana-image-nft-compile-*", "sana-image-nft-sol_rl-*", "sana-image-nft-sol_rl-fp8-*"} <= set(engines)
    assert all((one["ok"] is True) == one["detail"].startswith("can run here") for one in engines.values())
    assert checks["Hugging Face hub", "token"]["detail"] == "set (HF_TOKEN)"
    assert checks["Hugging Face hub", "HF_HUB_OFFLINE"]["value"] is True  # set for all tests
    assert checks["wandb", "login"]["detail"].startswith("logged in (WANDB_API_KEY)")
    assert set(report["devices"]) == {"gpus", "reason", "torch_cuda", "driver", "nccl"}
    assert bool(report["devices"]["gpus"]) == (report["devices"]["reason"] is None)
    rows = {(one["name"], one["device"]): one for one in report["precisions"]}
    assert rows["float32", "cpu"]["works"]
    assert {name for name, _ in rows} == {"float32", "bfloat16", "float16", "FP8 row-wise", "NVFP4"}
    assert all(one["works"] == (one["reason"] is None) for one in rows.values())


def test_missing_and_old_packages_are_named_with_their_install_lines(run, site):
    site(
        "sanarl", "9.9", "Requires-Python: >=3.11", "Requires-Dist: tomli>=2.0.2", "Requires-Dist: not-there-at-all>=3"
    )
    site("tomli", "1.0")
    code, out, err = run()
    assert code == 2
    assert err.splitlines() == [
        "not ready:",
        "  tomli is too old: 1.0 is installed, >=2.0.2 is asked",
        "  not-there-at-all is missing: not installed",
    ]
    assert "ready: training" not in out
    assert f"  tomli: {sys.executable} -m pip install 'tomli>=2.0.2'\n" in out
    assert f"  not-there-at-all: {sys.executable} -m pip install 'not-there-at-all>=3'\n" in out
    code, out, _ = run("--json")
    states = {one["name"]: one["state"] for one in json.loads(out)["packages"]}
    assert (code, states) == (2, {"tomli": "too old", "not-there-at-all": "missing"})


def test_a_missing_extra_does_not_keep_from_training(run, site):
    site("sanarl", "9.9", "Requires-Dist: tomli", "Provides-Extra: art", "Requires-Dist: easel>=2; extra == 'art'")
    code, out, err = run()
    assert (code, err) == (0, "")
    assert "not installed: easel missing" in out
    assert f"  art: {sys.executable} -m pip install 'sanarl[art]'\n" in out
    assert "ready: training is possible here, on " in out


def test_a_broken_package_is_a_row(run, site):
    folder = site("sanarl", "9.9", "Requires-Dist: torn")
    site("torn", "1.0")
    (folder / "torn.py").write_text("raise ImportError('libtorn.so: undefined symbol')\n")
    code, out, err = run()
    assert code == 2
    assert "torn is broken: cannot be imported: ImportError: libtorn.so: undefined symbol" in err
    assert f"{sys.executable} -m pip install --force-reinstall 'torn'\n" in out


def test_without_torch_there_is_still_an_answer(site, tmp_path):
    folder = site("sanarl", "9.9", "Requires-Dist: torch>=2.6", "Requires-Dist: easel")
    site("easel", "1.0")
    (folder / "easel.py").write_text("import torch\n")
    (folder / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    done = subprocess.run(
        [sys.executable, "-m", "sanarl", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "torch is broken: cannot be imported: ImportError: libcudart.so.13" in done.stderr
    report = json.loads(done.stdout)
    easel, torch = sorted(report["packages"], key=lambda one: one["name"])
    assert easel["reason"].endswith("; mend torch first")
    assert (easel["install"], torch["install"] is None) == (None, False)
    assert "torch cannot be imported: ImportError: libcudart.so.13" in report["devices"]["reason"]
    assert not any(one["works"] for one in report["precisions"])


def test_a_working_directory_that_is_gone_is_said(run, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, out, err = run()
    assert (code, out) == (2, "")
    assert err == "sanarl doctor: the working directory is gone; change to one that exists\n"

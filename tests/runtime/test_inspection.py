"""What a machine is found to have. Packages are real distribution folders on sys.path; products are compared by the
probes themselves with float64."""

import json
import os
import struct
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from sanarl.runtime import hardware, inspection, requirements

FLOATS = ("float32", "bfloat16", "float16")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that puts a distribution (and a module, when given) in front of all others."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def put(name, version, *headers, module=None):
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *headers]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        if module is not None:
            (folder / f"{name.replace('-', '_')}.py").write_text(module)
        return info

    return put


def found(line):
    return requirements.look_up(Requirement(line))


def test_versions_are_compared_with_the_specifier(install):
    install("thing", "1.9.0")
    assert found("thing>=1.9").state == "ok"
    assert found("thing").state == "ok"
    old = found("thing>=1.10")
    assert (old.state, old.found, old.reason) == ("too old", "1.9.0", "1.9.0 is installed, >=1.10 is asked")
    assert old.install == f"{sys.executable} -m pip install 'thing>=1.10'"
    assert found("thing<1.9").state == "not accepted"
    assert found("thing!=1.9.0,>=1.0").state == "not accepted"
    gone = found("no-such-thing>=3")
    assert (gone.state, gone.found, gone.reason) == ("missing", None, "not installed")


@pytest.mark.parametrize("version", ["2.0.0rc1", "2.0.0+cu128", "2.0.0.dev20260101"])
def test_prereleases_and_local_versions_count(install, version):
    install("thing", version)
    assert found("thing>=1.5").state == "ok"


def test_damaged_metadata_is_a_state(install):
    install("thing", "not a version")
    assert found("thing>=1").state == "broken"
    (install("other", "1.0") / "METADATA").write_text("")
    assert found("other>=1").reason == "its metadata names no version"


def test_extras_of_a_requirement_are_followed(install):
    install("engine", "2.8", "Provides-Extra: torchy", "Requires-Dist: engine-torchy>=2.8; extra == 'torchy'")
    assert found("engine>=2").state == "ok"
    half = found("engine[torchy]>=2")
    assert (half.state, half.reason) == ("missing", "engine[torchy] asks engine-torchy>=2.8: not installed")
    assert half.install.endswith("'engine[torchy]>=2'")


def test_broken_packages_are_told_from_whole_ones(install, capsys):
    install("whole", "1.0", module="print('noise')")
    install("torn", "1.0", module="raise OSError('libtorn.so: cannot open shared object file')")
    install("quitter", "1.0", module="raise SystemExit(3)")
    assert requirements.importable(found("whole")).state == "ok"
    assert capsys.readouterr().out == ""  # stdout is for the document
    torn = requirements.importable(found("torn>=0.5"))
    assert (torn.state, torn.found) == ("broken", "1.0")
    assert torn.reason == "cannot be imported: OSError: libtorn.so: cannot open shared object file"
    assert torn.install.endswith("pip install --force-reinstall 'torn>=0.5'")
    assert requirements.importable(found("quitter")).reason == "cannot be imported: SystemExit: 3"


def test_markers_and_extras_select_requirements():
    lines = [
        "always>=1",
        "never>=1; python_version < '3'",
        "only-extra; extra == 'more'",
        "both; extra == 'more' and python_version >= '3'",
    ]
    assert [one.name for one in requirements.wanted(lines)] == ["always"]
    assert [one.name for one in requirements.wanted(lines, "more")] == ["only-extra", "both"]


def test_installed_metadata_is_read(install, tmp_path):
    install("sanarl", "9.9", "Requires-Python: >=3.11", "Requires-Dist: always>=1", "Provides-Extra: more")
    project = requirements.declared(tmp_path)
    assert project == requirements.Declared(("always>=1",), ("more",), ">=3.11", "sanarl")


SOURCE = """
[project]
requires-python = ">=3.11"
dependencies = ["always>=2"]
[project.optional-dependencies]
more = ["one>=1", "two; python_version >= '3'"]
"""


def test_a_source_tree_answers_for_itself(install, tmp_path):
    (tmp_path / "pyproject.toml").write_text(SOURCE)
    project = requirements.declared(tmp_path, "not-installed-at-all")
    assert [str(one) for one in requirements.wanted(project.requires)] == ["always>=2"]
    assert [one.name for one in requirements.wanted(project.requires, "more")] == ["one", "two"]
    assert requirements.extra(project, "more").install == f"{sys.executable} -m pip install '{tmp_path}[more]'"
    with pytest.raises(metadata.PackageNotFoundError):
        requirements.declared(tmp_path / "nowhere", "not-installed-at-all")
    # An editable install's metadata is as old as the install.
    info = install("linked", "1.0", "Requires-Dist: always>=1")
    assert requirements.declared(tmp_path, "linked").requires == ("always>=1",)
    (info / "direct_url.json").write_text(json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": True}}))
    assert requirements.declared(tmp_path, "linked").requires[0] == "always>=2"


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_probes_judge_the_product(dtype, monkeypatch):
    state = torch.get_rng_state()
    assert hardware.attempt(dtype, "cpu", lambda: hardware.try_float("cpu", dtype)).works
    assert torch.equal(torch.get_rng_state(), state)
    monkeypatch.setitem(hardware.TOLERANCES, dtype, 1e-9)
    refused = hardware.attempt(dtype, "cpu", lambda: hardware.try_float("cpu", dtype))
    assert not refused.works
    assert refused.reason.startswith("ArithmeticError: the product is off by ")


def test_the_fp8_probe_pairs_rows_and_columns_rightly():
    # torch has the same operation on the CPU in some releases; where it has not, the reason is torch's.
    row = hardware.attempt("FP8 row-wise", "cpu", lambda: hardware.try_fp8("cpu"))
    assert row.works or not row.reason.startswith("ArithmeticError")


def test_small_gpus_are_refused_without_being_tried():
    gpu = hardware.Device(0, "Old", 1, 1, (7, 5))
    rows = {row.name: row for row in hardware.precisions(hardware.Devices((gpu,), None)) if row.device == "cuda:0"}
    assert rows["FP8 row-wise"].reason == "needs compute capability 8.9 or newer; this GPU's is 7.5"
    assert rows["NVFP4"].reason == "needs compute capability 10.0 or newer; this GPU's is 7.5"
    if not torch.cuda.is_available():
        assert not rows["float32"].works
        assert rows["float32"].reason


def test_nvfp4_names_its_install_line_where_it_would_help():
    gpu = hardware.Device(0, "New", 1, 1, (10, 0))
    row = next(row for row in hardware.precisions(hardware.Devices((gpu,), None)) if row.name == "NVFP4")
    assert not row.works
    assert row.install == f"{sys.executable} -m pip install 'sanarl[nvfp4]'"


def test_without_a_gpu_torch_says_why():
    # A process of its own: torch looks at the variable once.
    code = "from sanarl.runtime import hardware; found = hardware.devices(); print(found.gpus, found.reason)"
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("() ")
    assert done.stdout.endswith("; CUDA_VISIBLE_DEVICES=''\n")


def test_the_driver_is_read_from_its_own_file(tmp_path):
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (root@x)\n")
    assert hardware.driver_version(file) == "570.124.06"
    assert hardware.driver_version(tmp_path / "none") is None


def test_a_compiler_is_looked_for_where_torch_looks(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not hardware.cpu_compiler()[0]
    monkeypatch.setenv("CXX", "my-c++")
    assert hardware.cpu_compiler() == (False, "no C++ compiler: my-c++ (CXX) is not on PATH")
    (tmp_path / "my-c++").touch(mode=0o755)
    assert str(tmp_path / "my-c++") in hardware.cpu_compiler()[1]


def test_a_failing_probe_is_a_row():
    def probe():
        raise OSError("no such\n  device")

    row = inspection.check("machine", "something", probe)
    assert (row.ok, row.detail) == (False, "could not be found out: OSError: no such device")
    gone = inspection.check("machine", "free disk", lambda: inspection.disk(Path("/no/such/folder")))
    assert gone.ok is False


def test_tokens_are_placed_and_not_told(tmp_path, monkeypatch):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert inspection.hub_token()[2] is False
    assert inspection.wandb_login()[1] == "not logged in: runs are written offline; WANDB_MODE=offline"
    (tmp_path / "token").write_text("marker")
    assert inspection.hub_token() == (None, f"set ({tmp_path / 'token'})", True)
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password marker\n")
    assert inspection.wandb_login()[1:] == (f"logged in ({tmp_path / 'netrc'}); WANDB_MODE=offline", True)
    monkeypatch.setenv("WANDB_BASE_URL", "https://other.example")
    assert inspection.wandb_login()[2] is False
    (tmp_path / "netrc").write_text("machine api.wandb.ai marker marker\n")  # netrc's own error quotes it
    ok, detail, _ = inspection.wandb_login()
    assert ok is False
    assert "marker" not in detail


def test_a_damaged_embedded_model_is_seen(tmp_path):
    part = tmp_path / "vae"
    part.mkdir()
    index = {"_class_name": "SanaPipeline", "vae": ["diffusers", "AutoencoderDC"], "safety": [None, None]}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    assert inspection.embedded(tmp_path)[:1] == (False,)
    (part / "config.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    whole = struct.pack("<Q", len(header)) + header + bytes(8)
    (part / "model.safetensors").write_bytes(whole)
    assert inspection.embedded(tmp_path)[0] is True
    for damaged in (whole[:-1], b"version https://git-lfs.github.com/spec/v1\n", b""):
        (part / "model.safetensors").write_bytes(damaged)
        row = inspection.check("embedded model", "x", lambda: inspection.embedded(tmp_path))
        assert row.ok is False


def test_a_device_that_cannot_compute_is_a_problem():
    cpu, gpu = hardware.Precision("float32", "cpu", True), hardware.Precision("float32", "cuda:0", False, "no kernel")
    broken = hardware.Precision("float32", "cpu", False, "OSError: x")
    where = "where training would run"
    assert inspection.problems(None, (), (cpu,)) == ()
    assert inspection.problems(None, (), (broken,)) == (f"float32 does not work on cpu, {where}: OSError: x",)
    assert inspection.problems(None, (), (cpu, gpu)) == (f"float32 does not work on cuda:0, {where}: no kernel",)


def test_another_python_is_a_problem():
    project = requirements.Declared((), (), "<3", "sanarl")
    (said,) = inspection.problems(project, (), (hardware.Precision("float32", "cpu", True),))
    assert said.endswith(" is not accepted: <3 is asked")

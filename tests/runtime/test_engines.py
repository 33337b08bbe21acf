"""What modes need. Machines are written down, none is asked."""

import dataclasses

import pytest

from sanarl.runtime.engines import Machine, lacking, missing, needs, verdicts
from sanarl.runtime.requirements import install_line

CPU = Machine(None, (True, "/usr/bin/g++"), True, False)
HOPPER = Machine((9, 0), (True, "triton 3"), True, False)
BLACKWELL = Machine((10, 0), (True, "triton 3"), True, True)


@pytest.mark.parametrize("mode", ["peft", "emulated_fp8", "emulated_nvfp4"])
def test_what_runs_anywhere(mode):
    assert missing(mode, dataclasses.replace(CPU, compiler=(False, "none"))) is None


@pytest.mark.parametrize(
    ("mode", "here", "reason", "instead"),
    [
        ("compile", dataclasses.replace(CPU, compiler=(False, "no C++ compiler")), "needs a compiler: no C++", "peft"),
        ("compile_fp8", CPU, "compute capability 8.9 or newer, there is none", "compile"),
        ("compile_fp8", dataclasses.replace(HOPPER, capability=(8, 0)), "newer, this one's is 8.0", "compile"),
        ("compile_nvfp4", CPU, "compute capability 10.0 or newer, there is none", "compile"),
        ("compile_nvfp4", HOPPER, "compute capability 10.0 or newer, this one's is 9.0", "compile_fp8"),
        ("compile_nvfp4", dataclasses.replace(HOPPER, capability=(8, 6)), "this one's is 8.6", "compile"),
    ],
)
def test_what_a_machine_lacks(mode, here, reason, instead):
    found = missing(mode, here)
    assert reason in found.reason
    assert (found.instead, missing(found.instead, here)) == (instead, None)
    assert str(found).endswith(f'; "{instead}" can')


def test_install_lines_name_this_interpreter():
    without = dataclasses.replace(BLACKWELL, transformer_engine=False)
    found = missing("compile_nvfp4", without)
    assert found.install == install_line("sanarl[nvfp4]")
    assert f"install: {found.install}" in str(found)
    found = missing("compile_fp8", dataclasses.replace(HOPPER, scaled_products=False))
    assert found.install == install_line("torch>=2.6")
    found = missing("compile", dataclasses.replace(HOPPER, compiler=(False, "triton is not installed")))
    assert found.install == install_line("triton")


@pytest.mark.parametrize("mode", ["compile", "compile_fp8", "compile_nvfp4"])
def test_what_runs_on_the_newest(mode):
    assert missing(mode, BLACKWELL) is None


def test_presets_are_judged_by_their_modes():
    from sanarl.config import load

    config = load("sana-image-nft-sol_rl-hpsv2").config
    assert lacking(config, HOPPER).keys() == {"rollout.preview.mode"}
    assert lacking(config, BLACKWELL) == {}
    assert needs(load("sana-image-nft-diffusionnft-hpsv2").config) == ""
    assert needs(load("sana-image-sft").config) == ""
    found = {name: able for name, able, _ in verdicts(HOPPER)}
    able = {"compile": True, "naive_quant": False, "sol_rl": False, "sol_rl-fp8": True}
    assert found == {
        f"{model}-image-nft-{name}-*": runs for model in ("sana", "sd3", "flux1") for name, runs in able.items()
    }

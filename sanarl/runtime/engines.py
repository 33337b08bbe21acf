"""What each way to sample rollouts needs of a machine, and what to use where that is missing."""

from dataclasses import dataclass
from importlib import util

from sanarl.config import Config, load, preset_names
from sanarl.runtime import hardware
from sanarl.runtime.hardware import FP8_CAPABILITY, NVFP4_CAPABILITY
from sanarl.runtime.requirements import install_line

NEEDS = {
    "peft": "",
    "compile": "a compiler for torch.compile",
    "compile_fp8": f"a GPU of compute capability {FP8_CAPABILITY[0]}.{FP8_CAPABILITY[1]} or newer (Ada, Hopper)",
    "compile_nvfp4": f"a GPU of compute capability {NVFP4_CAPABILITY[0]}.{NVFP4_CAPABILITY[1]} or newer (Blackwell) "
    "and TransformerEngine",
    "emulated_fp8": "",
    "emulated_nvfp4": "",
}
"""Mode -> what it needs, in words; nothing for those that run anywhere."""


@dataclass(frozen=True)
class Missing:
    """Why a mode cannot run here."""

    mode: str
    reason: str
    instead: str
    """A mode that can."""
    install: str | None = None
    """The command that brings what is missing."""

    def __str__(self) -> str:
        install = f"; install: {self.install}" if self.install else ""
        return f'mode "{self.mode}" cannot run here: {self.reason}{install}; "{self.instead}" can'


@dataclass(frozen=True)
class Machine:
    """What modes ask of a machine."""

    capability: tuple[int, int] | None
    """Compute capability of the GPU, None without one."""
    compiler: tuple[bool, str]
    """Whether torch.compile has what it needs, and what that is or lacks."""
    scaled_products: bool
    """Whether this torch multiplies in FP8."""
    transformer_engine: bool


def machine() -> Machine:
    """This one; torch is imported."""
    import torch

    gpus = hardware.devices().gpus
    return Machine(
        capability=gpus[0].capability if gpus else None,
        compiler=hardware.cuda_compiler() if gpus else hardware.cpu_compiler(),
        scaled_products=hasattr(torch, "_scaled_mm") and hasattr(torch, "float8_e4m3fn"),
        transformer_engine=util.find_spec("transformer_engine") is not None,
    )


def missing(mode: str, here: Machine) -> Missing | None:
    """Why a mode cannot run on a machine; None when it can."""
    if not mode.startswith("compile"):
        return None
    able, said = here.compiler
    if not able:
        install = install_line("triton") if "triton is not installed" in said else None
        return Missing(mode, f"torch.compile needs a compiler: {said}", "peft", install)
    if mode == "compile":
        return None
    asked = FP8_CAPABILITY if mode == "compile_fp8" else NVFP4_CAPABILITY
    if here.capability is None or here.capability < asked:
        found = "there is none" if here.capability is None else f"this one's is {_dotted(here.capability)}"
        instead = "compile"
        if mode == "compile_nvfp4" and here.capability is not None and here.capability >= FP8_CAPABILITY:
            instead = "compile_fp8"
        return Missing(mode, f"it needs a GPU of compute capability {_dotted(asked)} or newer, {found}", instead)
    if mode == "compile_fp8" and not here.scaled_products:
        return Missing(mode, "this torch has no torch._scaled_mm", "compile", install_line("torch>=2.6"))
    if mode == "compile_nvfp4" and not here.transformer_engine:
        install = install_line("sanarl[nvfp4]")
        return Missing(mode, "TransformerEngine is not installed", "compile_fp8", install)
    return None


def asked(config: Config) -> dict[str, str]:
    """The modes that a configuration samples with, by key; a compiled decoder needs what ``compile`` needs."""
    if not config.is_rl:
        return {}
    rollout = config.rollout
    modes: dict[str, str] = {"rollout.engine.mode": rollout.engine.mode}
    if rollout.preview.num_steps:
        modes["rollout.preview.mode"] = rollout.preview.mode
    if rollout.engine.decode_compile:
        modes["rollout.engine.decode_compile"] = "compile"
    return modes


def needs(config: Config) -> str:
    """What a configuration's modes need, in words; empty when they run anywhere."""
    return ", ".join(dict.fromkeys(NEEDS[mode] for mode in asked(config).values() if NEEDS[mode]))


def lacking(config: Config, here: Machine) -> dict[str, Missing]:
    """What a machine lacks for a configuration, by key."""
    found = {key: missing(mode, here) for key, mode in asked(config).items()}
    return {key: lack for key, lack in found.items() if lack is not None}


def verdicts(here: Machine) -> list[tuple[str, bool, str]]:
    """Every shipped preset that needs something, those that need the same in one row: name, whether it runs, words."""
    rows: dict[str, tuple[str, bool, str]] = {}
    for name in preset_names():
        config = load(name).config
        if not (asked := needs(config)):
            continue
        lacks = dict.fromkeys(str(lack) for lack in lacking(config, here).values())
        family = f"{name.rpartition('-')[0]}-*"
        rows[family] = (family, not lacks, "; ".join(lacks) or f"can run here: {asked}")
    return list(rows.values())


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))

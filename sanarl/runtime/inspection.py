"""Is this machine ready: everything that decides whether and how training runs here, as facts.

Nothing is printed, downloaded or asked of a network, and no secret leaves a probe: of a token only its place is told.
"""

import json
import netrc
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sanarl
from sanarl.runtime import hardware, requirements
from sanarl.runtime.hardware import Devices, Precision
from sanarl.runtime.requirements import Declared, Extra, Package, install_line, why

Answer = tuple[bool | None, str, int | float | str | bool | None]
"""Of a probe: good, bad or neither (None); words for a person; a value for a program."""

GIB = 2**30
_TRUE = {"1", "on", "yes", "true"}


@dataclass(frozen=True)
class Check:
    """One row: ``ok`` is None where nothing can be wrong, or nothing is needed."""

    section: str
    name: str
    ok: bool | None
    detail: str
    value: int | float | str | bool | None = None


@dataclass(frozen=True)
class Report:
    """All facts. ``problems`` says what keeps this machine from training; empty means that it can."""

    version: str
    location: str
    python: str
    executable: str
    checks: tuple[Check, ...]
    packages: tuple[Package, ...]
    extras: tuple[Extra, ...]
    devices: Devices
    precisions: tuple[Precision, ...]
    problems: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether training is possible here."""
        return not self.problems

    def document(self) -> dict[str, Any]:
        """For --json: plain values only."""
        return {
            "ready": self.ready,
            **asdict(self),
            "extras": [{"installed": extra.installed, **asdict(extra)} for extra in self.extras],
        }


def inspect(folder: Path) -> Report:
    """Look at everything.

    Args:
        folder: Where a run would be started; its disk is measured.
    """
    package = Path(sanarl.__file__).parent
    project, packages, extras = _requirements(package.parent)
    packages = requirements.imported(packages)
    found = hardware.devices()
    precisions = hardware.precisions(found)
    checks = (
        check("machine", "operating system", lambda: (None, platform.platform(), None)),
        check("machine", "CPU cores", cores),
        check("machine", "memory", memory),
        check("machine", "free disk", lambda: disk(folder)),
        check("torch.compile", "on the CPU", lambda: (*hardware.cpu_compiler(), None)),
        check("torch.compile", "on a GPU", lambda: _cuda_compiler(found)),
        check("Hugging Face hub", "HF_HUB_OFFLINE", hub_offline),
        check("Hugging Face hub", "HF_HOME", lambda: (None, _said_home(), str(hub_home()))),
        check("Hugging Face hub", "token", hub_token),
        check("wandb", "login", wandb_login),
        check("embedded model", "tiny-image", lambda: embedded(package / "assets" / "tiny-image")),
        check("embedded model", "tiny-video", lambda: embedded(package / "assets" / "tiny-video")),
        *presets(),
    )
    return Report(
        version=sanarl.__version__,
        location=_location(package),
        python=platform.python_version(),
        executable=sys.executable,
        checks=checks,
        packages=packages,
        extras=extras,
        devices=found,
        precisions=precisions,
        problems=problems(project, packages, precisions),
    )


def presets() -> tuple[Check, ...]:
    """The shipped presets that not every machine can run; none is needed, so what is missing is no fault."""
    from sanarl.runtime import engines

    try:
        rows = engines.verdicts(engines.machine())
    except Exception as error:
        return (Check("presets", "with rollout engines", None, f"could not be found out: {why(error)}"),)
    return tuple(Check("presets", name, True if able else None, words) for name, able, words in rows)


def check(section: str, name: str, probe: Callable[[], Answer]) -> Check:
    """Ask a probe; one that fails becomes a row with its reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ok, detail, value = probe()
    except Exception as error:
        return Check(section, name, False, f"could not be found out: {why(error)}")
    return Check(section, name, ok, detail, value)


def _requirements(source_tree: Path) -> tuple[Declared | None, tuple[Package, ...], tuple[Extra, ...]]:
    try:
        project = requirements.declared(source_tree)
        packages = tuple(requirements.look_up(one) for one in requirements.wanted(project.requires))
        extras = tuple(requirements.extra(project, name) for name in project.extras)
    except metadata.PackageNotFoundError:
        reason = "is not installed, so what it requires is unknown"
        return None, (Package("sanarl", "", None, "missing", reason, install_line("sanarl")),), ()
    except ImportError as error:
        name = error.name or "packaging"
        return None, (Package(name, "", None, "missing", why(error), install_line(name)),), ()
    except Exception as error:
        line = install_line("sanarl", again=True)
        return None, (Package("sanarl", "", None, "broken", f"its metadata cannot be read: {why(error)}", line),), ()
    return project, packages, extras


def problems(
    project: Declared | None, packages: tuple[Package, ...], precisions: tuple[Precision, ...]
) -> tuple[str, ...]:
    """What keeps this machine from training, one sentence each."""
    said = [f"{one.name} is {one.state}: {one.reason}" for one in packages if one.state != "ok"]
    if project is not None and project.python:
        from packaging.specifiers import SpecifierSet

        if not SpecifierSet(project.python).contains(platform.python_version(), prereleases=True):
            said.append(f"Python {platform.python_version()} is not accepted: {project.python} is asked")
    single = [one for one in precisions if one.name == "float32"]
    used = next((one for one in single if one.device != "cpu"), single[0])
    if not used.works:  # a GPU that this torch has no kernels for, say
        said.append(f"float32 does not work on {used.device}, where training would run: {used.reason}")
    return tuple(said)


def _location(package: Path) -> str:
    try:
        return f"{package} (editable)" if requirements.editable(metadata.distribution("sanarl")) else str(package)
    except metadata.PackageNotFoundError:
        return f"{package} (not installed: runs from its source tree)"


def cores() -> Answer:
    """Cores that this process may use: affinity, and a container's share where there is one."""
    affinity = getattr(os, "sched_getaffinity", None)
    usable: float = len(affinity(0)) if affinity else (os.cpu_count() or 1)
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        usable = min(usable, int(quota) / int(period))
    return None, f"{usable:g} of {os.cpu_count()} usable", usable


def memory() -> Answer:
    """Memory in bytes: the machine's, or what a container allows."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            total = min(total, int(Path(file).read_text()))
    return None, f"{total / GIB:.1f} GiB", total


def disk(folder: Path) -> Answer:
    """Free bytes where a run would be started, and whether a folder can be made there."""
    free = shutil.disk_usage(folder).free
    writable = os.access(folder, os.W_OK | os.X_OK)
    return writable, f"{free / GIB:.1f} GiB in {folder}" + ("" if writable else ", which is not writable"), free


def _cuda_compiler(found: Devices) -> Answer:
    if not found.gpus:
        return None, "not needed: no GPU", None
    return (*hardware.cuda_compiler(), None)


def hub_offline() -> Answer:
    """Whether the hub may be asked."""
    text = os.environ.get("HF_HUB_OFFLINE", "")
    offline = text.lower() in _TRUE
    shown = "set: only models that are on disk can be used" if offline else "not set: models may be downloaded"
    return None, shown, offline


def hub_home() -> Path:
    """The folder of the hub's cache and token."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(os.path.expandvars(os.environ.get("HF_HOME") or f"{cache}/huggingface")).expanduser()


def _said_home() -> str:
    return f"{hub_home()}" + ("" if os.environ.get("HF_HOME") else " (not set: the default)")


def hub_token() -> Answer:
    """Where a token is, never which."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(name, "").strip():
            return None, f"set ({name})", True
    file = Path(os.environ.get("HF_TOKEN_PATH") or hub_home() / "token").expanduser()
    if file.is_file() and file.stat().st_size:
        return None, f"set ({file})", True
    return None, "not set: models that ask for a login cannot be downloaded", False


def wandb_login() -> Answer:
    """Whether wandb has a key, by its variable or netrc; the service is not asked."""
    mode = os.environ.get("WANDB_MODE")
    suffix = f"; WANDB_MODE={mode}" if mode in ("online", "offline", "disabled", "shared") else ""
    if os.environ.get("WANDB_API_KEY", "").strip():
        return None, f"logged in (WANDB_API_KEY){suffix}", True
    homes = (Path("~/.netrc").expanduser(), Path("~/_netrc").expanduser())
    asked = os.environ.get("NETRC")
    file = Path(asked).expanduser() if asked else next((one for one in homes if one.is_file()), None)
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").netloc
    if file is not None and file.is_file():
        try:
            entry = netrc.netrc(str(file)).authenticators(host)
        except netrc.NetrcParseError:  # its message may quote a password
            return False, f"{file} cannot be read as a netrc file{suffix}", False
        if entry is not None and entry[2]:
            return None, f"logged in ({file}){suffix}", True
    return None, f"not logged in: runs are written offline{suffix}", False


def embedded(folder: Path) -> Answer:
    """Whether the model that is shipped in the package is whole: every component with its weights."""
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    parts = [name for name, kind in index.items() if isinstance(kind, list) and kind[0] is not None]
    empty = [name for name in parts if not any((folder / name).glob("*.json"))]
    weights = [file for name in parts for file in (folder / name).glob("*.safetensors")]
    short = [f"{file.parent.name}/{file.name}" for file in weights if not _whole(file)]
    if empty or short or not weights:
        return False, f"incomplete: {', '.join([*empty, *short]) or 'no weights'} in {folder}", str(folder)
    size = sum(file.stat().st_size for file in weights)
    return True, f"{size / 2**20:.1f} MiB in {folder}", str(folder)


def _whole(file: Path) -> bool:
    """Whether a safetensors file is as long as its header says."""
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        size = file.stat().st_size
        if length > size:  # a Git LFS pointer reads as an absurd length
            return False
        header = json.loads(stream.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return size == 8 + length + max(ends, default=0)

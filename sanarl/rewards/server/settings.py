"""The service's TOML: Cosmos-RL's keys, and a table [service] of our own that Cosmos-RL does not read."""

import difflib
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, Field, ValidationError

from sanarl.config.faults import ConfigError, Fault, dotted, shown
from sanarl.config.keys import field_accepts
from sanarl.config.positions import lines_of
from sanarl.config.schema.base import Count, Positive, Table, Text
from sanarl.config.source import LARGEST_FILE, parse

Port = Annotated[int, Field(ge=0, le=65535)]


class RewardArgs(Table):
    """One scorer: a process of its own."""

    reward_type: Text
    """A reward of `sanarl reward list`, or your own as module:function or path/to/file.py:function."""
    name: Text | None = None
    """What requests call it; unset: reward_type, of your own the part after the colon."""
    enable: bool = True
    """false: leave it out."""
    venv_python: str = "python"
    """Interpreter of the scorer's process (Python 3.11 or newer with torch); "python": this one."""
    model_path: str = ""
    """Weights; given to the scorer when set, as are the next five."""
    download_path: str = ""
    """Folder of weights."""
    dtype: str = ""
    """Of the scorer's arithmetic."""
    device: str = ""
    """Where it scores; unset: cuda where there is one."""
    endpoint_url: str = ""
    """Address of a model that is served elsewhere."""
    endpoint_api_key: str = ""
    """Its key."""
    arguments: dict[Text, bool | int | float | Text] = Field(default={})
    """More arguments of the scorer, ours: batch_size, version, ... One that it does not take is an error."""
    setup_script: str = ""
    """No effect here: nothing is installed by the service."""
    work_dir: str = ""
    """No effect here."""
    tmp_dir: str = ""
    """No effect here; see service.spool."""

    @property
    def label(self) -> str:
        """What requests call it."""
        return self.name or self.reward_type.rpartition(":")[2]

    @property
    def options(self) -> dict[str, str]:
        """What is handed to the scorer."""
        names = ("model_path", "download_path", "dtype", "device", "endpoint_url", "endpoint_api_key")
        return {name: value for name in names if (value := getattr(self, name))}


class DecodeArgs(Table):
    """What turns latents into clips."""

    model_path: str = ""
    """Folder (or repository) of a diffusers pipeline or VAE, Wan 2.1; empty: latents of 16 channels are refused."""
    wan2pt2_model_path: str = ""
    """The same for Wan 2.2, latents of 48 channels."""
    dtype: str = "float16"
    """Of the decoder."""
    device: str = ""
    """Where it decodes; unset: cuda where there is one."""
    chunk_duration: int = 81
    """No effect here: clips are decoded whole."""
    temporal_window: int = 16
    """No effect here."""
    load_mean_std: bool = False
    """No effect here: mean and deviation are those of the VAE's own configuration."""
    wan2pt2_credential_path: str = ""
    """No effect here."""


class Service(Table):
    """Limits and times, ours."""

    queue_size: Count = 64
    """Requests that may wait or be scored; more are answered with 503."""
    queue_mb: Count = 4096
    """Megabytes of media that these may hold together."""
    max_request_mb: Count = 1024
    """Largest request."""
    max_prompts: Count = 4096
    """Most prompts of a request."""
    result_s: Positive = 3600.0
    """Seconds that a result can be pulled."""
    score_s: Positive = 300.0
    """Seconds that a scorer may take for a request; then its process is replaced."""
    load_s: Positive = 900.0
    """Seconds that a scorer may take to load."""
    health_s: Positive = 10.0
    """Seconds between looks at idle scorers, and for their answer."""
    body_s: Positive = 30.0
    """Seconds without a byte after which an unfinished request is given up."""
    drain_s: Positive = 60.0
    """Seconds after SIGTERM to finish what was accepted and to let it be pulled."""
    lease_s: Positive = 15.0
    """Seconds after which other replicas take the requests of one that went silent for lost."""
    spool: str = ""
    """Folder for media on their way to scorers; unset: /dev/shm where it is large enough, else the system's."""


class Settings(Table):
    """The whole file."""

    host: Text = "localhost"
    """Address to bind."""
    port: Port = 8080
    """Port to bind; 0: any that is free."""
    redis_host: str = ""
    """Keep results in this Redis, so that any replica answers for any other; unset: in memory."""
    redis_port: Port = 6379
    """Its port."""
    no_latent_decoder: bool = False
    """Refuse latents."""
    reward_args: tuple[RewardArgs, ...] = Field(min_length=1)
    decode_args: DecodeArgs = DecodeArgs()
    service: Service = Service()

    @property
    def scorers(self) -> list[RewardArgs]:
        """Those that are switched on."""
        return [one for one in self.reward_args if one.enable]


def load(path: Path, **given: Any) -> Settings:
    """Read and check the file; ``given`` are keys of the command line that win.

    Raises:
        ConfigError: with everything that is wrong, by file and line.
    """
    name = str(path)
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError([Fault("", f"cannot be read: {reason}; accepted: the TOML of a service", name)]) from error
    tree = {**parse(text, name), **{key: value for key, value in given.items() if value is not None}}
    lines = lines_of(text)
    try:
        found = Settings.model_validate_json(_json(tree))
    except ValidationError as error:
        items = error.errors(include_url=False)
        above = {item["loc"][:n] for item in items for n in range(len(item["loc"]))}  # a list that only has bad entries
        items = [item for item in items if item["loc"] not in above]
        raise ConfigError([_fault(item, tree, name, lines) for item in items]) from error
    faults = list(_rules(found, name, lines))
    if faults:
        raise ConfigError(faults)
    return found


def _json(tree: dict[str, Any]) -> bytes:
    import json

    return json.dumps(tree, default=str).encode()


def _rules(found: Settings, name: str, lines: dict[Any, int]) -> Any:
    if not found.scorers:
        yield Fault("reward_args", "none is switched on; accepted: at least one with enable = true", name)
    kinds: dict[str, str] = {}
    for number, one in enumerate(found.reward_args):
        if one.enable and kinds.setdefault(one.label, one.reward_type) != one.reward_type:
            key = f"reward_args.{number}.reward_type"
            text = f"{kinds[one.label]} and {one.reward_type} are both called {one.label!r}; give one another name"
            yield _at(key, ("reward_args", number, "reward_type"), text, name, lines)


def _fault(item: Any, tree: dict[str, Any], name: str, lines: dict[Any, int]) -> Fault:
    path = tuple(item["loc"])
    model, info = _model(path)
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(path[-1]), list(model.model_fields), n=1)
        advice = f"did you mean {near[0]}?" if near else f"accepted: {', '.join(model.model_fields)}"
        return _at(dotted(path), path, f"unknown key; {advice}", name, lines)
    accepted = f"accepted {field_accepts(info)}" if info is not None else "accepted another value"
    if path == ("reward_args",):
        accepted = "accepted at least one [[reward_args]] with a reward_type"
    if item["type"] == "missing":
        return _at(dotted(path), path[:-1], f"missing; {accepted}", name, lines)
    return _at(dotted(path), path, f"found {shown(_value(tree, path))}; {accepted}", name, lines)


def _at(key: str, path: tuple[Any, ...], text: str, name: str, lines: dict[Any, int]) -> Fault:
    line = lines.get(path)
    return Fault(key, text, f"{name}:{line}" if line else name, line)


def _value(tree: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def _model(path: tuple[Any, ...]) -> tuple[type[BaseModel], Any]:
    """The table that holds the last key of a path, and the key's field when it is one."""
    model: type[BaseModel] = Settings
    for part in path[:-1]:
        if isinstance(part, str) and part in model.model_fields:
            kinds = (model.model_fields[part].annotation, *get_args(model.model_fields[part].annotation))
            model = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), model)
    return model, model.model_fields.get(str(path[-1]))

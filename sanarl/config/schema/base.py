"""What every table of the schema shares: strictness and the value types with their bounds."""

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

LARGEST = 2**31 - 1


class Table(BaseModel):
    """A frozen TOML table: no unknown key, no silent conversion (true is not 1, "3" is not 3), no nan or inf."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


@dataclass(frozen=True)
class Accepts:
    """Words for what a field accepts, where its type alone says too little."""

    text: str


Count = Annotated[int, Field(ge=1, le=LARGEST)]
WholeNumber = Annotated[int, Field(ge=0, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]

_REPOSITORY = (
    "owner/name or a name, of at most 96 letters, digits, '-', '_' and '.' each, without '--' or '..', "
    "without '-' or '.' at an end, and not ending in .git"
)


def _repository(value: str) -> str:
    """Names as the hub takes them."""
    parts = value.split("/")
    sound = all(re.fullmatch(r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?", part, re.ASCII) for part in parts)
    if len(parts) > 2 or not sound or "--" in value or ".." in value or value.endswith(".git"):
        raise ValueError(f"accepted {_REPOSITORY}")
    return value


RepositoryName = Annotated[str, AfterValidator(_repository), Accepts(_REPOSITORY)]
"""Of the Hugging Face hub."""


def _weights(value: object) -> object:
    """A name or a list of names is every name with weight 1."""
    if isinstance(value, str):
        value = (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
        if len(set(value)) != len(value):
            raise ValueError("a name stands twice")
        return dict.fromkeys(value, 1.0)
    return value


Weights = Annotated[
    dict[Text, float],
    BeforeValidator(_weights),
    Accepts("a name, a list of names, or a table of names with their weights"),
]


Arguments = Annotated[
    dict[Text, dict[Text, bool | int | float | Text]],
    Accepts("a table of reward names, each a table of arguments such as device, dtype, batch_size or model_path"),
]


def _none_in_words(value: object) -> object:
    """Cosmos-RL's presets write experiment_name = "None" because TOML has no null."""
    return None if value in ("", "None") else value


OptionalName = Annotated[str | None, BeforeValidator(_none_in_words)]


def _frames(value: int) -> int:
    if value % 4 != 1:
        raise ValueError(
            f"accepted 4k + 1 frames (the VAE packs time by four); nearest {max(1, (value - 1) // 4 * 4 + 1)}"
        )
    return value


Frames = Annotated[int, Field(ge=1, le=100_001), AfterValidator(_frames), Accepts("a whole number of the form 4k + 1")]


class Dataset(Table):
    """Which data; read by the dataset module named on the command line (or the task's default module)."""

    name: str = ""
    """A name that the dataset module knows ("shapes", "pickscore"), or a folder for modules that read folders."""
    local_dir: str = ""
    """A folder of the data set."""
    split: str | tuple[Text, ...] = ""
    """Which part: "train", "dev", "test", or what the dataset module offers."""

"""Where weights of reward models lie: the scorer's model_path, ./reward_ckpts, the hub's cache. Never a download."""

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sanarl.errors import UserError

FOLDER = Path("reward_ckpts")
"""Looked into from the working directory; what Sol-RL's users have holds HPS_v2.1_compressed.pt and others flat."""

MODEL = ("config.json", "model.safetensors|pytorch_model.bin|model.safetensors.index.json")
CLIP_TOKENIZER = ("tokenizer.json|vocab.json", "preprocessor_config.json")


@dataclass(frozen=True)
class Weights:
    """What a scorer loads of one repository of the hub.

    Attributes:
        repo: ``owner/name`` on the hub.
        files: Those that must be there; ``a|b`` is either.
        licence: As the repository states it.
        extra: Patterns of files that are fetched as well where they exist.
    """

    repo: str
    files: tuple[str, ...]
    licence: str
    extra: tuple[str, ...] = ()

    @property
    def patterns(self) -> list[str]:
        """Every file that a fetch may bring."""
        return [one for file in self.files for one in file.split("|")] + list(self.extra)

    def spelled(self) -> str:
        """The files in words."""
        return ", ".join(file.replace("|", " or ") for file in self.files)


_TOKENIZER_EXTRA = ("tokenizer_config.json", "special_tokens_map.json", "merges.txt", "vocab.json")
_SHARDS = ("model-*.safetensors",)

CLIP_L = Weights("openai/clip-vit-large-patch14", (*MODEL, *CLIP_TOKENIZER), "MIT", _TOKENIZER_EXTRA)
PICKSCORE = Weights("yuvalkirstain/PickScore_v1", MODEL, "MIT", _SHARDS)
CLIP_H_PROCESSOR = Weights("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", CLIP_TOKENIZER, "MIT", _TOKENIZER_EXTRA)
HPS_V2 = Weights("xswu/HPSv2", ("HPS_v2_compressed.pt",), "Apache-2.0")
HPS_V21 = Weights("xswu/HPSv2", ("HPS_v2.1_compressed.pt",), "Apache-2.0")
IMAGE_REWARD = Weights("zai-org/ImageReward", ("ImageReward.pt", "med_config.json"), "Apache-2.0")
BERT_TOKENIZER = Weights("google-bert/bert-base-uncased", ("vocab.txt",), "Apache-2.0", ("tokenizer*.json",))
AESTHETIC = Weights("trl-lib/ddpo-aesthetic-predictor", ("aesthetic-model.pth",), "not stated")
MASK2FORMER = Weights("facebook/mask2former-swin-small-coco-instance", (*MODEL, "preprocessor_config.json"), "other")

WEIGHTS: dict[str, tuple[Weights, ...]] = {
    "pickscore": (PICKSCORE, CLIP_H_PROCESSOR),
    "clipscore": (CLIP_L,),
    "hpsv2": (HPS_V21,),
    "hpsv2_v2.0": (HPS_V2,),
    "imagereward": (IMAGE_REWARD, BERT_TOKENIZER),
    "geneval": (MASK2FORMER, CLIP_L),
    "aesthetic": (AESTHETIC, CLIP_L),
}
"""What ``sanarl reward fetch NAME`` brings."""

ALIASES = {"image_reward": "imagereward", "gen_eval": "geneval", "unifiedreward": "unified_reward"}
"""Names that reward services use -> the name that is looked up here."""

OTHER_NAMES = {
    "zai-org/ImageReward": ("THUDM/ImageReward",),
    "google-bert/bert-base-uncased": ("bert-base-uncased",),
}
"""Former names of a repository, under which a cache may still hold it."""


def needed(name: str) -> tuple[Weights, ...]:
    """What a reward needs; empty for one without weights."""
    return WEIGHTS.get(ALIASES.get(name, name), ())


def chosen(weights: Weights, model_path: str | None) -> tuple[Weights, str | None]:
    """Read ``model_path``: a file or folder stays one; ``owner/name`` that is no path replaces the repository.

    Raises:
        UserError: It is neither.
    """
    if model_path is None or Path(model_path).expanduser().exists():
        return weights, model_path
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", model_path):
        return replace(weights, repo=model_path), None
    raise UserError(f"model_path: found {model_path!r}, which does not exist; accepted: a file, a folder or a hub id")


def folder(weights: Weights, name: str, model_path: str | None = None) -> Path:
    """The folder that holds every file of some weights.

    Args:
        weights: What is needed.
        name: The reward that needs it, for the install line.
        model_path: Its own place, looked into first: the folder itself, one that holds it under the repository's name,
            or one of its files.

    Raises:
        UserError: Naming the repository, the files, every place that was searched and the line that fetches them.
    """
    weights, model_path = chosen(weights, model_path)
    places = list(_places(weights, model_path))
    for place in places:
        if all(any(_is_whole(place / one) for one in file.split("|")) for file in weights.files):
            return place
    raise UserError(_missing(weights, name, model_path, places))


def file(weights: Weights, name: str, model_path: str | None = None) -> Path:
    """The path of weights that are one file; ``model_path`` may be that file, whatever it is called.

    Raises:
        UserError: As :func:`folder`.
    """
    own = Path(model_path).expanduser() if model_path is not None else None
    if own is not None and own.is_file():
        return own
    return folder(weights, name, model_path) / weights.files[0]


def found(weights: Weights, name: str) -> Path | None:
    """Where weights lie that no model_path names, or None."""
    try:
        return folder(weights, name)
    except UserError:
        return None


def _is_whole(path: Path) -> bool:
    """An empty file is what an interrupted download leaves."""
    return path.is_file() and path.stat().st_size > 0


def _places(weights: Weights, model_path: str | None) -> Iterator[Path]:
    owner, _, short = weights.repo.partition("/")
    for root in ([] if model_path is None else [Path(model_path).expanduser()]) + [FOLDER]:
        base = root.parent if root.is_file() else root
        yield from (base, base / short, base / owner / short)
    from huggingface_hub import try_to_load_from_cache

    for repo in (weights.repo, *OTHER_NAMES.get(weights.repo, ())):
        for one in weights.files[0].split("|"):
            held = try_to_load_from_cache(repo, one)
            if isinstance(held, str):
                yield Path(held).parent


def _missing(weights: Weights, name: str, model_path: str | None, places: list[Path]) -> str:
    from huggingface_hub.constants import HF_HUB_CACHE

    searched = [] if model_path is None else [f"model_path {model_path}"]
    searched += [f"./{FOLDER} (below {Path.cwd()})", f"the hub's cache {HF_HUB_CACHE}"]
    partly = [
        f"{place} lacks {', '.join(lacking)}"
        for place in dict.fromkeys(places)
        if 0 < len(lacking := _lacking(weights, place)) < len(weights.files)
    ]
    lines = [f"the weights of {name} are missing: {weights.repo}, {weights.spelled()}"]
    lines += [f"  searched: {'; '.join(searched)}"]
    lines += [f"  {one}" for one in partly]
    return "\n".join([*lines, f"  to fetch them: {fetch_line(name)}"])


def _lacking(weights: Weights, place: Path) -> list[str]:
    return [f for f in weights.files if not any(_is_whole(place / one) for one in f.split("|"))]


def fetch_line(name: str) -> str:
    """The command that fetches the weights of a reward, with the interpreter that is running."""
    return shlex.join([sys.executable or "python", "-m", "sanarl", "reward", "fetch", name])

"""Native checkpoints from files: a .pth, local or on the hub, in the place of a pipeline's transformer."""

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from diffusers import DiffusionPipeline, SanaTransformer2DModel
from torch import Tensor

from sanarl.errors import UserError, first_line
from sanarl.models import tiny
from sanarl.models.native import Converted, configured, convert

HUB = "hf://"
NAME, BASE, CONFIG = "policy.model_name_or_path", "policy.base_pipeline", "policy.native_config"
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""What weights are stored in."""


def is_native(name: str) -> bool:
    """Whether a model's name is that of a native checkpoint."""
    return name.endswith(".pth")


def transformer(
    name: str, revision: str | None, base: str, native_config: str | None, dtype: torch.dtype
) -> SanaTransformer2DModel:
    """The transformer of a native checkpoint.

    Args:
        name: a .pth, or ``hf://owner/repo/path/in/repo.pth``. revision: of the hub's repository.
        base: the pipeline whose transformer's configuration says what weights do not show.
        native_config: NVlabs/Sana's YAML, whose statements must hold; None: nothing is compared.
        dtype: of the weights.

    Raises:
        UserError: when a file is not there or not readable, a key is left over or missing, or the YAML contradicts.
    """
    converted = convert(read(_local(name, revision)), name)
    settings = configured(converted, _base_config(base), name, base)
    if native_config is not None:
        _agree(Path(native_config), converted, settings)
    with torch.device("meta"):
        model = SanaTransformer2DModel.from_config(settings)
    # Positions are a constant of the size, which checkpoints do not hold.
    wanted = {key: value for key, value in model.state_dict().items() if key != "patch_embed.pos_embed"}
    faults = [f"{key} is missing" for key in sorted(wanted.keys() - converted.state.keys())]
    faults += [f"{key} has no place" for key in sorted(converted.state.keys() - wanted.keys())]
    faults += [
        f"{key} has shape {tuple(converted.state[key].shape)}, {tuple(wanted[key].shape)} is expected"
        for key in sorted(wanted.keys() & converted.state.keys())
        if wanted[key].shape != converted.state[key].shape
    ]
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise UserError(f"{NAME}: {name} does not fit the transformer of {base}: {'; '.join(faults[:5])}{more}")
    model = SanaTransformer2DModel.from_config(settings)
    model.load_state_dict(converted.state, strict=False)
    return model.to(dtype).eval()


def pipeline(name: str, revision: str | None, base: str, native_config: str | None, dtypes: Mapping[str, torch.dtype]):
    """The base pipeline with a native checkpoint in the place of its transformer, which is never loaded.

    Raises:
        UserError: as ``transformer``, or when the base pipeline cannot be loaded.
    """
    model = transformer(name, revision, base, native_config, dtypes["transformer"])
    if base in tiny.NAMES:
        found = tiny.load_pipeline(base, dict(dtypes))
        found.register_modules(transformer=model)
        return found
    try:
        return DiffusionPipeline.from_pretrained(base, transformer=model, dtype=dict(dtypes))
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{BASE}: {base} could not be loaded: {first_line(error)}") from error


def read(path: Path) -> dict[str, Tensor]:
    """The weights in a .pth: a table of tensors, by itself or under ``state_dict`` or ``model``.

    Nothing but tensors and plain values is unpickled.

    Raises:
        UserError: when it is something else.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of how the file was written, and of pickles that are refused anyway
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{NAME}: {path} is no readable checkpoint: it is cut short or damaged, or holds more than tensors and "
            "plain values, which could be code and is not unpickled"
        ) from error
    except Exception as error:  # a damaged file makes torch's reader raise almost anything
        raise UserError(f"{NAME}: {path} is no readable checkpoint: {first_line(error)}") from error
    for key in ("state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{NAME}: {path} holds no table of weights")
    wrong = [str(key) for key, value in found.items() if not (isinstance(key, str) and _are_weights(value))]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise UserError(
            f"{NAME}: {path} holds what no weights are, finite numbers in {', '.join(map(_dtype, DTYPES))}: "
            f"{', '.join(wrong[:5])}{more}"
        )
    return found


def _are_weights(value: Tensor) -> bool:
    dense = value.layout == torch.strided and value.device.type == "cpu"
    return dense and value.dtype in DTYPES and bool(value.isfinite().all())


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _local(name: str, revision: str | None) -> Path:
    """The file, fetched first when it is on the hub: whole, or not there."""
    if not name.startswith(HUB):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"{NAME}: no file {name}; from the hub: {HUB}owner/repo/{path.name}")
        return path
    owner, _, rest = name.removeprefix(HUB).partition("/")
    repo, _, file = rest.partition("/")
    if not (owner and repo and file):
        raise UserError(f"{NAME}: found {name}; accepted {HUB}owner/repo/file.pth")
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(f"{owner}/{repo}", file, revision=revision))
    except Exception as error:  # the hub's client has many
        raise UserError(f"{NAME}: {name} could not be fetched: {type(error).__name__}: {first_line(error)}") from error


def _base_config(base: str) -> dict[str, Any]:
    if base in tiny.NAMES:
        found: dict[str, Any] = dict(tiny.load_pipeline(base).transformer.config)
    else:
        try:
            found = dict(SanaTransformer2DModel.load_config(base, subfolder="transformer"))
        except (OSError, ValueError) as error:
            raise UserError(f"{BASE}: {base} has no transformer's configuration: {first_line(error)}") from error
    kind = found.get("_class_name", SanaTransformer2DModel.__name__)
    if kind != SanaTransformer2DModel.__name__ or "attention_head_dim" not in found:
        raise UserError(f"{BASE}: the transformer of {base} is a {kind}; native checkpoints are SANA's for pictures")
    return {key: value for key, value in found.items() if not key.startswith("_")}


def _agree(path: Path, converted: Converted, settings: Mapping[str, Any]) -> None:
    """What NVlabs/Sana's YAML states must be what the weights are."""
    try:
        stated = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(stated, dict):
            raise ValueError("it holds no table")
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{CONFIG}: {path} is no readable YAML: {first_line(error)}") from error
    facts = _actual(converted, settings)
    tables = {table: stated.get(table) or {} for table in dict.fromkeys(key.partition(".")[0] for key in facts)}
    faults = [f"{table} is no table" for table, found in tables.items() if not isinstance(found, dict)]
    if faults:
        raise UserError(f"{CONFIG}: {path} is no configuration of SANA: {'; '.join(faults)}")
    for key, actual in facts.items():
        table, _, name = key.partition(".")
        said = tables[table].get(name)
        if said is not None and not _same(said, actual):
            faults.append(f"{key} = {_words(said)}, the weights have {_words(actual)}")
    model = tables["model"]
    match = re.search(r"_P(\d+)_D(\d+)$", str(model.get("model", "")))
    for label, place, actual in (("P", 1, settings["patch_size"]), ("D", 2, settings["num_layers"])):
        if match is not None and int(match[place]) != actual:
            faults.append(f"model.model = {model['model']}, the weights are {label}{actual}")
    if faults:
        raise UserError(f"{CONFIG}: {path} contradicts the checkpoint: {'; '.join(faults)}")


Value = bool | int | float | tuple[str, ...]


def _actual(converted: Converted, settings: Mapping[str, Any]) -> dict[str, Value]:
    """YAML key -> what the weights (or, for heads and positions, the base pipeline) say; a tuple: any of these."""
    state = converted.state
    return {
        "model.ffn_type": ("glumbconv_linear",) if converted.linear_ffn else ("glumbconv",),
        "model.attn_type": ("linear", "triton_linear"),
        "model.mlp_ratio": float(settings["mlp_ratio"]),
        "model.qk_norm": settings["qk_norm"] is not None,
        "model.cross_norm": "transformer_blocks.0.attn2.norm_q.weight" in state,
        "model.linear_head_dim": int(settings["attention_head_dim"]),
        "model.use_pe": settings.get("interpolation_scale") is not None,
        "vae.vae_latent_dim": int(settings["in_channels"]),
        "text_encoder.caption_channels": int(settings["caption_channels"]),
        "text_encoder.y_norm": True,
        "scheduler.pred_sigma": settings["out_channels"] == 2 * settings["in_channels"],
    }


def _same(said: object, actual: Value) -> bool:
    if isinstance(actual, tuple):
        return said in actual
    if isinstance(actual, bool) or isinstance(said, bool):
        return said is actual
    return isinstance(said, int | float) and abs(said - actual) < 1e-6


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return " or ".join(map(_words, value))
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)

"""Rewards: what a picture is worth."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanarl.errors import UserError
from sanarl.importing import import_named, is_path, nearest, where

if TYPE_CHECKING:
    from sanarl.rewards.mix import Mix

_SCORERS = "sanarl.rewards.scorers"

# name -> where it is defined: a class, built with the arguments that a configuration gives, or a function
TABLE = {
    "shapes": f"{_SCORERS}.shapes:Shapes",
    "pickscore": f"{_SCORERS}.clip:PickScore",
    "clipscore": f"{_SCORERS}.clip:ClipScore",
    "hpsv2": f"{_SCORERS}.hpsv2:HPSv2",
    "ocr": f"{_SCORERS}.ocr:Ocr",
    "geneval": f"{_SCORERS}.geneval:GenEval",
    "gen_eval": f"{_SCORERS}.geneval:GenEval",
    "aesthetic": f"{_SCORERS}.aesthetic:Aesthetic",
    "jpeg_compressibility": f"{_SCORERS}.jpeg:JpegCompressibility",
    "jpeg_incompressibility": f"{_SCORERS}.jpeg:JpegIncompressibility",
    "unified_reward": f"{_SCORERS}.judges:UnifiedReward",
    "unifiedreward": f"{_SCORERS}.judges:UnifiedReward",
    "cosmos_reason1": f"{_SCORERS}.judges:CosmosReason1",
    "hpsv3": f"{_SCORERS}.peers:HPSv3",
    "dance_grpo": f"{_SCORERS}.peers:DanceGRPO",
    "imagereward": f"{_SCORERS}.imagereward:ImageReward",
    "image_reward": f"{_SCORERS}.imagereward:ImageReward",
}

# Rewards that presets in circulation name and this version does not have, and what there is instead.
NOT_YET = {
    "deqa": "its model runs code of its repository; your own function can ask it",
    "qwenvl": "unified_reward asks a model behind an endpoint, with a question_file of yours",
    "video_ocr": "ocr reads the frames of clips",
}

__all__ = ["NOT_YET", "TABLE", "build", "unknown"]


def build(reward_function: Mapping[str, float], arguments: Mapping[str, Mapping[str, Any]] | None = None) -> Mix:
    """Make the rewards that a configuration names.

    Args:
        reward_function: Name -> weight. A name is one of ``TABLE``, or ``module:function`` or
            ``path/to/file.py:function`` for one's own.
        arguments: Name -> keyword arguments of its class, such as ``{"hpsv2": {"version": "v2.0"}}``.

    Raises:
        UserError: Listing every unknown name, unusable object, argument and weight, and missing weights.
    """
    from sanarl.rewards.mix import RESERVED, Mix

    if not reward_function:
        raise UserError(f"reward_function is empty; accepted: {_accepted()}")
    arguments = arguments or {}
    faults, parts = [], {}
    short = [_label(name) for name in reward_function]
    for name, weight in reward_function.items():
        label = _label(name)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            faults.append(f"reward {name!r}: found the weight {weight!r}; accepted: a finite number")
            continue
        try:
            reward = _resolve(name, arguments.get(name, {}))
            parts[label if short.count(label) == 1 and label not in RESERVED else name] = (float(weight), reward)
        except UserError as error:
            faults.append(str(error))
    faults += [
        f"reward_args: found {name!r}; accepted: a name of reward_function, here {', '.join(reward_function)}"
        for name in arguments
        if name not in reward_function
    ]
    if not faults and not any(weight > 0 for weight, _ in parts.values()):
        found = {name: weight for name, (weight, _) in parts.items()}
        faults.append(f"reward_function: found the weights {found}; accepted: at least one above 0")
    if faults:
        raise UserError("\n".join(faults))
    return Mix(parts)


def _accepted() -> str:
    return f"{', '.join(sorted(TABLE))}, or your own as module:function or path/to/file.py:function"


def _label(name: str) -> str:
    return name.rpartition(":")[2]


def unknown(name: str) -> str | None:
    """Why a name can be no reward, without importing anything; None when it can."""
    if name in TABLE:
        return None
    module, colon, _ = name.rpartition(":")
    if not colon:
        if name.lower() in NOT_YET:
            return f"is not available in this version: {NOT_YET[name.lower()]}; accepted: {_accepted()}"
        return f"is not known{nearest(name, sorted(TABLE))}; accepted: {_accepted()}"
    if is_path(module) and not Path(module).expanduser().is_file():
        return f"is in no file: there is none at {module}"
    return None


def _resolve(name: str, arguments: Mapping[str, Any]) -> Any:
    """The callable behind a name."""
    target = TABLE.get(name, name)
    module_name, colon, attribute = target.rpartition(":")
    if not colon:
        raise UserError(f"reward {name!r} {unknown(name)}")
    try:
        module = import_named(module_name)
    except UserError as error:
        raise UserError(f"reward {name!r}: {error}") from error
    value = getattr(module, attribute, None)
    if value is None:
        public = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
        raise UserError(f"reward {name!r}: {module_name} has no {attribute!r}{nearest(attribute, public)}")
    if inspect.isclass(value):
        value = _built(name, attribute, value, arguments)
    elif arguments:
        raise UserError(f"reward {name!r}: found the arguments {sorted(arguments)}; accepted: none, it is no class")
    _check_call(name, value)
    return value


def _built(name: str, attribute: str, kind: type, arguments: Mapping[str, Any]) -> Any:
    """An object of a reward's class."""
    try:
        known = list(inspect.signature(kind).parameters)
    except ValueError:  # built-in without a signature
        known = list(arguments)
    unknown = [key for key in arguments if key not in known]
    if unknown:
        raise UserError(f"reward {name!r}: found the arguments {unknown}; accepted: {', '.join(known) or 'none'}")
    try:
        return kind(**arguments)
    except UserError as error:
        raise UserError(f"reward {name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        advice = "" if arguments else "; a class is built without arguments, or with those of reward_args"
        raise UserError(f"reward {name!r}: {attribute}({given}) failed{advice}\n  {where(error)}") from error


def _check_call(name: str, reward: Any) -> None:
    """Find out before the first rollout that a reward cannot be called."""
    accepted = "a function (media, prompts, metadata), or a class whose objects are called so"
    if not callable(reward):
        raise UserError(f"reward {name!r}: found {type(reward).__name__}; accepted: {accepted}")
    try:
        signature = inspect.signature(reward)
    except ValueError:  # built-in without a signature: the first call will tell
        return
    try:
        signature.bind(None, None, None, **({"only_strict": False} if "only_strict" in signature.parameters else {}))
    except TypeError as error:
        raise UserError(f"reward {name!r}: found the arguments {signature}; accepted: {accepted}") from error

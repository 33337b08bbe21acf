"""The schema as a flat table: every key path with what it accepts, its default and its meaning."""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sanarl.config.faults import shown
from sanarl.config.schema.base import LARGEST, Accepts
from sanarl.config.schema.root import Config
from sanarl.config.schema.train import GRPOConfig, SFTConfig, Train

Kind = Literal["sft", "grpo"]
KINDS: tuple[Kind, ...] = ("sft", "grpo")
POLICIES: dict[Kind, type[BaseModel]] = {"sft": SFTConfig, "grpo": GRPOConfig}


@dataclass(frozen=True)
class Key:
    """One key of the schema; an entry of a list is written "*"."""

    path: str
    accepts: str
    default: str
    meaning: str
    is_table: bool
    is_required: bool


@cache
def keys(kind: Kind) -> dict[str, Key]:
    """Every key of the schema for a train_policy of this type, tables included, in the schema's order."""
    return {key.path: key for key in _walk(Config, "", kind)}


@cache
def every_key() -> dict[str, Key]:
    """The keys of both types."""
    return {**keys("sft"), **keys("grpo")}


def _walk(model: type[BaseModel], prefix: str, kind: Kind) -> Iterator[Key]:
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        table = POLICIES[kind] if (model, name) == (Train, "train_policy") else _table(info.annotation)
        is_list = get_origin(info.annotation) is tuple
        meaning = " ".join((info.description or "").split())
        if table is not None and not meaning:
            meaning = (table.__doc__ or "").split("\n")[0]
        yield Key(path, field_accepts(info), _default(info), meaning, table is not None, info.is_required())
        if table is not None:
            yield from _walk(table, f"{path}.*." if is_list else f"{path}.", kind)


def _table(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = [_table(part) for part in get_args(annotation)]
    return next((table for table in found if table is not None), None)


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "unset"
    return "" if isinstance(value, BaseModel) else shown(value)


def field_accepts(info: FieldInfo) -> str:
    """What a field accepts, in words."""
    return _words(info.annotation, list(info.metadata))


def _words(annotation: Any, metadata: list[Any]) -> str:
    for item in metadata:
        if isinstance(item, Accepts):
            return item.text
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [part for item in args[1:] for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return _words(args[0], inner + metadata)
    if origin in (Union, types.UnionType):
        parts = [_words(part, metadata) for part in args if part is not type(None)]
        parts = [word for part in parts for word in (("true", "false") if part == "true or false" else (part,))]
        return _choices(list(dict.fromkeys(parts)))
    if origin is Literal:
        return _choices([shown(choice) for choice in args])
    if origin is tuple:
        return _list_words(args)
    if origin is dict:
        return "a table" if args[1] is Any else f"a table of names, each with {_words(args[1], [])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a table"
    return _scalar_words(annotation, metadata)


def _choices(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def _list_words(args: tuple[Any, ...]) -> str:
    if args[-1] is Ellipsis:
        return f"a list, each entry {_words(args[0], [])}"
    return f"a list of {len(args)}, each {_words(args[0], [])}"


def _scalar_words(annotation: Any, metadata: list[Any]) -> str:
    if annotation is bool:
        return "true or false"
    if annotation is str:
        filled = any(isinstance(item, annotated_types.MinLen) and item.min_length > 0 for item in metadata)
        return "a text that is not empty" if filled else "a text"
    noun = "a whole number" if annotation is int else "a number"
    bounds = [text for item in metadata if (text := _bound(item))]
    return ", ".join([noun, *bounds])


def _bound(item: Any) -> str:
    match item:
        case annotated_types.Ge(ge=bound):
            return f"{bound} or more"
        case annotated_types.Gt(gt=bound):
            return f"above {bound}"
        case annotated_types.Le(le=bound):
            return "" if isinstance(bound, int) and bound >= LARGEST else f"at most {bound}"
        case annotated_types.Lt(lt=bound):
            return f"below {bound}"
        case annotated_types.MultipleOf(multiple_of=bound):
            return f"a multiple of {bound}"
    return ""

"""Dataset modules: Python with ``get_dataset(config)`` that a command line names, and the check of its items."""

import importlib.util
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sanarl.data import settings
from sanarl.data.buckets import Size
from sanarl.data.prompts import prompt_fault
from sanarl.errors import UserError
from sanarl.importing import NotFound, import_named, is_path, nearest, where

COSMOS = "cosmos_rl.tools.dataset."
OURS = "sanarl.datasets."

Item = dict[str, Any]


class Items(Sequence[Item]):
    """A person's sequence with every item checked as it is taken."""

    def __init__(self, source: Any, module: str, file: str | None, check: Callable[[Any, int], Item]):
        self.source, self.module, self.file, self.check = source, module, file, check

    def __len__(self) -> int:
        return len(self.source)

    @property
    def notes(self) -> list[str]:
        """Lines that the sequence has for the person, in ``notes``; none when it has no such list."""
        found = getattr(self.source, "notes", ())
        return [str(line) for line in found] if isinstance(found, list | tuple) else []

    def described(self, index: int) -> Item | None:
        """``{"prompt", "content"}`` of an item, got without its media; None where the sequence cannot tell.

        ``content`` stands for everything that the item's media depend on.
        """
        describe_item = getattr(self.source, "described", None)
        return describe_item(index) if callable(describe_item) else None

    @property
    def fingerprint(self) -> str:
        """What must be the same on every rank: the number of items, and ``fingerprint`` when the sequence has one."""
        return f"{len(self)} {getattr(self.source, 'fingerprint', '')}"

    def __getitem__(self, index: int) -> Item:  # type: ignore[override]  # slices are not offered
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"item {index} of {n}")
        index %= n
        try:
            item = self.source[index]
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            text = f"{self.module}: item {index} of {n} could not be read\n  {where(error, self.file)}"
            raise UserError(text) from error
        return self.check(item, index)


@dataclass(frozen=True)
class DatasetModule:
    """A module with ``get_dataset(config)`` and perhaps ``get_val_dataset(config)``."""

    name: str
    file: str | None
    get_dataset: Callable[[Any], Any]
    get_val_dataset: Callable[[Any], Any] | None

    def train(self, config: Any) -> Items:
        """The training items: pictures with captions for SFT, prompts with metadata for RL.

        Raises:
            UserError: If ``get_dataset`` raised or returned no filled sequence; later, on access, if an item is wrong.
        """
        source = self._call(self.get_dataset, "get_dataset", config)
        if config.train.train_policy.type == "sft":
            check: Callable[[Any, int], Item] = partial(
                checked_sft, module=self.name, sizes=settings.sizes(config), frames=config.item_frames
            )
        else:
            check = partial(checked_rl, module=self.name)
        return Items(source, self.name, self.file, check)

    def validation(self, config: Any) -> Items | None:
        """Prompts with metadata to sample from, for SFT and RL alike; None when the module has no get_val_dataset.

        Raises:
            UserError: As for ``train``.
        """
        if self.get_val_dataset is None:
            return None
        source = self._call(self.get_val_dataset, "get_val_dataset", config)
        check: Callable[[Any, int], Item] = partial(checked_rl, module=self.name, function="get_val_dataset")
        if config.policy.diffusers.image_to_video:
            check = partial(checked_start, module=self.name, size=config.policy.diffusers.inference_size)
        return Items(source, self.name, self.file, check)

    def _call(self, function: Callable[[Any], Any], label: str, config: Any) -> Any:
        try:
            result = function(config)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise UserError(f"{self.name}: {label}(config) failed\n  {where(error, self.file)}") from error
        return self._sequence(result, label)

    def _sequence(self, result: Any, label: str) -> Any:
        start = f"{self.name}: {label}(config) returned"
        accepted = "accepted: a sequence of items (a list, or an object with __len__ and __getitem__ by number)"
        if isinstance(result, type):
            raise UserError(f"{start} the class {result.__name__}; {accepted}: return an instance of it")
        missing = [m for m in ("__len__", "__getitem__") if not hasattr(result, m)]
        if missing or isinstance(result, dict | str | bytes):
            without = f" without {' and '.join(missing)}" if missing else ""
            raise UserError(f"{start} {describe(result)}{without}; {accepted}")
        try:
            n = len(result)
        except (Exception, SystemExit) as error:
            raise UserError(f"{start} an object whose len() failed; {accepted}\n  {where(error, self.file)}") from error
        if n == 0:
            raise UserError(f"{start} an empty {type(result).__name__}; accepted: at least one item")
        return result


def load(name: str) -> DatasetModule:
    """Import a dataset module.

    Args:
        name: A dotted module, or a path to a .py file (anything that ends in .py or contains a separator).
            ``cosmos_rl.tools.dataset.X`` is understood as ``sanarl.datasets.X``.

    Raises:
        UserError: If there is no such module, importing it failed, or it has no ``get_dataset``.
    """
    wanted = OURS + name.removeprefix(COSMOS) if name.startswith(COSMOS) else name
    try:
        module = import_named(wanted)
    except NotFound as error:
        if is_path(wanted):
            raise UserError(f"dataset module {error}") from error
        known = known_modules()
        hint = nearest(wanted, known) or nearest(OURS + wanted.rpartition(".")[2], known)
        was = f" (for {name})" if wanted != name else ""
        raise UserError(
            f"dataset module {wanted}{was}: there is no such module{hint}\n"
            f"  accepted: {', '.join(known)}, your own dotted module, or a path to a .py file"
        ) from error
    for function in ("get_dataset", "get_val_dataset"):
        value = getattr(module, function, None)
        if value is not None and not callable(value):
            raise UserError(f"{wanted}: {function} is {describe(value)}; accepted: a function of the config")
    if not hasattr(module, "get_dataset"):
        public = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
        raise UserError(
            f"{wanted} has no function get_dataset(config){nearest('get_dataset', public, 0.75)}\n"
            f"  looked in {getattr(module, '__file__', None) or wanted}"
        )
    return DatasetModule(wanted, getattr(module, "__file__", None), module.get_dataset, _optional(module))


def _optional(module: Any) -> Callable[[Any], Any] | None:
    function: Callable[[Any], Any] | None = getattr(module, "get_val_dataset", None)
    return function


def known_modules() -> list[str]:
    """The dataset modules that ship with sanarl, as dotted names."""
    spec = importlib.util.find_spec(OURS.rstrip("."))  # by name: data stands on a lower floor than datasets
    folders = spec.submodule_search_locations if spec else None
    return sorted(OURS + m.name for m in pkgutil.iter_modules(folders or []))


def describe(value: Any) -> str:
    """A few words on what a value is, for an error."""
    if isinstance(value, torch.Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    if value is None:
        return "None"
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} of shape {tuple(shape)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _fail(module: str, function: str, index: int, key: str, found: str, accepted: str) -> UserError:
    at = f"item {index}" + (f", key {key!r}" if key else "")
    return UserError(f"{module}: {function}: {at}: found {found}; accepted: {accepted}")


def _prompt(item: Any, keys: tuple[str, ...], index: int, module: str, function: str) -> str:
    shape = "{" + ", ".join(f'"{k}": ...' for k in keys) + "}"
    if not isinstance(item, dict):
        raise _fail(module, function, index, "", describe(item), f"a dict {shape}")
    if "prompt" not in item:
        found = f"the keys {sorted(map(str, item))}"
        raise _fail(module, function, index, "prompt", found, f"a dict {shape}")
    fault = prompt_fault(item["prompt"])
    if fault:
        raise _fail(module, function, index, "prompt", fault, "a string that is not blank")
    prompt: str = item["prompt"]
    return prompt


def checked_sft(
    item: Any,
    index: int,
    module: str,
    sizes: Sequence[Size] | None = None,
    frames: int | None = None,
    function: str = "get_dataset",
) -> Item:
    """A valid SFT item: ``{"prompt": str, "media": (F, 3, H, W)}``; other keys are dropped.

    Media are uint8 of 0 to 255, which stay so, or floating-point in [0, 1], which become float32.

    Args:
        item: What the dataset gave.
        index: Its number, for the error.
        module: The dataset module's name, for the error.
        sizes: The (height, width) expected, one of them; None accepts any.
        frames: The number of frames expected, 1 for pictures; None accepts any.
        function: The function it came from, for the error.

    Raises:
        UserError: Naming module, function, index and key, with what was found and what is accepted.
    """
    prompt = _prompt(item, ("prompt", "media"), index, module, function)
    height, width = sizes[0] if sizes and len(sizes) == 1 else ("H", "W")
    shape = f"({frames or 'F'}, 3, {height}, {width})"
    accepted = f"a tensor {shape}, floating-point with values in [0, 1] or uint8"
    if sizes and len(sizes) > 1:
        accepted += f", and (H, W) one of {', '.join(map(str, sizes))}"
    if "media" not in item:
        raise _fail(module, function, index, "media", f"the keys {sorted(map(str, item))}", accepted)
    media = item["media"]
    if not isinstance(media, torch.Tensor):
        raise _fail(module, function, index, "media", describe(media), accepted)
    if media.dtype != torch.uint8 and not media.is_floating_point():
        raise _fail(module, function, index, "media", describe(media), accepted)
    fits = media.ndim == 4 and media.shape[1] == 3 and min(media.shape) > 0
    fits = fits and frames in (None, media.shape[0])
    if not fits or (sizes is not None and tuple(media.shape[2:]) not in [tuple(size) for size in sizes]):
        extra = ": add the frame axis with media[None]" if media.ndim == 3 and media.shape[0] == 3 else ""
        raise _fail(module, function, index, "media", describe(media), accepted + extra)
    if media.dtype == torch.uint8:
        return {"prompt": prompt, "media": media.detach()}
    low, high = media.aminmax()  # NaN if there is one anywhere
    if not bool(torch.isfinite(low) and torch.isfinite(high)):
        raise _fail(module, function, index, "media", "NaN or infinity", accepted)
    if low < 0 or high > 1:
        extra = ": divide by 255" if low >= 0 and high > 2 else ": add 1 and halve" if low >= -1 and high <= 1 else ""
        found = f"values from {float(low):.6g} to {float(high):.6g}"
        raise _fail(module, function, index, "media", found, accepted + extra)
    return {"prompt": prompt, "media": media.detach().to(torch.float32)}


def checked_rl(item: Any, index: int, module: str, function: str = "get_dataset") -> Item:
    """A valid RL or validation item: ``{"prompt": str, "metadata": dict}``; metadata may be absent.

    A key ``media`` is allowed and dropped, so that a picture set can serve as a prompt set. Any other key is an error:
    what a reward needs to know travels in metadata.

    Raises:
        UserError: Naming module, function, index and key, with what was found and what is accepted.
    """
    prompt = _prompt(item, ("prompt", "metadata"), index, module, function)
    surplus = sorted(str(k) for k in item if k not in ("prompt", "metadata", "media"))
    if surplus:
        accepted = "prompt and metadata; put what a reward needs into metadata"
        raise _fail(module, function, index, surplus[0], "a key that nothing reads", accepted)
    metadata = item.get("metadata")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise _fail(module, function, index, "metadata", describe(metadata), "a dict")
    return {"prompt": prompt, "metadata": metadata}


def checked_start(item: Any, index: int, module: str, size: Size) -> Item:
    """A valid validation item of image-to-video: that of ``checked_rl``, and ``first`` (1, 3, H, W), its first frame.

    Raises:
        UserError: Naming module, function, index and key, with what was found and what is accepted.
    """
    function = "get_val_dataset"
    media = checked_sft(item, index, module, [size], None, function)["media"]
    return {**checked_rl(item, index, module, function), "first": media[:1]}

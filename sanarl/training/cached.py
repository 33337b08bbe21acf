"""Latents and prompt embeddings that are computed once and then read from [data] cache."""

import copy
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sanarl.algorithms.sft import by_shape
from sanarl.config import Config
from sanarl.data.module import Item, Items
from sanarl.data.store import Store, fingerprint
from sanarl.models.base import FlowModel
from sanarl.types import Cond

VERSION = "2"  # of what is kept
NAMES = ("embeds", "mask", "pooled")
"""Of a condition, what comes of the prompt."""


class Cached:
    """A FlowModel around another one.

    Latents are named by the autoencoder and by what the media depend on: the file's content and how it is read
    (size, crop, frames, colour behind it), or their values where no file is known. Embeddings are named by the prompt,
    the text encoder, its tokenizer and what is put around prompts. Weights count with every byte. So a stale entry has
    another name and is never read.
    """

    def __init__(self, model: FlowModel, store: Store, around_prompts: str):
        """Wrap a model.

        Args:
            model: asked for what the store lacks.
            store: of values.
            around_prompts: names every setting that changes how a prompt becomes tokens.
        """
        self._model, self._store, self._around_prompts = model, store, around_prompts
        self.pipeline = model.pipeline
        self.device, self.flow_shift, self.latent_shape = model.device, model.flow_shift, model.latent_shape
        self.embeds_guidance, self.num_tokens, self.text_tokens = (
            model.embeds_guidance,
            model.num_tokens,
            model.text_tokens,
        )
        self._autoencoder = _identity(self.pipeline.vae)  # now: later it may be on its way to another device

    @property
    def transformer(self) -> nn.Module:
        """See FlowModel."""
        return self._model.transformer

    @transformer.setter
    def transformer(self, transformer: nn.Module) -> None:
        self._model = copy.copy(self._model)
        self._model.transformer = transformer

    def decode(self, latents: Tensor) -> Tensor:
        """See FlowModel."""
        return self._model.decode(latents)

    def blank(self, tokens: int) -> Cond:
        """See FlowModel."""
        return self._model.blank(tokens)

    def velocity(self, x_t: Tensor, sigma: Tensor, cond: Cond) -> Tensor:
        """See FlowModel."""
        return self._model.velocity(x_t, sigma, cond)

    def encode_media(self, media: Tensor, mini_batch: int) -> Tensor:
        """See FlowModel; nothing is kept."""
        return self._model.encode_media(media, mini_batch)

    def latents_key(self, content: str | Tensor) -> str:
        """The name of the latents of media: of what they depend on, or of the media themselves."""
        return fingerprint([VERSION, "latents", self._autoencoder, content])

    def known_latents(self, key: str) -> Tensor | None:
        """Latents of one sample from the store, on the CPU."""
        found = self._store.get(key)
        return None if found is None else found["latents"]

    def keep_latents(self, key: str, latents: Tensor) -> None:
        """Put latents of one sample into the store."""
        self._store.put(key, {"latents": latents})

    def encode_prompts(self, prompts: list[str]) -> Cond:
        """See FlowModel."""
        if not prompts:
            return self._model.encode_prompts(prompts)
        values: dict[str, dict[str, Tensor] | None] = {
            prompt: self._store.get(self._prompt_key(prompt)) for prompt in dict.fromkeys(prompts)
        }
        missing = [prompt for prompt, value in values.items() if value is None]
        if missing:
            fresh = self._model.encode_prompts(missing)
            columns = {name: value for name in NAMES if (value := getattr(fresh, name)) is not None}
            for row, prompt in enumerate(missing):
                values[prompt] = found = {name: column[row] for name, column in columns.items()}
                self._store.put(self._prompt_key(prompt), found)
        device = self.device
        rows = [value for prompt in prompts if (value := values[prompt]) is not None]
        columns = {name: torch.stack([row[name].to(device) for row in rows]) for name in rows[0]}
        return Cond(**columns, texts=list(prompts))

    def _prompt_key(self, prompt: str) -> str:
        return fingerprint([VERSION, "prompt", self._text_encoder, prompt])

    @cached_property
    def _text_encoder(self) -> str:
        parts = sorted(self.pipeline.components.items())
        encoders = [_identity(part) for name, part in parts if name.startswith("text_encoder") and part is not None]
        words = [_words(part) for name, part in parts if name.startswith("tokenizer") and part is not None]
        return fingerprint([*encoders, *words, self._around_prompts])


class _Undecoded(Sequence[Item]):
    """A data set whose items carry ``latents`` instead of ``media`` where those are known, else the ``key`` of both."""

    def __init__(self, items: Items, model: Cached):
        self._items, self._model = items, model

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Item:  # type: ignore[override]  # slices are not offered
        described = self._items.described(index)
        if described is None:
            return self._items[index]
        key = self._model.latents_key(described["content"])
        if (latents := self._model.known_latents(key)) is not None:
            return {"prompt": described["prompt"], "latents": latents}
        item = self._items[index]
        # A file that was changed while it was read must not leave its latents under the other content's name.
        return {**item, "key": key} if self._items.described(index) == described else item


def without_known_media(items: Items, model: FlowModel) -> Sequence[Item]:
    """The items; with a cache, those whose latents it holds are not decoded."""
    return _Undecoded(items, model) if isinstance(model, Cached) else items


def encoded(model: FlowModel, items: list[Item], mini_batch: int) -> list[Tensor]:
    """The latents of items, each (C, ..., H, W), on the model's device.

    Media of one size are encoded at once, so that an offloaded autoencoder visits the device once a size.
    """
    latents: list[Tensor | None] = [item.get("latents") for item in items]
    cache = model if isinstance(model, Cached) else None
    keys: dict[int, str] = {}
    for place, item in enumerate(items) if cache else ():
        if latents[place] is None:
            keys[place] = item.get("key") or cache.latents_key(item["media"])
            latents[place] = None if "key" in item else cache.known_latents(keys[place])
    missing = [place for place, found in enumerate(latents) if found is None]
    for dtype in (torch.uint8, torch.float32):
        places = [place for place in missing if items[place]["media"].dtype == dtype]
        for group in by_shape([items[place]["media"] for place in places]):
            members = [places[i] for i in group]
            fresh = model.encode_media(torch.stack([items[place]["media"] for place in members]), mini_batch)
            for place, found in zip(members, fresh, strict=True):
                latents[place] = found
                if cache:
                    cache.keep_latents(keys[place], found)
    return [found.to(model.device) for found in latents if found is not None]


def _identity(module: nn.Module) -> str:
    """Hash of a module's class, configuration and weights."""
    config: Any = module.config
    values = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    kept = sorted(
        (key, repr(value)) for key, value in values.items() if key != "transformers_version" and key[0] != "_"
    )
    weights = module.state_dict()
    named = (part for name in sorted(weights) for part in (name, weights[name]))
    return fingerprint([type(module).__name__, repr(kept), *named])


def _words(tokenizer: Any) -> str:
    """Vocabulary, merges and special tokens; not the padding, which calls change."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = json.loads(backend.to_str()) if backend is not None else {}
    model = parts.get("model") or sorted(tokenizer.get_vocab().items())
    rest = [parts.get(name) for name in ("normalizer", "pre_tokenizer", "post_processor", "added_tokens")]
    return json.dumps([type(tokenizer).__name__, model, rest], sort_keys=True)


def cached(model: FlowModel, config: Config) -> FlowModel:
    """The model as it is, or with its latents and embeddings kept where data.cache says.

    Raises:
        UserError: If that folder cannot be written.
    """
    folder, diffusers = config.data.cache, config.policy.diffusers
    if folder is None or config.is_rl:
        return model
    around = (diffusers.max_prompt_length, diffusers.complex_human_instruction, diffusers.motion_score)
    return Cached(model, Store(Path(folder).expanduser()), repr(around))

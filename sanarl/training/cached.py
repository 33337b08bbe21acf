"""A model whose latents and prompt embeddings are computed once and then read from [data] cache."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sanarl.config import Config
from sanarl.data.store import Store, fingerprint
from sanarl.models.base import FlowModel
from sanarl.types import Cond

VERSION = "1"  # of what is kept


class Cached:
    """A FlowModel around another one.

    Latents are named by the media's values as they enter the autoencoder (so by content, size and crop) and by the
    autoencoder; embeddings by the prompt, the text encoder, its tokenizer and what is put around prompts. Weights count
    with every byte. So a stale entry has another name and is never read.
    """

    def __init__(self, model: FlowModel, store: Store, around_prompts: str):
        """Wrap a model.

        Args:
            model: asked for what the store lacks.
            store: of values.
            around_prompts: names every setting that changes how a prompt becomes tokens.
        """
        self._model, self._store, self._around_prompts = model, store, around_prompts
        self.transformer, self.pipeline = model.transformer, model.pipeline
        self.flow_shift, self.latent_shape = model.flow_shift, model.latent_shape

    def decode(self, latents: Tensor) -> Tensor:
        """See FlowModel."""
        return self._model.decode(latents)

    def velocity(self, x_t: Tensor, sigma: Tensor, cond: Cond) -> Tensor:
        """See FlowModel."""
        return self._model.velocity(x_t, sigma, cond)

    def encode_media(self, media: Tensor, mini_batch: int) -> Tensor:
        """See FlowModel."""
        keys = [fingerprint([VERSION, "latents", self._autoencoder, sample]) for sample in media]
        found = [self._store.get(key) for key in keys]
        missing = [row for row, value in enumerate(found) if value is None]
        if missing:
            fresh = self._model.encode_media(media[torch.tensor(missing)], mini_batch)
            for row, latents in zip(missing, fresh, strict=True):
                found[row] = {"latents": latents}
                self._store.put(keys[row], {"latents": latents})
        device = self.transformer.device
        return torch.stack([value["latents"].to(device) for value in found if value is not None])

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
            for prompt, embeds, mask in zip(missing, fresh.embeds, fresh.mask, strict=True):
                values[prompt] = {"embeds": embeds, "mask": mask}
                self._store.put(self._prompt_key(prompt), {"embeds": embeds, "mask": mask})
        device = self.transformer.device
        rows = [value for prompt in prompts if (value := values[prompt]) is not None]
        return Cond(
            torch.stack([row["embeds"].to(device) for row in rows]),
            torch.stack([row["mask"].to(device) for row in rows]),
        )

    def _prompt_key(self, prompt: str) -> str:
        return fingerprint([VERSION, "prompt", self._text_encoder, prompt])

    @cached_property
    def _autoencoder(self) -> str:
        return _identity(self.pipeline.vae)

    @cached_property
    def _text_encoder(self) -> str:
        return fingerprint(
            [_identity(self.pipeline.text_encoder), _words(self.pipeline.tokenizer), self._around_prompts]
        )


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
    if folder is None or config.task == "nft":
        return model
    around = (diffusers.max_prompt_length, diffusers.complex_human_instruction, diffusers.motion_score)
    return Cached(model, Store(Path(folder).expanduser()), repr(around))

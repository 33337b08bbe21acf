"""Work that passes of a SANA transformer share, done once: the same function as PEFT's and diffusers', up to rounding.

Products of an adapter with a rank that is no multiple of 16 take slow kernels on GPUs: ranks are filled up with zeros
while they compute. Query, key and value of self-attention have the same input, as have key and value of
cross-attention: their adapters' A are one product. Rows that are all of one prompt, as those of a group are, have the
same keys and values in cross-attention: these are computed for one of them.

Parameters, their gradients and all that is saved stay as they are.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from diffusers.models.attention_processor import Attention, SanaLinearAttnProcessor2_0
from diffusers.models.transformers import sana_transformer, transformer_sana_video
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn

from sanarl.models.adapter import NAME
from sanarl.types import Cond

RANK_MULTIPLE = 16
MASKED = -10000.0  # what diffusers adds to the scores of padding


class PaddedLora(LoraLinear):
    """PEFT's layer, with its rank filled up while it computes."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return self.raised(x, F.linear(x, self.lowering()))

    def lowering(self) -> Tensor:
        """The adapter's A (R, in), R a multiple of 16."""
        a = self.lora_A[NAME].weight
        return F.pad(a, (0, 0, 0, -a.shape[0] % RANK_MULTIPLE))

    def raised(self, x: Tensor, low: Tensor) -> Tensor:
        """The layer's output for ``x`` (..., in), given its product with ``lowering()`` (..., R)."""
        b = self.lora_B[NAME].weight
        change = F.linear(low, F.pad(b, (0, -b.shape[1] % RANK_MULTIPLE)))
        scale = self.scaling[NAME]
        out = self.base_layer(x)
        return out + (change if scale == 1 else change * scale)


def together(layers: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    """The outputs of layers with the same input."""
    padded = [layer for layer in layers if isinstance(layer, PaddedLora)]
    if len(padded) < 2:
        return [layer(x) for layer in layers]
    factors = [layer.lowering() for layer in padded]
    lows = iter(F.linear(x, torch.cat(factors)).split([len(a) for a in factors], dim=-1))
    return [layer.raised(x, next(lows)) if isinstance(layer, PaddedLora) else layer(x) for layer in layers]


class _Given:
    """An attention layer whose query, key and value are there already."""

    def __init__(self, attn: Attention, query: Tensor, key: Tensor, value: Tensor, norm_k: nn.Module | None):
        self._query, self._key, self._value = query, key, value
        self.norm_q, self.norm_k = attn.norm_q, norm_k
        self.heads, self.to_out, self.rescale_output_factor = attn.heads, attn.to_out, attn.rescale_output_factor
        self.prepare_attention_mask = attn.prepare_attention_mask

    def to_q(self, _: Tensor) -> Tensor:
        return self._query

    def to_k(self, _: Tensor) -> Tensor:
        return self._key

    def to_v(self, _: Tensor) -> Tensor:
        return self._value


class FusedAttention:
    """A processor around diffusers' own. Arguments are its; a mask of one row says that all rows have one caption."""

    def __init__(self, inner: object):
        """Nothing is computed yet."""
        self._inner = inner

    def __call__(
        self,
        attn: Attention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        if encoder_hidden_states is None:
            return self._inner(_self_attention(attn, hidden_states), hidden_states)
        rows, text, norm_k = len(hidden_states), encoder_hidden_states, attn.norm_k
        one = attention_mask is not None and len(attention_mask) == 1 and rows > 1
        query = attn.to_q(hidden_states)
        key, value = together([attn.to_k, attn.to_v], text[:1] if one else text)
        if one:
            key, norm_k = key if norm_k is None else norm_k(key), None
            # Kernels of attention want whole rows.
            key, value = (each.expand(rows, -1, -1).contiguous() for each in (key, value))
            attention_mask = attention_mask.expand(rows, -1, -1)
        return self._inner(_Given(attn, query, key, value, norm_k), hidden_states, text, attention_mask)


class FusedRotaryAttention(FusedAttention):
    """The same for self-attention of clips, which turns queries and keys by their place."""

    def __call__(
        self,
        attn: Attention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: Tensor | None = None,
    ) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        assert encoder_hidden_states is attention_mask is None, "this processor is of self-attention"
        return self._inner(_self_attention(attn, hidden_states), hidden_states, rotary_emb=rotary_emb)


def _self_attention(attn: Attention, x: Tensor) -> _Given:
    return _Given(attn, *together([attn.to_q, attn.to_k, attn.to_v], x), attn.norm_k)


PROCESSORS: dict[type, type[FusedAttention]] = {
    SanaLinearAttnProcessor2_0: FusedAttention,
    sana_transformer.SanaAttnProcessor2_0: FusedAttention,
    transformer_sana_video.SanaLinearAttnProcessor3_0: FusedRotaryAttention,
    transformer_sana_video.SanaAttnProcessor2_0: FusedAttention,
}
"""diffusers' processor -> what is put around it."""


def fuse(transformer: nn.Module) -> None:
    """Let the layers of a transformer share work, in place; layers of other kinds stay as they are."""
    for module in transformer.modules():
        if type(module) is LoraLinear:
            module.__class__ = PaddedLora
        around = PROCESSORS.get(type(getattr(module, "processor", None)))
        if around is not None:
            module.processor = around(module.processor)


def caption_mask(transformer: nn.Module, cond: Cond, dtype: torch.dtype) -> Tensor:
    """What a transformer is given as ``encoder_attention_mask``.

    The mask (B, L) as it is; where layers share work and all rows have one prompt, the bias (1, 1, L) that diffusers
    makes of it for one row.
    """
    texts = cond.texts
    if texts is None or len(texts) < 2 or any(text != texts[0] for text in texts):
        return cond.mask
    if not isinstance(getattr(transformer.transformer_blocks[0].attn2, "processor", None), FusedAttention):
        return cond.mask
    return ((1 - cond.mask[:1].to(dtype)) * MASKED)[:, None]

"""SANA's picture transformer as it samples fastest: the same function as diffusers' class, for inference alone.

What differs from ``SanaTransformer2DModel``'s own forward: query, key and value are one product; the FFN's 1x1
convolutions are linear layers around the depthwise one, channels last, so nothing is copied between layouts; linear
attention multiplies in the working dtype, with a float32 denominator (diffusers: all of it in float32); keys and values
of captions are computed once for each prompt instead of at every step; adapters stay live beside their layers. Noise
levels enter as tensors, so that compiled blocks serve every step.
"""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sanarl.models.live import LiveLinear, Quantizer, as_it_is
from sanarl.models.native import BLOCK, LINEAR
from sanarl.types import Cond

TOKEN_MULTIPLE = 8
MASKED = -10000.0  # what diffusers adds to the scores of padding
EPS = 1e-15


@dataclass(frozen=True)
class Captions:
    """What the blocks attend to, once for a batch: keys and values of every block, and the mask as a bias."""

    keys: list[Tensor]  # (B, heads, L, D) of every block
    values: list[Tensor]
    bias: Tensor  # (B, 1, 1, L)


class FastBlock(nn.Module):
    """One transformer block."""

    def __init__(self, number: int, block: nn.Module, dtype: torch.dtype, quantize: Quantizer):
        super().__init__()

        def live(native: str) -> LiveLinear:
            parts = [block.get_submodule(name) for name in BLOCK[LINEAR.get(native, native)]]
            return LiveLinear(f"blocks.{number}.{native}", parts, dtype, quantize)

        self.qkv, self.proj = live("attn.qkv"), live("attn.proj")
        self.q, self.kv = live("cross_attn.q_linear"), live("cross_attn.kv_linear")
        self.cross_proj = live("cross_attn.proj")
        self.inverted, self.point = live("mlp.inverted_conv.linear"), live("mlp.point_conv.linear")
        self.depth = copy.deepcopy(block.ff.conv_depth).to(dtype).to(memory_format=torch.channels_last)
        self.norm1, self.norm2 = (copy.deepcopy(m).to(dtype) for m in (block.norm1, block.norm2))
        norms = (block.attn1.norm_q, block.attn1.norm_k, block.attn2.norm_q, block.attn2.norm_k)
        self.norm_q, self.norm_k, self.cross_norm_q, self.cross_norm_k = (
            nn.Identity() if m is None else copy.deepcopy(m).to(dtype) for m in norms
        )
        self.table = nn.Parameter(block.scale_shift_table.detach().to(dtype), requires_grad=False)
        self.heads, self.cross_heads = block.attn1.heads, block.attn2.heads

    def forward(
        self, x: Tensor, key: Tensor, value: Tensor, bias: Tensor, t: Tensor, height: int, width: int
    ) -> Tensor:
        """Tokens (B, N, C) under modulation ``t`` (B, 6 C), with keys and values of the captions."""
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = (self.table[None] + t.unflatten(1, (6, -1))).chunk(6, 1)
        x = x + gate_a * self._attention(self.norm1(x) * (1 + scale_a) + shift_a)
        query = self.cross_norm_q(self.q(x)).unflatten(2, (self.cross_heads, -1)).transpose(1, 2)
        crossed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = self.cross_proj(crossed.transpose(1, 2).flatten(2)) + x
        return x + gate_f * self._feed_forward(self.norm2(x) * (1 + scale_f) + shift_f, height, width)

    def _attention(self, x: Tensor) -> Tensor:
        """Linear attention: q (k^T v) / (q . sum k), after ReLU."""
        query, key, value = self.qkv(x).chunk(3, 2)  # (B, N, C)
        query, key = F.relu(self.norm_q(query)), F.relu(self.norm_k(key))
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (query, key, value))
        mixed = query @ (key.transpose(2, 3) @ value)  # (B, heads, N, D)
        # The matrix may not round the numerator's weights any more than the denominator's sum: that one is exact.
        total = (query.float() * key.float().sum(2, keepdim=True)).sum(3, keepdim=True)  # (B, heads, N, 1)
        return self.proj((mixed.float() / (total + EPS)).to(x.dtype).transpose(1, 2).flatten(2))

    def _feed_forward(self, x: Tensor, height: int, width: int) -> Tensor:
        x = F.silu(self.inverted(x)).unflatten(1, (height, width)).permute(0, 3, 1, 2)  # channels last, no copy
        x, gate = self.depth(x).permute(0, 2, 3, 1).flatten(1, 2).chunk(2, 2)
        return self.point(x * F.silu(gate))


class FastTransformer(nn.Module):
    """A copy of a ``SanaTransformer2DModel``'s base weights with the adapters of its slot live on top."""

    def __init__(self, transformer: nn.Module, dtype: torch.dtype, quantize: Quantizer = as_it_is):
        """Copy what is needed.

        Args:
            transformer: of the policy, with or without an adapter.
            dtype: of the copy.
            quantize: may replace linear layers of blocks.
        """
        super().__init__()
        names = ("patch_embed", "time_embed", "caption_projection", "caption_norm", "norm_out", "proj_out")
        for name in names:
            setattr(self, name, copy.deepcopy(getattr(transformer, name)).to(dtype))
        self.table = nn.Parameter(transformer.scale_shift_table.detach().to(dtype), requires_grad=False)
        blocks = enumerate(transformer.transformer_blocks)
        self.blocks = nn.ModuleList(FastBlock(n, block, dtype, quantize) for n, block in blocks)
        self.patch, self.dtype = transformer.config.patch_size, dtype
        self.requires_grad_(False).eval()

    def captions(self, cond: Cond, place: Tensor) -> Captions:
        """Keys and values of distinct prompts, repeated for the rows that ask for them.

        Args:
            cond: of P distinct prompts. place: (B,) int64, which of them a row has.
        """
        tokens = -(-cond.embeds.shape[1] // TOKEN_MULTIPLE) * TOKEN_MULTIPLE
        added = (0, tokens - cond.embeds.shape[1])
        text = self.caption_norm(self.caption_projection(cond.embeds.to(self.dtype)))
        text = F.pad(text, (0, 0, *added))
        bias = (1 - F.pad(cond.mask.to(self.dtype), added)) * MASKED
        keys, values = [], []
        for block in self.blocks:
            key, value = block.kv(text).chunk(2, 2)
            for part, into in ((block.cross_norm_k(key), keys), (value, values)):
                into.append(part.unflatten(2, (block.cross_heads, -1)).transpose(1, 2)[place].contiguous())
        return Captions(keys, values, bias[place, None, None])

    def forward(self, x: Tensor, captions: Captions, timestep: Tensor) -> Tensor:
        """The transformer's output at latents (B, C, H, W) and timesteps (B,), in the working dtype."""
        rows, _, height, width = x.shape
        height, width = height // self.patch, width // self.patch
        tokens = self.patch_embed(x.to(self.dtype)).contiguous()  # as every later block gets them: one graph for all
        t, embedded = self.time_embed(timestep, batch_size=rows, hidden_dtype=self.dtype)
        for block, key, value in zip(self.blocks, captions.keys, captions.values, strict=True):
            tokens = block(tokens, key, value, captions.bias, t, height, width)
        out = self.proj_out(self.norm_out(tokens, embedded, self.table))
        out = out.unflatten(2, (self.patch, self.patch, -1)).unflatten(1, (height, width))
        return out.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)

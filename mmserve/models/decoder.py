"""The decoder that Llama, Mistral, Qwen2 and Qwen3 share, over ragged tokens without padding.

    embed(ids) -> [T, E] -> layer: norm, qkv, (head norms), rotary, KV written, attention,
                                   norm, gate and up, down -> norm -> [Q, E] -> logits

The last layer computes KV for every token and the rest only where an output is wanted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader knows
from torch import Tensor

from mmserve.kernels import Linear, rms_norm, rotary, silu_and_mul
from mmserve.models.config import DecoderConfig, RopeConfig
from mmserve.models.ports import Attention, DecoderShape
from mmserve.models.weights import Weights

__all__ = ["Decoder", "rope_frequencies"]


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """Weights of one layer."""

    input_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


class Decoder:
    """A loaded decoder. Immutable; the KV it needs lives with the caller.

    Args:
        config: shapes and variants.
        weights: the checkpoint; the decoder takes what it needs.
    """

    def __init__(self, config: DecoderConfig, weights: Weights) -> None:
        self.config = config
        table = weights.take(
            "text.embed_tokens.weight", (config.vocab_size, config.hidden_size)
        )
        self._embedding = table
        self._layers = [_load_layer(config, weights, i) for i in range(config.num_layers)]
        self._norm = weights.take("text.norm.weight", (config.hidden_size,))
        if config.is_tied and not weights.has("lm_head.weight"):
            self._head = Linear(table)
        else:
            names, sizes = ["lm_head"], [config.vocab_size]
            self._head = weights.linear(names, sizes, config.hidden_size, has_bias=False)
        self._frequencies = rope_frequencies(config.rope, config.head_size).to(weights.device)
        self._axes = torch.tensor(config.rope.axes, dtype=torch.int64, device=weights.device)

    @property
    def shape(self) -> DecoderShape:
        """See `LanguageModel.shape`."""
        config = self.config
        return DecoderShape(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            max_positions=config.max_positions,
            windows=config.windows,
            num_deep=config.num_deep,
            has_grid_positions=bool(config.rope.axes),
        )

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T, E] embeddings of int64 [T] ids in [0, vocab_size). Pure."""
        return F.embedding(token_ids, self._embedding)

    def logits(self, hidden: Tensor) -> Tensor:
        """[Q, V] float32 logits of [Q, E] outputs of `forward`. Pure."""
        return self._head(hidden).float()

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        attention: Attention,
        keep: Tensor,
        deep: Tensor | None = None,
    ) -> Tensor:
        """See `LanguageModel.forward`. The last layer computes only what is kept."""
        angles = self._angles(positions)
        cos, sin = angles.cos().to(hidden.dtype), angles.sin().to(hidden.dtype)
        last = len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            queries, keys, values = self._project(layer, hidden, cos, sin)
            attention.write(number, keys, values)
            if number < last:
                mixed = attention.attend(number, queries)
            else:
                if len(keep) == 0:
                    return hidden[:0]
                hidden = hidden[keep]
                mixed = attention.attend_kept(number, queries[keep])
            hidden += layer.out(mixed.flatten(1))
            gates = layer.gate_up(rms_norm(hidden, layer.post_norm, self.config.rms_eps))
            hidden += layer.down(silu_and_mul(gates))
            if deep is not None and number < len(deep):
                hidden += deep[number]
        return rms_norm(hidden, self._norm, self.config.rms_eps)

    def _angles(self, positions: Tensor) -> Tensor:
        """float32 [T, D / 2] angles of [T] positions, or of [3, T] by each pair's own axis."""
        if positions.dim() == 1:
            return positions[:, None].float() * self._frequencies
        return positions.float()[self._axes].T * self._frequencies

    def _project(
        self, layer: _Layer, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Turned queries [T, H, D] and keys [T, G, D], and values [T, G, D]."""
        config = self.config
        num_heads, num_groups = config.num_heads, config.num_kv_heads
        fused = layer.qkv(rms_norm(hidden, layer.input_norm, config.rms_eps))
        fused = fused.view(len(hidden), num_heads + 2 * num_groups, config.head_size)
        turned, values = fused.split([num_heads + num_groups, num_groups], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = turned.split([num_heads, num_groups], dim=1)
            queries = rms_norm(queries, layer.query_norm, config.rms_eps)
            keys = rms_norm(keys, layer.key_norm, config.rms_eps)
            turned = torch.cat([queries, keys], dim=1)
        queries, keys = rotary(turned, cos, sin).split([num_heads, num_groups], dim=1)
        return queries, keys, values


def _load_layer(config: DecoderConfig, weights: Weights, number: int) -> _Layer:
    path = f"text.layers.{number}"
    width, size = config.hidden_size, config.head_size
    q_size, kv_size = config.num_heads * size, config.num_kv_heads * size
    attention, mlp = f"{path}.self_attn", f"{path}.mlp"
    qkv = [f"{attention}.{part}_proj" for part in "qkv"]
    gate_up = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
    ffn, has_bias = config.intermediate_size, config.has_mlp_bias
    sizes = [q_size, kv_size, kv_size]
    normed = config.has_qk_norm
    return _Layer(
        input_norm=weights.take(f"{path}.input_layernorm.weight", (width,)),
        qkv=weights.linear(qkv, sizes, width, has_bias=config.has_qkv_bias),
        query_norm=weights.take(f"{attention}.q_norm.weight", (size,)) if normed else None,
        key_norm=weights.take(f"{attention}.k_norm.weight", (size,)) if normed else None,
        out=weights.linear(
            [f"{attention}.o_proj"], [width], q_size, has_bias=config.has_out_bias
        ),
        post_norm=weights.take(f"{path}.post_attention_layernorm.weight", (width,)),
        gate_up=weights.linear(gate_up, [ffn, ffn], width, has_bias=has_bias),
        down=weights.linear([f"{mlp}.down_proj"], [width], ffn, has_bias=has_bias),
    )


def rope_frequencies(rope: RopeConfig, head_size: int) -> Tensor:
    """float32 [D / 2] angle per position of each pair. Pure.

    Source: RoFormer (2021); `linear` is position interpolation (2023), `llama3` the piecewise
    stretch of the Llama 3.1 release (2024).
    """
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
    plain = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind != "llama3":
        return plain
    wavelengths = 2 * math.pi / plain
    low, high = rope.low_freq_factor, rope.high_freq_factor
    smooth = ((rope.original_context / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * plain / rope.factor + smooth * plain

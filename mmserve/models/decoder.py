"""The decoder that Llama and its relatives share, over ragged tokens without padding.

    embed(ids) -> [T, E] -> layer: norm, qkv, (head norms), rotary, KV written, attention,
                                   norm, gate and up, down -> norm -> [Q, E] -> logits

How a family differs is data in `DecoderConfig`; a layer without a variant does nothing for it.
How layers are computed is `kernels.Layers`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader knows
from torch import Tensor

from mmserve.kernels import LayerShape, LayerWeights, Turn
from mmserve.models.config import DecoderConfig
from mmserve.models.ports import Attention, DecoderShape
from mmserve.models.rope import RopeConfig, rope_frequencies
from mmserve.models.weights import Weights

__all__ = ["Decoder"]


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
        scale = torch.tensor(config.embedding_scale, dtype=weights.dtype)
        self._embedding_scale = scale.item()  # rounded as the embeddings are
        distinct = list(dict.fromkeys(rope for rope in config.ropes if rope is not None))
        self._ropes = [_Rope(rope, config.head_size, weights.device) for rope in distinct]
        numbers = {rope: number for number, rope in enumerate(distinct)}
        layers = [
            _load_layer(config, weights, i, None if rope is None else numbers[rope])
            for i, rope in enumerate(config.ropes)
        ]
        norm = _gain(config, weights, "text.norm", config.hidden_size)
        self._layers = weights.ops.layers(layers, _layer_shape(config), norm)
        if config.is_tied and not weights.has("lm_head.weight"):
            self._head = weights.product(table)
        else:
            names, sizes = ["lm_head"], [config.vocab_size]
            self._head = weights.linear(names, sizes, config.hidden_size, has_bias=False)

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
            softcap=config.attention_softcap,
            num_deep=config.num_deep,
            has_grid_positions=any(rope.has_axes for rope in self._ropes),
        )

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T, E] embeddings of int64 [T] ids in [0, vocab_size). Pure."""
        embeddings = F.embedding(token_ids, self._embedding)
        if self._embedding_scale != 1.0:
            embeddings *= self._embedding_scale
        return embeddings

    def logits(self, hidden: Tensor) -> Tensor:
        """[Q, V] float32 logits of [Q, E] outputs of `forward`. Pure."""
        logits = self._head(hidden).float()
        bound = self.config.logit_softcap
        return logits if bound is None else logits.div_(bound).tanh_().mul_(bound)

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        attention: Attention,
        keep: Tensor,
        deep: Tensor | None = None,
    ) -> Tensor:
        """See `LanguageModel.forward`. The last layer computes only what is kept."""
        turns = [rope.turn(positions, hidden.dtype) for rope in self._ropes]
        return self._layers.run(hidden, turns, attention, keep, deep)


class _Rope:
    """One rotary embedding on a device. Immutable."""

    def __init__(self, config: RopeConfig, head_size: int, device: torch.device) -> None:
        self._gain = config.gain
        self._frequencies = rope_frequencies(config, head_size).to(device)
        self._axes = torch.tensor(config.axes, dtype=torch.int64, device=device)
        self.has_axes = bool(config.axes)

    def turn(self, positions: Tensor, dtype: torch.dtype) -> Turn:
        """Of [T] positions, or of [3, T] by each pair's own axis. Pure."""
        angles = self._angles(positions)
        cos, sin = angles.cos(), angles.sin()
        if self._gain != 1.0:
            cos, sin = cos * self._gain, sin * self._gain
        return cos.to(dtype), sin.to(dtype)

    def _angles(self, positions: Tensor) -> Tensor:
        if positions.dim() == 1:
            return positions[:, None].float() * self._frequencies
        return positions.float()[self._axes].T * self._frequencies


def _layer_shape(config: DecoderConfig) -> LayerShape:
    return LayerShape(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        eps=config.rms_eps,
        activation=config.activation,
        query_scale=config.query_scale,
    )


def _load_layer(
    config: DecoderConfig, weights: Weights, number: int, rope: int | None
) -> LayerWeights:
    path = f"text.layers.{number}"
    width, size = config.hidden_size, config.head_size
    q_size, kv_size = config.num_heads * size, config.num_kv_heads * size
    attention, mlp = f"{path}.self_attn", f"{path}.mlp"
    qkv = [f"{attention}.{part}_proj" for part in "qkv"], [q_size, kv_size, kv_size]
    gate_up = [f"{mlp}.gate_proj", f"{mlp}.up_proj"], [config.intermediate_size] * 2
    fused_qkv, fused_gate_up = f"{attention}.qkv_proj", f"{mlp}.gate_up_proj"
    if weights.has(f"{fused_qkv}.weight"):
        qkv = [fused_qkv], [q_size + 2 * kv_size]
    if weights.has(f"{fused_gate_up}.weight"):
        gate_up = [fused_gate_up], [2 * config.intermediate_size]
    out, down = [f"{attention}.o_proj"], [f"{mlp}.down_proj"]
    has_mlp_bias, ffn = config.has_mlp_bias, config.intermediate_size
    norms = _load_norms(config, weights, path)
    return LayerWeights(
        rope=rope,
        before_attention=norms[0],
        qkv=weights.linear(*qkv, width, has_bias=config.has_qkv_bias),
        query_norm=_head_gain(config, weights, f"{attention}.q_norm"),
        key_norm=_head_gain(config, weights, f"{attention}.k_norm"),
        out=weights.linear(out, [width], q_size, has_bias=config.has_out_bias),
        after_attention=norms[1],
        before_mlp=norms[2],
        gate_up=weights.linear(*gate_up, width, has_bias=has_mlp_bias),
        down=weights.linear(down, [width], ffn, has_bias=has_mlp_bias),
        after_mlp=norms[3],
    )


def _load_norms(
    config: DecoderConfig, weights: Weights, path: str
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Gains before and after attention, before and after the MLP.

    `post_attention_layernorm` is the norm before the MLP where there are two a layer, and that
    after attention where there are four.
    """
    width = config.hidden_size
    first = _gain(config, weights, f"{path}.input_layernorm", width)
    second = _gain(config, weights, f"{path}.post_attention_layernorm", width)
    if not config.has_output_norms:
        return first, None, second, None
    third = _gain(config, weights, f"{path}.pre_feedforward_layernorm", width)
    fourth = _gain(config, weights, f"{path}.post_feedforward_layernorm", width)
    return first, second, third, fourth


def _head_gain(config: DecoderConfig, weights: Weights, name: str) -> Tensor | None:
    if not config.has_qk_norm:
        return None
    return _gain(config, weights, name, config.head_size)


def _gain(config: DecoderConfig, weights: Weights, name: str, size: int) -> Tensor:
    """Gain of a norm; one that is stored as an offset stays float32, as it was trained."""
    if config.norm_offset == 0.0:
        return weights.take(f"{name}.weight", (size,))
    return weights.take(f"{name}.weight", (size,), torch.float32) + config.norm_offset

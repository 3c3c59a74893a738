"""The layers of a decoder: their weights, and how a bundle's parts make a step of them.

    [T, E] -> layer: norm, qkv, (head norms), turned, KV written, attention, out,
                     norm, gate and up, down -> norm -> [Q, E]

The last layer computes KV for every token and the rest only where an output is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mmserve.kernels.attention import AttentionPlan, KvWriter, Turn

__all__ = [
    "AttentionParts",
    "ComposedLayers",
    "LayerAttention",
    "LayerOps",
    "LayerShape",
    "LayerWeights",
    "Layers",
    "Product",
]


class Product(Protocol):
    """A matrix that stays, with its bias and activation."""

    num_inputs: int
    num_outputs: int

    def __call__(self, x: Tensor) -> Tensor:
        """activation(x @ weight.T + bias): [..., in] to [..., out], same dtype. Pure."""
        ...


class LayerOps(Protocol):
    """What a layer is made of beside products and attention."""

    def norm(self, hidden: Tensor, gain: Tensor, eps: float) -> Tensor:
        """Root-mean-square norm of [..., E] over the last axis. Pure.

        `gain` [E] is of the dtype of `hidden`, or float32: multiplied before rounding.
        """
        ...

    def add_norm(self, hidden: Tensor, delta: Tensor, gain: Tensor, eps: float) -> Tensor:
        """Add `delta` to `hidden`, both [T, E]; gives the norm of the sum.

        Changes: `hidden`; `delta` may be overwritten.
        """
        ...

    def gate(self, activation: str, gate_up: Tensor) -> Tensor:
        """activation(gate) * up of [T, 2 F], the halves side by side; gives [T, F].

        Known are `silu` and `gelu_pytorch_tanh`. Pure.
        """
        ...


class LayerAttention(Protocol):
    """What layers ask of the step they run in.

    One that has `parts`, an `AttentionParts`, may be read through these instead.
    """

    def turn_and_write(self, layer: int, fused: Tensor, turn: Turn | None) -> Tensor:
        """See `KvWriter.turn_and_write`. Changes: the KV store."""
        ...

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """[T, H, D] outputs of [T, H, D] queries of all tokens. Pure."""
        ...

    def attend_kept(self, layer: int, queries: Tensor) -> Tensor:
        """[Q, H, D] outputs of [Q, H, D] queries of the tokens whose output is wanted. Pure."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class AttentionParts:
    """What a step's attention is made of, for layers that run in one piece.

    Args:
        writer: of the step's KV.
        plans: how every layer before the last attends.
        kept: how the kept queries attend at the last.
    """

    writer: KvWriter
    plans: Sequence[AttentionPlan]
    kept: AttentionPlan


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """Weights of one layer.

    Args:
        rope: its number among the decoder's rotary embeddings, or None.
        before_attention: gain [E], as the other norms' of whole rows.
        qkv: queries, keys and values, [E] to [(H + 2 G) D].
        query_norm: gain [D] of each head's queries, or None.
        key_norm: gain [D] of each head's keys; there if the queries' is.
        out: [H D] to [E].
        after_attention: gain of what attention gives, or None.
        before_mlp: gain.
        gate_up: [E] to [2 F], gates first.
        down: [F] to [E].
        after_mlp: gain of what the MLP gives, or None.
    """

    rope: int | None
    before_attention: Tensor
    qkv: Product
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Product
    after_attention: Tensor | None
    before_mlp: Tensor
    gate_up: Product
    down: Product
    after_mlp: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What all layers of a decoder have in common.

    Args:
        num_heads: query heads.
        num_kv_heads: key heads, and value heads.
        head_size: of all of them.
        eps: of norms.
        activation: of gates, as `LayerOps.gate` knows it.
        query_scale: what queries are multiplied by, over attention's own D ** -0.5.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    eps: float
    activation: str
    query_scale: float = 1.0


class Layers(Protocol):
    """All layers of a loaded decoder; for one thread at a time."""

    def run(
        self,
        hidden: Tensor,
        turns: Sequence[Turn],
        attention: LayerAttention,
        keep: Tensor,
        deep: Tensor | None = None,
    ) -> Tensor:
        """Run all layers over the tokens of a step.

        Args:
            hidden: [T, E] embeddings. Changes: may be overwritten.
            turns: by the decoder's rotary embeddings, of the dtype of `hidden`.
            attention: the step's attention.
            keep: int64 [Q], tokens whose output is wanted.
            deep: [num_deep, T, E] added behind the first layers; None: nothing is.

        Returns:
            [Q, E] normed outputs. Changes: the KV store, through `attention`.
        """
        ...


class ComposedLayers:
    """Layers one after another, each by calls of a bundle.

    Args:
        ops: the bundle.
        weights: of the layers, in order.
        shape: what they have in common.
        final_norm: gain [E] behind the last.
    """

    def __init__(
        self,
        ops: LayerOps,
        weights: Sequence[LayerWeights],
        shape: LayerShape,
        final_norm: Tensor,
    ) -> None:
        self._ops = ops
        self._weights = tuple(weights)
        self._shape = shape
        self._final_norm = final_norm

    def run(
        self,
        hidden: Tensor,
        turns: Sequence[Turn],
        attention: LayerAttention,
        keep: Tensor,
        deep: Tensor | None = None,
    ) -> Tensor:
        """See `Layers.run`."""
        last = len(self._weights) - 1
        normed = self._normed(hidden, self._weights[0].before_attention)
        for number, layer in enumerate(self._weights):
            turn = None if layer.rope is None else turns[layer.rope]
            queries = self._project(number, normed, turn, attention)
            if number < last:
                mixed = attention.attend(number, queries)
            else:
                if len(keep) == 0:
                    return hidden[:0]
                hidden = hidden[keep]
                mixed = attention.attend_kept(number, queries[keep])
            out = layer.out(mixed.flatten(1))
            normed = self._add(hidden, out, layer.after_attention, layer.before_mlp)
            gates = self._ops.gate(self._shape.activation, layer.gate_up(normed))
            out = layer.down(gates)
            if deep is not None and number < len(deep):
                out += deep[number]
            is_last = number == last
            after = self._final_norm if is_last else self._weights[number + 1].before_attention
            normed = self._add(hidden, out, layer.after_mlp, after)
        return normed

    def _normed(self, hidden: Tensor, gain: Tensor) -> Tensor:
        return self._ops.norm(hidden, gain, self._shape.eps)

    def _add(
        self, hidden: Tensor, delta: Tensor, delta_gain: Tensor | None, gain: Tensor
    ) -> Tensor:
        """Add `delta`, normed if it has a gain, to `hidden`; gives the norm of the sum.

        Changes: `hidden`.
        """
        if delta_gain is not None:
            delta = self._normed(delta, delta_gain)
        return self._ops.add_norm(hidden, delta, gain, self._shape.eps)

    def _project(
        self, number: int, normed: Tensor, turn: Turn | None, attention: LayerAttention
    ) -> Tensor:
        """Turned queries [T, H, D]; keys and values are stored. Changes: the KV store."""
        layer, shape = self._weights[number], self._shape
        num_heads, num_groups = shape.num_heads, shape.num_kv_heads
        fused = layer.qkv(normed).view(-1, num_heads + 2 * num_groups, shape.head_size)
        if layer.query_norm is not None and layer.key_norm is not None:
            keys = slice(num_heads, num_heads + num_groups)
            fused[:, :num_heads] = self._normed(fused[:, :num_heads], layer.query_norm)
            fused[:, keys] = self._normed(fused[:, keys], layer.key_norm)
        queries = attention.turn_and_write(number, fused, turn)
        return queries if shape.query_scale == 1.0 else queries * shape.query_scale

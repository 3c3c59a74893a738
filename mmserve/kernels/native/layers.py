"""All layers of a decoder by one call into the compiled library.

    weights --once--> records of layers --.
    step: hidden, plans, writer, angles --+--> mmserve_layers -> [Q, E]

A call for each part of a layer costs Python more than many a part takes. What cannot run in one
piece is composed of those parts; the results are the same to the bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmserve.kernels.attention import Turn
from mmserve.kernels.layers import (
    AttentionParts,
    ComposedLayers,
    LayerAttention,
    LayerOps,
    LayerShape,
    LayerWeights,
)
from mmserve.kernels.native.attention import NativeKvWriter, NativePlan
from mmserve.kernels.native.library import native_library
from mmserve.kernels.native.linear import NativeLinear

__all__ = ["GATES", "NativeLayers"]

GATES = {"silu": 0, "gelu_pytorch_tanh": 1}
"""Activations of gates, as the library counts them."""
_PRODUCTS = ("qkv", "out", "gate_up", "down")
_GAINS = (
    "before_attention",
    "query_norm",
    "key_norm",
    "after_attention",
    "before_mlp",
    "after_mlp",
)


class _Layer(ctypes.Structure):
    """`Layer` of layers.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_PRODUCTS, *_GAINS)),
        ("rope", ctypes.c_int64),
    )


class _Angles(ctypes.Structure):
    """`Angles` of layers.c."""

    _fields_ = (
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("num_pairs", ctypes.c_int64),
    )


class _Decoder(ctypes.Structure):
    """`Decoder` of layers.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("layers", "final_norm")),
        *((name, ctypes.c_int64) for name in ("num_layers", "num_heads", "num_groups", "size")),
        *((name, ctypes.c_int64) for name in ("width", "num_gates")),
        *((name, ctypes.c_float) for name in ("eps", "query_scale")),
        ("is_gelu", ctypes.c_int32),
    )


class _Step(ctypes.Structure):
    """`Step` of layers.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("hidden", "out", "room", "target")),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        ("layer_step", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("readings", "angles", "keep")),
        *((name, ctypes.c_int64) for name in ("num_tokens", "num_kept")),
        ("threads", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """`AttentionParts` that the library can read."""

    writer: NativeKvWriter
    plans: Sequence[NativePlan]
    kept: NativePlan


class NativeLayers:
    """See `Layers`. Float32 on a CPU, with products and attention of this room; else composed.

    Args:
        ops: what the layers are composed of where they cannot run in one piece.
        weights: of the layers, in order.
        shape: what they have in common.
        final_norm: gain [E] behind the last.

    Keeps the memory that rows need on their way, as much as the largest step took.
    """

    def __init__(
        self,
        ops: LayerOps,
        weights: Sequence[LayerWeights],
        shape: LayerShape,
        final_norm: Tensor,
    ) -> None:
        library = native_library()
        self._composed = ComposedLayers(ops, weights, shape, final_norm)
        self._kept = (tuple(weights), final_norm)  # the record holds addresses of them
        self._num_heads = shape.num_heads
        self._store_shape = (len(weights), shape.num_kv_heads, shape.head_size)
        self._run = library.mmserve_layers
        self._room_of = library.mmserve_layers_room
        self._spare: list[Tensor] = []
        self._record: _Decoder | None = None
        if _is_native(weights, final_norm):
            self._records = (_Layer * len(weights))(*map(_record_of, weights))
            self._record = _Decoder(
                layers=ctypes.addressof(self._records),
                final_norm=final_norm.data_ptr(),
                num_layers=len(weights),
                num_heads=shape.num_heads,
                num_groups=shape.num_kv_heads,
                size=shape.head_size,
                width=len(final_norm),
                num_gates=weights[0].down.num_inputs,
                eps=shape.eps,
                query_scale=shape.query_scale,
                is_gelu=GATES[shape.activation],
            )

    def run(
        self,
        hidden: Tensor,
        turns: Sequence[Turn],
        attention: LayerAttention,
        keep: Tensor,
        deep: Tensor | None = None,
    ) -> Tensor:
        """See `Layers.run`. Raises MemoryError."""
        decoder, parts = self._record, None
        if deep is None and decoder is not None and _is_plain(hidden) and len(hidden):
            parts = self._native_parts(attention, keep)
        if decoder is None or parts is None:
            return self._composed.run(hidden, turns, attention, keep, deep)
        return self._run_whole(decoder, hidden, turns, parts, keep)

    def _native_parts(self, attention: LayerAttention, keep: Tensor) -> _Parts | None:
        """Parts that the library can read, if attention has such for these layers."""
        parts = getattr(attention, "parts", None)
        if not isinstance(parts, AttentionParts):
            return None
        if not (keep.is_cpu and keep.dtype is torch.int64):
            return None
        found = _narrowed(parts)
        if found is None or len(found.plans) != self._store_shape[0] - 1:
            return None
        return found

    def _run_whole(
        self,
        decoder: _Decoder,
        hidden: Tensor,
        turns: Sequence[Turn],
        parts: _Parts,
        keep: Tensor,
    ) -> Tensor:
        """See `Layers.run`. Everything that the call reads has a name here until it is back."""
        num_tokens, num_kept = len(hidden), len(keep)
        num_heads = self._num_heads
        writer, keep = parts.writer, keep.contiguous()
        turned = [(cos.contiguous(), sin.contiguous()) for cos, sin in turns]
        angles = (_Angles * len(turned))(
            *(_Angles(cos.data_ptr(), sin.data_ptr(), cos.shape[1]) for cos, sin in turned)
        )
        addresses = [plan.reading_for(num_heads) for plan in parts.plans]
        addresses.append(parts.kept.reading_for(num_heads) if num_kept else 0)
        readings = (ctypes.c_void_p * len(addresses))(*addresses)
        out = torch.empty((num_kept, hidden.shape[1]))
        address = ctypes.addressof(decoder)
        room = self._room(self._room_of(address, num_tokens, num_kept))
        keys, values, layer_step = writer.store
        step = _Step(
            hidden=hidden.data_ptr(),
            out=out.data_ptr(),
            room=room.data_ptr(),
            target=writer.target,
            keys=keys,
            values=values,
            layer_step=layer_step,
            readings=ctypes.addressof(readings),
            angles=ctypes.addressof(angles),
            keep=keep.data_ptr(),
            num_tokens=num_tokens,
            num_kept=num_kept,
            threads=torch.get_num_threads(),
        )
        if self._run(address, ctypes.addressof(step)):
            raise MemoryError("no room for the scores of a block")
        self._spare.append(room)
        return out

    def _room(self, num_floats: int) -> Tensor:
        """At least so many floats, that nobody else uses. Changes: takes what is spare."""
        try:
            room = self._spare.pop()
        except IndexError:
            return torch.empty(num_floats)
        return room if len(room) >= num_floats else torch.empty(num_floats)


def _is_native(weights: Sequence[LayerWeights], final_norm: Tensor) -> bool:
    """Whether the library can read all of it. Pure."""
    gains = [getattr(layer, name) for layer in weights for name in _GAINS]
    products = [getattr(layer, name) for layer in weights for name in _PRODUCTS]
    return all(isinstance(product, NativeLinear) for product in products) and all(
        _is_plain(gain) for gain in (*gains, final_norm) if gain is not None
    )


def _is_plain(values: Tensor) -> bool:
    """Whether the values lie in memory as the library reads them. Pure."""
    return values.dtype is torch.float32 and values.is_contiguous() and values.is_cpu


def _record_of(layer: LayerWeights) -> _Layer:
    products = {name: getattr(layer, name).address for name in _PRODUCTS}
    gains = {name: getattr(layer, name) for name in _GAINS}
    addresses = {
        name: None if gain is None else gain.data_ptr() for name, gain in gains.items()
    }
    return _Layer(**products, **addresses, rope=-1 if layer.rope is None else layer.rope)


def _narrowed(parts: AttentionParts) -> _Parts | None:
    """The same, if all of them are of this room. Pure."""
    writer, kept = parts.writer, parts.kept
    plans = [plan for plan in parts.plans if isinstance(plan, NativePlan)]
    if len(plans) < len(parts.plans) or not isinstance(kept, NativePlan):
        return None
    return _Parts(writer, plans, kept) if isinstance(writer, NativeKvWriter) else None

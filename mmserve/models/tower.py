"""CLIP and SigLIP picture encoders, run only as deep as their features are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader knows
from torch import Tensor

from mmserve.kernels import Product
from mmserve.models.config import TowerConfig
from mmserve.models.weights import Weights

__all__ = ["Tower"]


@dataclass(frozen=True, slots=True, eq=False)
class _Norm:
    """Layer norm."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, hidden: Tensor) -> Tensor:
        return F.layer_norm(hidden, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """Weights of one layer."""

    norm1: _Norm
    qkv: Product
    out: Product
    norm2: _Norm
    up: Product  # with the activation
    down: Product


class Tower:
    """A loaded picture encoder. Immutable.

    Args:
        config: shapes.
        depths: after how many layers features are taken; deeper layers are not loaded.
        weights: the checkpoint; names under `vision.`.
    """

    def __init__(self, config: TowerConfig, depths: Sequence[int], weights: Weights) -> None:
        self.config = config
        self._depths = tuple(depths)
        width = config.hidden_size
        patch_shape = (width, config.num_channels, config.patch_size, config.patch_size)
        has_class = config.has_class_token
        path = "vision.embeddings"
        patch = weights.take(f"{path}.patch_embedding.weight", patch_shape).flatten(1)
        bias = None if has_class else weights.take(f"{path}.patch_embedding.bias", (width,))
        self._patch = weights.ops.linear(patch, bias)
        places = (config.num_patches + int(has_class), width)
        self._places = weights.take(f"{path}.position_embedding.weight", places)
        self._class = weights.take(f"{path}.class_embedding", (width,)) if has_class else None
        self._norm = _norm(config, weights, "vision.pre_layrnorm") if has_class else None
        self._layers = [_load_layer(config, weights, i) for i in range(max(self._depths))]

    def forward(self, pixels: Tensor) -> Tensor:
        """Features of pictures.

        Args:
            pixels: [n, C, S, S] with S = image_size, as the model's processor made them.

        Returns:
            [n, K, E * len(depths)] of K patches, after the class token if there is one. Pure.
        """
        hidden = self._patch(_patches(pixels, self.config.patch_size))
        if self._class is not None:
            first = self._class.expand(len(hidden), 1, -1)
            hidden = torch.cat([first, hidden], dim=1)
        hidden += self._places
        if self._norm is not None:
            hidden = self._norm(hidden)
        taken = {0: hidden} if 0 in self._depths else {}
        for depth, layer in enumerate(self._layers, start=1):
            hidden = self._run(layer, hidden)
            if depth in self._depths:
                taken[depth] = hidden
        features = [taken[depth] for depth in self._depths]
        return features[0] if len(features) == 1 else torch.cat(features, dim=-1)

    def _run(self, layer: _Layer, hidden: Tensor) -> Tensor:
        num, tokens, width = hidden.shape
        heads = self.config.num_heads
        qkv = layer.qkv(layer.norm1(hidden)).view(num, tokens, 3, heads, width // heads)
        queries, keys, values = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        hidden = hidden + layer.out(mixed.transpose(1, 2).reshape(num, tokens, width))
        hidden += layer.down(layer.up(layer.norm2(hidden)))
        return hidden


def _patches(pixels: Tensor, size: int) -> Tensor:
    """[n, C, S, S] to [n, (S // size) ** 2, C * size * size], row by row; a rest is cut off."""
    num, channels, height, width = pixels.shape
    rows, columns = height // size, width // size
    whole = pixels[:, :, : rows * size, : columns * size]
    cells = whole.reshape(num, channels, rows, size, columns, size)
    return cells.permute(0, 2, 4, 1, 3, 5).reshape(num, rows * columns, -1)


def _norm(config: TowerConfig, weights: Weights, path: str) -> _Norm:
    shape = (config.hidden_size,)
    weight, bias = weights.take(f"{path}.weight", shape), weights.take(f"{path}.bias", shape)
    return _Norm(weight, bias, config.norm_eps)


def _load_layer(config: TowerConfig, weights: Weights, number: int) -> _Layer:
    path = f"vision.encoder.layers.{number}"
    width, ffn = config.hidden_size, config.intermediate_size
    qkv = [f"{path}.self_attn.{part}_proj" for part in "qkv"]
    out = [f"{path}.self_attn.out_proj"]
    return _Layer(
        norm1=_norm(config, weights, f"{path}.layer_norm1"),
        qkv=weights.linear(qkv, [width] * 3, width, has_bias=True),
        out=weights.linear(out, [width], width, has_bias=True),
        norm2=_norm(config, weights, f"{path}.layer_norm2"),
        up=weights.linear(
            [f"{path}.mlp.fc1"], [ffn], width, has_bias=True, activation=config.activation
        ),
        down=weights.linear([f"{path}.mlp.fc2"], [width], ffn, has_bias=True),
    )

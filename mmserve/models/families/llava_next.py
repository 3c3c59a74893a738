"""The eyes of LLaVA-NeXT and its kin: tiles of a picture laid together, frames of clips pooled.

tiles [n, C, S, S] --tower, projector--> whole picture | canvas of features
                                         cut to what is no bar, a newline behind each row
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader knows
from torch import Tensor

from mmserve.models.checkpoint import Checkpoint
from mmserve.models.config import LlavaConfig, refuse
from mmserve.models.decoder import Decoder
from mmserve.models.families.llava import LlavaEyes, unread
from mmserve.models.ports import Inputs, Model
from mmserve.models.weights import Weights

__all__ = ["AnyresEyes", "Frames", "as_planes", "as_rows", "build", "build_video", "build_with"]

Frames = Callable[[LlavaEyes, Tensor], Tensor]
"""A family's way with frames of clips: [n, C, S, S] to embeddings [n, K, E]."""

_POOLS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "average": F.avg_pool2d,
    "max": F.max_pool2d,
}


class AnyresEyes:
    """A loaded tower with its projector and newline. Immutable.

    Args:
        config: shapes and which features are read.
        weights: the checkpoint.
        frames: how frames of clips are encoded; None if there are none.
    """

    def __init__(self, config: LlavaConfig, weights: Weights, frames: Frames | None) -> None:
        self._eyes = LlavaEyes(config, weights)
        self._side = config.tower.image_size // config.tower.patch_size
        self._frames = frames
        self._newline = weights.take("projector.newline", (config.text.hidden_size,))

    def encode(self, items: Sequence[Inputs]) -> list[Tensor]:
        """See `PictureEncoder.encode`.

        An item is a picture {"tiles": [n, C, S, S], "grid", "start", "kept", "scaled": [2]}
        with the whole picture as its first tile, a frame {"frame": [C, S, S]}, or a newline
        {"newline": [0]}; sizes count tiles (grid) or features, rows first.
        """
        features: dict[int, Tensor] = {}
        pictures = [place for place, item in enumerate(items) if "tiles" in item]
        if pictures:
            tiles = [self._eyes.pixels(items[place]["tiles"]) for place in pictures]
            seen = self._eyes.project(self._eyes.see(torch.cat(tiles)))
            parts = seen.split([len(part) for part in tiles])
            for place, part in zip(pictures, parts, strict=True):
                features[place] = self._packed(part, items[place])
        frames = [place for place, item in enumerate(items) if "frame" in item]
        if frames and self._frames is not None:
            pixels = torch.stack([self._eyes.pixels(items[place]["frame"]) for place in frames])
            features.update(zip(frames, self._frames(self._eyes, pixels), strict=True))
        return [features.get(place, self._newline[None]) for place in range(len(items))]

    def _packed(self, features: Tensor, item: Inputs) -> Tensor:
        """[K, E] embeddings of a picture from those of its tiles, [n, side ** 2, E]."""
        rows, columns = _pair(item, "grid")
        side, width = self._side, features.shape[-1]
        canvas = features[1:].view(rows, columns, side, side, width).transpose(1, 2)
        canvas = canvas.reshape(rows * side, columns * side, width)
        top, left = _pair(item, "start")
        height, length = _pair(item, "kept")
        canvas = canvas[top : top + height, left : left + length]
        scaled = _pair(item, "scaled")
        if scaled != (height, length):
            planes = canvas.permute(2, 0, 1)[None]
            planes = F.interpolate(planes, scaled, mode="bilinear")
            canvas = planes[0].permute(1, 2, 0)
        newlines = self._newline.expand(len(canvas), 1, width)
        lines = torch.cat([canvas, newlines], dim=1).flatten(0, 1)
        return torch.cat([features[0], lines])


def build(checkpoint: Checkpoint) -> Model:
    """LLaVA-NeXT with the lean decoder and a tower of our own. Raises as `build_model`."""
    return build_with(checkpoint, {}, None)


def build_video(checkpoint: Checkpoint) -> Model:
    """LLaVA-NeXT-Video: features of frames are pooled ahead of the projector."""
    mode = checkpoint.config.get("spatial_pool_mode", "average")
    if mode not in _POOLS:
        refuse(checkpoint.family, f"spatial_pool_mode {mode!r}; served are average, max")
    pool, stride = _POOLS[mode], int(checkpoint.config.get("spatial_pool_stride", 2))

    def frames(eyes: LlavaEyes, pixels: Tensor) -> Tensor:
        pooled = pool(as_planes(eyes.see(pixels)), stride)
        return eyes.project(as_rows(pooled))

    return build_with(checkpoint, {"image_token_index": 32001}, frames)


def build_with(
    checkpoint: Checkpoint, defaults: Mapping[str, Any], frames: Frames | None
) -> Model:
    """A model with `AnyresEyes`; config.json over `defaults`. Raises as `build`."""
    given = {key: value for key, value in checkpoint.config.items() if value is not None}
    config = LlavaConfig.parse({**defaults, **given})
    tower = config.tower
    if config.keeps_class_token == tower.has_class_token:
        strategy = "full" if config.keeps_class_token else "default"
        refuse(
            checkpoint.family,
            f"vision_feature_select_strategy {strategy!r} with a tower of type {tower.kind!r}: "
            "tiles must be one feature a patch",
        )
    weights = checkpoint.weights()
    decoder, eyes = Decoder(config.text, weights), AnyresEyes(config, weights, frames)
    weights.finish(ignored=unread(config))
    return Model(checkpoint.family, decoder, eyes, config.image_token_id)


def as_planes(features: Tensor) -> Tensor:
    """[n, W, side, side] of [n, side ** 2, W], row by row. Pure."""
    side = math.isqrt(features.shape[1])
    return features.transpose(1, 2).unflatten(2, (side, side))


def as_rows(planes: Tensor) -> Tensor:
    """[n, H * L, W] of [n, W, H, L]. Pure."""
    return planes.flatten(2).transpose(1, 2)


def _pair(item: Inputs, name: str) -> tuple[int, int]:
    first, second = item[name].tolist()
    return first, second

"""Random pictures and clips, as the models' processors would give them."""

from __future__ import annotations

import numpy as np

from benchmarks.device.programs import Medium
from benchmarks.device.sizes import Setting

__all__ = ["clips", "pictures"]

_IMAGE, _VIDEO, _VISION_START = 3, 6, 4


def pictures(setting: Setting, num: int, num_questions: int, seed: int = 0) -> list[Medium]:
    """LLaVA-1.5's: 576 tokens each, or 16."""
    rng = np.random.default_rng(seed)
    side, num_tokens = (56, 16) if setting.is_tiny else (336, 576)
    found = []
    for _ in range(num):
        pixels = rng.standard_normal((3, side, side)).astype(np.float32)
        text = rng.integers(8, 260, 6)
        prefix = np.concatenate([text[:4], np.full(num_tokens, _IMAGE), text[4:]])
        questions = [rng.integers(8, 260, 12) for _ in range(num_questions)]
        extra = {"pixel_values": pixels[None]}
        found.append(
            Medium(
                {"pixel_values": pixels},
                prefix,
                4,
                num_tokens,
                num_tokens,
                questions,
                extra=extra,
            )
        )
    return found


def clips(setting: Setting, num: int, num_questions: int, seed: int = 0) -> list[Medium]:
    """Qwen2.5-VL's: 8 pairs of frames of 16 x 16 patches merged by four, or 2 of 4 x 4."""
    rng = np.random.default_rng(seed)
    pairs, side = (2, 4) if setting.is_tiny else (8, 32)
    merged = side // 2
    num_tokens = pairs * merged * merged
    found = []
    for _ in range(num):
        patches = pairs * side * side
        pixels = rng.standard_normal((patches, 3 * 2 * 14 * 14)).astype(np.float32)
        text = rng.integers(8, 260, 5)
        middle = np.full(num_tokens, _VIDEO)
        prefix = np.concatenate([text[:3], [_VISION_START], middle, text[3:]])
        questions = [rng.integers(8, 260, 12) for _ in range(num_questions)]
        grid = np.array([pairs, side, side], dtype=np.int64)
        extra = {"pixel_values_videos": pixels, "video_grid_thw": grid[None]}
        found.append(
            Medium(
                {"pixel_values": pixels, "grid": grid},
                prefix,
                4,
                num_tokens,
                patches,
                questions,
                _positions(len(prefix), 4, (pairs, merged, merged)),
                extra,
            )
        )
    return found


def _positions(
    length: int, start: int, grid: tuple[int, int, int]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """int64 [3, length]: time, row, column of a clip at `start`, text before and behind."""
    before = np.tile(np.arange(start), (3, 1))
    clip = start + np.indices(grid).reshape(3, -1)
    first = int(clip.max()) + 1
    behind = np.tile(np.arange(first, first + length - start - clip.shape[1]), (3, 1))
    return np.concatenate([before, clip, behind], axis=1).astype(np.int64)

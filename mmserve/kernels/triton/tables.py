"""How large the tiles of each kernel are, by head size and target: small, explicit, no search.

`benchmarks/results/triton_builds.json` has what most entries take: no tile of two bytes a
number spills, and none takes more than the 99 KiB of shared memory of smaller chips.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "MERGE_HEADS",
    "MERGE_WARPS",
    "TARGETS",
    "AttentionTiles",
    "Tile",
    "attention_tiles",
    "padded_size",
]

TARGETS = (80, 90, 100)
"""Compute capabilities that the kernels are built for: A100, H100 and H200, B200."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How one program of the attention kernel works.

    Args:
        rows: places x query heads of a KV head.
        slots: slots read at once.
        warps: groups of 32 threads.
        stages: depth of the loads in flight.
        least_piece: fewest slots that a segment is cut into.
        programs_per_processor: programs that a segment is cut for, where it is long.
    """

    rows: int
    slots: int
    warps: int
    stages: int
    least_piece: int
    programs_per_processor: int


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """Tiles for segments with few queries, which are bound by loads, and with many."""

    narrow: Tile
    wide: Tile


MERGE_HEADS = 4
"""Heads of a query that one program of the merge kernel joins."""
MERGE_WARPS = 4

_NARROW = {
    64: Tile(16, 64, 4, 5, 256, 4),
    128: Tile(16, 64, 4, 5, 256, 3),
    256: Tile(16, 32, 4, 5, 256, 2),
}
"""By padded head size, of two bytes a number."""
_WIDE = {
    80: {
        64: Tile(128, 64, 8, 3, 1024, 2),
        128: Tile(128, 32, 8, 3, 1024, 1),
        256: Tile(64, 32, 8, 3, 1024, 1),
    },
    90: {
        64: Tile(128, 64, 4, 3, 1024, 2),
        128: Tile(128, 64, 8, 3, 1024, 1),
        256: Tile(64, 32, 8, 3, 1024, 1),
    },
    100: {
        64: Tile(128, 64, 8, 3, 1024, 2),
        128: Tile(128, 64, 8, 3, 1024, 1),
        256: Tile(64, 32, 8, 3, 1024, 1),
    },
}
"""By target and padded head size, of two bytes a number."""
_SINGLE = {
    64: AttentionTiles(Tile(16, 32, 4, 2, 256, 4), Tile(32, 32, 4, 2, 1024, 2)),
    128: AttentionTiles(Tile(16, 32, 4, 2, 256, 4), Tile(32, 32, 8, 2, 1024, 2)),
    256: AttentionTiles(Tile(16, 16, 8, 2, 256, 2), Tile(16, 16, 8, 2, 1024, 1)),
}
"""Of four bytes a number: no matrix units, so small tiles."""


def padded_size(size: int) -> int:
    """The power of two, 16 or more, that a head of `size` is padded to. Pure."""
    return max(16, 1 << (size - 1).bit_length())


def attention_tiles(capability: int, size: int, bits: int) -> AttentionTiles:
    """Tiles for heads of `size` numbers of `bits` each.

    Of the targets, the nearest below the `capability` of the device counts (80 for 8.0).

    Pure. Raises ValueError: a head of more than 256.
    """
    if size > max(_SINGLE):
        raise ValueError(f"head size {size}: at most {max(_SINGLE)}")
    padded = max(min(_SINGLE), padded_size(size))
    if bits == 32:
        return _SINGLE[padded]
    target = max((known for known in _WIDE if known <= capability), default=min(_WIDE))
    return AttentionTiles(_NARROW[padded], _WIDE[target][padded])

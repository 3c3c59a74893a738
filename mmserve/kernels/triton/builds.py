"""The specialisations of the house's kernels that are built for every target."""

from __future__ import annotations

from collections.abc import Iterator

from mmserve.kernels.triton.attend import attend_kernel
from mmserve.kernels.triton.compiled import Build, signature
from mmserve.kernels.triton.merge import merge_kernel
from mmserve.kernels.triton.registered import layer_builds, sampling_builds
from mmserve.kernels.triton.tables import (
    MERGE_HEADS,
    MERGE_WARPS,
    TARGETS,
    attention_tiles,
    padded_size,
)

__all__ = ["all_builds", "recorded_builds"]

_BITS = {"bf16": 16, "fp16": 16, "fp32": 32}
_ATTENTION = (
    (64, "bf16", 3, "narrow wide", TARGETS, False),
    (128, "bf16", 4, "narrow wide", TARGETS, False),
    (256, "bf16", 2, "wide", TARGETS, True),
    (256, "bf16", 2, "narrow", (80,), True),
    (80, "fp16", 1, "wide", (90,), False),
    (128, "fp32", 4, "wide", (90,), False),
)
"""Head size, type, query heads of a KV head, tiles, targets, soft cap.

Tiles of the usual head sizes on every target; one padded size and one of four bytes.
"""
_RECORDED = (
    "add norm 4096 bf16",
    "norm 4096 bf16",
    "gate silu bf16",
    "turn 128 bf16",
    "write 128 bf16",
    "scatter bf16",
    "edit",
    "survey 152064",
    "weigh 152064",
    "settle 152064",
    "settle 152064 warm",
)
"""Of the other kernels, one of each."""


def all_builds() -> list[Build]:
    """Every registered specialisation: some minutes where none is in Triton's cache."""
    merges = [_merge_build(size) for size in (64, 128, 256)]
    return [*_attention_builds(), *merges, *layer_builds(), *sampling_builds()]


def recorded_builds() -> list[Build]:
    """Every kernel once or more: all tiles of attention, and one build of each other kernel."""
    others = {build.name: build for build in (*layer_builds(), *sampling_builds())}
    return [*_attention_builds(), _merge_build(128), *(others[name] for name in _RECORDED)]


def _attention_builds() -> Iterator[Build]:
    """Tiles differ by target, so each target is a build of its own."""
    for size, kind, heads, ways, targets, is_capped in _ATTENTION:
        for way in ways.split():
            for target in targets:
                yield _attention_build(target, size, kind, heads, way, is_capped=is_capped)


def _attention_build(
    target: int, size: int, kind: str, heads: int, way: str, *, is_capped: bool
) -> Build:
    tile = getattr(attention_tiles(target, size, _BITS[kind]), way)
    constants = {
        "heads": heads,
        "size": size,
        "padded_size": padded_size(size),
        "tile_rows": tile.rows,
        "tile_slots": tile.slots,
        "is_capped": is_capped,
        "key_dim": 1,
        "value_dim": 1,
    }
    types = {
        "queries keys values out": f"*{kind}:16",
        "partial_out partial_lse": "*fp32:16",
        "items order low high slots": "*i32:16",
        "query_token query_head key_head key_slot value_head value_slot": "i32:16",
        "scale softcap": "fp32",
    }
    return Build(
        f"attend {way} {size} {kind}{' capped' if is_capped else ''}",
        attend_kernel,
        signature(attend_kernel, types, constants),
        constants,
        tile.warps,
        tile.stages,
        (target,),
    )


def _merge_build(size: int) -> Build:
    constants = {"size": size, "padded_size": padded_size(size), "tile_heads": MERGE_HEADS}
    types = {
        "out": "*bf16:16",
        "partial_out partial_lse": "*fp32:16",
        "joins sources": "*i32:16",
    }
    return Build(
        f"merge {size} bf16",
        merge_kernel,
        signature(merge_kernel, types, constants),
        constants,
        MERGE_WARPS,
    )

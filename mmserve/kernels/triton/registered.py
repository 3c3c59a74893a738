"""Specialisations of the kernels for layers and sampling that are built for every target.

Shapes are those of models of about 7 billion parameters; what a kernel takes hangs on its tile
alone, so others of the same tile take the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton

from mmserve.kernels.triton.compiled import Build
from mmserve.kernels.triton.features import scatter_kernel
from mmserve.kernels.triton.gates import gate_kernel
from mmserve.kernels.triton.norms import norm_kernel, norm_tile
from mmserve.kernels.triton.sampling import (
    edit_kernel,
    sampling_tile,
    settle_kernel,
    survey_kernel,
    weigh_kernel,
)
from mmserve.kernels.triton.turning import copy_kernel, turn_kernel, turn_tile

__all__ = ["layer_builds", "sampling_builds"]

_DTYPES = ("bf16", "fp16", "fp32")
_NORM_SIZES = (128, 576, 4096, 8192)
_HEADS = {"64": (9, 3, 64), "128": (28, 4, 128), "256": (8, 4, 256)}
_VOCABULARIES = (49_152, 152_064, 262_144)


def layer_builds() -> Iterator[Build]:
    """Norms, gates, KV writes and the scatter of features, in each dtype."""
    for dtype in _DTYPES:
        for size in _NORM_SIZES:
            for has_delta in (False, True):
                yield _norm(dtype, size, has_delta=has_delta)
        for name, code in (("silu", 0), ("gelu", 1)):
            constants = {"code": code, "columns": 1024}
            types = {"gate_up": f"*{dtype}:16", "out": f"*{dtype}:16", "size": "i32:16"}
            yield _build(f"gate {name} {dtype}", gate_kernel, types, constants, 4)
        for name, heads in _HEADS.items():
            yield from _writes(dtype, name, heads)
        pointers = {"table": "*i64:16", "hidden": f"*{dtype}:16", "deep": f"*{dtype}:16"}
        numbers = {"num_rows": "i32", "num_tokens": "i32", "width": "i32:16"}
        types = pointers | numbers
        yield _build(f"scatter {dtype}", scatter_kernel, types, {"columns": 1024}, 4)


def _norm(dtype: str, size: int, *, has_delta: bool) -> Build:
    rows, columns, num_warps = norm_tile(size)
    types = dict.fromkeys(("hidden", "delta", "gain", "out"), f"*{dtype}:16")
    types |= dict.fromkeys(("num_rows", "inner"), "i32")
    types |= dict.fromkeys(("outer_stride", "inner_stride"), "i32:16") | {"eps": "fp32"}
    constants: dict[str, Any] = {
        "size": size,
        "has_delta": has_delta,
        "rows": rows,
        "columns": columns,
    }
    if not has_delta:
        types["delta"] = "constexpr"
        constants["delta"] = None
    name = f"{'add ' if has_delta else ''}norm {size} {dtype}"
    return _build(name, norm_kernel, types, constants, num_warps)


def _writes(dtype: str, name: str, heads: tuple[int, int, int]) -> Iterator[Build]:
    num_queries, num_groups, size = heads
    tensors = ("fused", "cos", "sin", "keys", "values")
    types = dict.fromkeys(tensors, f"*{dtype}:16") | {"slots": "*i64:16"}
    types |= {"num_queries": "i32", "num_groups": "i32"}
    strides = (
        "fused_token",
        "fused_head",
        "key_group",
        "key_slot",
        "value_group",
        "value_slot",
    )
    types |= dict.fromkeys(strides, "i32:16")
    ones = dict.fromkeys(("fused_one", "key_one", "value_one"), 1)
    tile = turn_tile(num_queries + 2 * num_groups, size // 2)
    constants = {"half": size // 2, "rest": 0, "heads": tile[0], "pairs": tile[1], "others": 0}
    yield _build(f"turn {name} {dtype}", turn_kernel, types, constants | ones, tile[2])
    stores = ("key_store", "value_store")
    types = dict.fromkeys(("keys", "values", *stores), f"*{dtype}:16")
    types |= {"slots": "*i64:16", "num_groups": "i32"}
    steps = ["key_token", "key_head", "value_token", "value_head"]
    steps += [f"{store}_{axis}" for store in stores for axis in ("group", "slot")]
    types |= dict.fromkeys(steps, "i32:16")
    ones = dict.fromkeys(("key_one", "value_one", "key_store_one", "value_store_one"), 1)
    tile = turn_tile(num_groups, size)
    constants = {"size": size, "heads": tile[0], "columns": tile[1]}
    yield _build(f"write {name} {dtype}", copy_kernel, types, constants | ones, tile[2])


def sampling_builds() -> Iterator[Build]:
    """What chooses tokens, by size of the vocabulary."""
    pointers = {"logits": "*fp32:16", "places": "*i64:16", "changes": "*fp32:16"}
    types = pointers | {"raw": "*fp32:16", "num_edits": "i32"}
    yield _build("edit", edit_kernel, types, {"size": 256}, 4)
    for vocab_size in _VOCABULARIES:
        yield from _sampling(vocab_size)


def _sampling(vocab_size: int) -> Iterator[Build]:
    tile, num_tiles = sampling_tile(vocab_size)
    floats = ("logits", "weights", "peaks", "sums", "best", "changes", "raw")
    types = dict.fromkeys(floats, "*fp32:16")
    types |= dict.fromkeys(("masks", "best_ids", "heaviest", "answers"), "*i32:16")
    types |= dict.fromkeys(("table", "masses", "places", "token_ids"), "*i64:16")
    types |= dict.fromkeys(("row_stride", "vocab_size", "num_words"), "i32:16")
    types |= {"num_rows": "i32"}
    shape = {"tile": tile, "num_tiles": num_tiles}
    padded = shape | {"padded_tiles": triton.next_power_of_2(num_tiles)}
    flags = {"has_raw": True, "has_sums": True, "has_best": True}
    yield _build(f"survey {vocab_size}", survey_kernel, types, shape | flags, 8)
    yield _build(f"weigh {vocab_size}", weigh_kernel, types, padded, 8)
    for has_warm in (False, True):
        flags = {"has_sums": True, "has_warm": has_warm, "has_edits": True}
        name = f"settle {vocab_size}{' warm' if has_warm else ''}"
        yield _build(name, settle_kernel, types, padded | flags, 8)


def _build(
    name: str,
    kernel: Any,  # noqa: ANN401 - a function under `triton.jit`
    types: dict[str, str],
    constants: dict[str, Any],
    num_warps: int,
) -> Build:
    """A build whose signature holds the kernel's own arguments only. Pure."""
    names = kernel.arg_names
    signature = {each: "constexpr" if each in constants else types[each] for each in names}
    return Build(name, kernel, signature, constants, num_warps)

"""Attention through FlashInfer: one call a depth of the tree of slots, and one for masks.

    rows -> plan_batches -> Call per batch -> run -> (out, log-sum-exp) -> merge_states

Pages are of one token, so page indices are slots and no last page is part-filled. Log-sum-exps
are in base 2, as FlashInfer gives and takes them.

Source: FlashInfer (2024), sections 3.1 and 3.2: recursive attention and composable formats.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmserve.kernels.attention import (
    AttentionBackend,
    AttentionPlan,
    KvTensors,
    KvWriter,
    QueryRow,
)
from mmserve.kernels.flashinfer.batches import Batch, plan_batches
from mmserve.kernels.flashinfer.wrappers import Call, Event, Pool, kind_of

__all__ = ["FlashInferAttention", "unsupported"]

HEAD_SIZES = (64, 128, 256)
DTYPES = (torch.float16, torch.bfloat16)
_NOBODY = -1e30
"""Stands for the log-sum-exp of no score; finite, so that differences to it are numbers."""


def unsupported(head_size: int, dtype: torch.dtype) -> str | None:
    """Why FlashInfer cannot attend over heads of this size and type; None if it can. Pure."""
    if head_size not in HEAD_SIZES:
        sizes = ", ".join(map(str, HEAD_SIZES))
        return f"heads are of {head_size}, its kernels are of {sizes}"
    if dtype not in DTYPES:
        return f"KV is {dtype}, its kernels are of float16 and bfloat16".replace("torch.", "")
    return None


class FlashInferAttention:
    """Attention backend on FlashInfer's paged wrappers.

    Steps with two-way spans, and stores that its kernels do not read (`unsupported`), go to
    `fallback`; so do writes, which fuse with the turning there.

    Args:
        fallback: what does the rest.
        library: the module `flashinfer`.
        device: where it computes.
        new_event: gives an event recorded on the current stream; None: CUDA's.
    """

    def __init__(
        self,
        fallback: AttentionBackend,
        library: Any,  # noqa: ANN401 - a module
        device: torch.device,
        new_event: Callable[[], Event] | None = None,
    ) -> None:
        self.fallback = fallback
        self._library = library
        self._pool = Pool(library, device, new_event or _cuda_event)

    def plan(
        self,
        kv: KvTensors,
        rows: Sequence[QueryRow],
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> AttentionPlan:
        """See `AttentionBackend.plan`. Changes: wrappers are lent until the plan is gone."""
        is_strange = unsupported(kv.keys.shape[-1], kv.keys.dtype) is not None
        if is_strange or any(row.two_way for row in rows):
            return self.fallback.plan(kv, rows, window=window, softcap=softcap)
        batches = plan_batches(rows, window)
        num_tokens = sum(row.num_queries for row in rows)
        return _Plan(self._library, self._pool, kv, batches, num_tokens, softcap)

    def writer(self, kv: KvTensors, slots: NDArray[np.int64]) -> KvWriter:
        """See `AttentionBackend.writer`. Pure."""
        return self.fallback.writer(kv, slots)


def _cuda_event() -> Event:
    event = torch.cuda.Event()
    event.record()
    return event


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A planned batch. `index` is int64 [Q], its queries; None if they are all, in order."""

    call: Call
    index: Tensor | None
    is_whole: bool


class _Plan:
    """See `AttentionPlan`. Wrappers are planned at the first layer, which tells the heads."""

    def __init__(
        self,
        library: Any,  # noqa: ANN401 - a module
        pool: Pool,
        kv: KvTensors,
        batches: Sequence[Batch],
        num_tokens: int,
        softcap: float | None,
    ) -> None:
        self._library = library
        self._pool = pool
        self._kv = kv
        self._batches = batches
        self._num_tokens = num_tokens
        self._softcap = softcap
        self._parts: list[_Part] | None = None

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """See `AttentionPlan.attend`. Changes: at the first call, the wrappers' schedules."""
        if self._parts is None:
            self._parts = self._planned(queries)
        keys, values = (
            store[layer].transpose(0, 1).unsqueeze(1)
            for store in (self._kv.keys, self._kv.values)
        )
        parts = self._parts
        if len(parts) == 1 and parts[0].is_whole:
            part = parts[0]
            if part.index is None:
                return part.call.wrapper.run(queries, (keys, values))
            out = part.call.wrapper.run(queries[part.index], (keys, values))
            return torch.empty_like(out).index_copy_(0, part.index, out)
        return self._merged(parts, queries, (keys, values))

    def _merged(
        self, parts: Sequence[_Part], queries: Tensor, paged: tuple[Tensor, Tensor]
    ) -> Tensor:
        """[T, H, D] of what each query reads in several calls. Pure."""
        num_tokens, num_heads, size = queries.shape
        states = queries.new_zeros((num_tokens, len(parts), num_heads, size))
        scores = torch.full((num_tokens, len(parts), num_heads), _NOBODY, device=queries.device)
        for place, part in enumerate(parts):
            index = part.index
            asked = queries if index is None else queries[index]
            out, score = part.call.wrapper.run(asked, paged, return_lse=True)
            if index is None:
                states[:, place], scores[:, place] = out, score
            else:
                states[:, place].index_copy_(0, index, out)
                scores[:, place].index_copy_(0, index, score)
        merged, _ = self._library.merge_states(states, scores)
        return merged

    def _planned(self, queries: Tensor) -> list[_Part]:
        """Changes: lends wrappers, which come back when the plan is gone."""
        group = queries.shape[1] // self._kv.keys.shape[1]
        calls = [
            self._pool.lend(kind_of(is_decode=batch.is_decode, group=group))
            for batch in self._batches
        ]
        weakref.finalize(self, self._pool.give_back, calls)
        parts = []
        for batch, call in zip(self._batches, calls, strict=True):
            self._plan_call(batch, call, queries)
            parts.append(self._part(batch, call, queries.device))
        return parts

    def _plan_call(self, batch: Batch, call: Call, queries: Tensor) -> None:
        """Changes: the wrapper's schedule. Bounds stay on the host, where it reads them."""
        num_heads, size = queries.shape[1:]
        slots = _sent(batch.slots, queries.device)
        bounds = _held(batch.slot_bounds, queries.device)
        ones = _held(np.ones(len(batch.slot_bounds) - 1, dtype=np.int32), queries.device)
        heads = num_heads, self._kv.keys.shape[1], size, 1
        options: dict[str, Any] = {
            "window_left": -1 if batch.window is None else batch.window - 1,
            "logits_soft_cap": self._softcap,
            "sm_scale": size**-0.5,
            "q_data_type": queries.dtype,
            "kv_data_type": self._kv.keys.dtype,
        }
        if call.kind == "prefill":
            asked = _held(batch.query_bounds, queries.device)
            call.wrapper.plan(
                asked, bounds, slots, ones, *heads, causal=batch.is_causal, **options
            )
        else:
            call.wrapper.plan(bounds, slots, ones, *heads, **options)
        self._pool.planned(call)

    def _part(self, batch: Batch, call: Call, device: torch.device) -> _Part:
        is_whole = len(batch.queries) == self._num_tokens
        if is_whole and bool((np.diff(batch.queries) > 0).all()):
            return _Part(call, None, is_whole)
        return _Part(call, _sent(batch.queries, device), is_whole)


def _held(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on the host, page-locked if a GPU is to read it from there. Pure."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def _sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device, under way; torch keeps the page-locked source until then. Pure."""
    return _held(array, device).to(device, non_blocking=True)

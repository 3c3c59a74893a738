"""FlashInfer's paged wrappers as their documentation states them, slowly, in double precision.

What `plan` is told is what `run` computes: requests of queries over pages of one token, causal
masks aligned at the end, windows that count back from a query, log-sum-exps in base 2.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

__all__ = ["library"]


class _Wrapper:
    """One wrapper; `plans` says how often it was planned."""

    def __init__(self, workspace: Tensor, layout: str, **options: Any) -> None:
        assert layout == "NHD"
        assert options["backend"] == "fa2"
        assert not workspace.any()
        self.num_plans = 0

    def _plan(self, bounds: list[Tensor], slots: Tensor, last: Tensor, **how: Any) -> None:
        asked, held = bounds
        for array in (asked, held, last, slots):
            assert array.dtype == torch.int32
        assert asked[0] == held[0] == 0
        assert len(asked) == len(held) == len(last) + 1
        assert held[-1] == len(slots)
        assert (held.diff() >= 1).all()
        assert (last == 1).all()
        self._bounds, self._slots, self._how = (asked, held), slots, how
        self.num_plans += 1

    def run(self, queries: Tensor, paged: tuple[Tensor, Tensor], *, return_lse: bool = False):
        """[Q, H, D], and float32 [Q, H] log-sum-exps in base 2."""
        keys, values = paged
        assert keys.shape[1] == 1, "pages are of one token"
        assert len(queries) == self._bounds[0][-1]
        out = torch.zeros_like(queries)
        lse = torch.zeros(queries.shape[:2])
        for r in range(len(self._bounds[0]) - 1):
            asked, held = (slice(int(b[r]), int(b[r + 1])) for b in self._bounds)
            slots = self._slots[held].long()
            out[asked], lse[asked] = self._attend(
                queries[asked], keys[slots, 0], values[slots, 0]
            )
        return (out, lse) if return_lse else out

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        group = queries.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(group, dim=1).double() for x in (keys, values))
        scores = torch.einsum("nhd,lhd->nhl", queries.double(), keys) * self._how["sm_scale"]
        if cap := self._how["logits_soft_cap"]:
            scores = cap * torch.tanh(scores / cap)
        places = torch.arange(len(keys))
        own = torch.arange(len(queries))[:, None] + len(keys) - len(queries)
        hidden = torch.zeros(len(queries), len(keys), dtype=torch.bool)
        if self._how["causal"]:
            hidden |= places > own
        if self._how["window_left"] >= 0:
            hidden |= places < own - self._how["window_left"]
        scores = scores.masked_fill(hidden[:, None], -math.inf)
        out = torch.einsum("nhl,lhd->nhd", scores.softmax(-1), values)
        return out.to(queries.dtype), scores.logsumexp(-1).float() / math.log(2)


class _Prefill(_Wrapper):
    def plan(self, asked, held, slots, last, heads, groups, size, page, *, causal, **how):
        assert page == 1
        self._plan([asked, held], slots, last, causal=causal, **how)


class _Decode(_Wrapper):
    def plan(self, held, slots, last, heads, groups, size, page, **how):
        assert page == 1
        self._plan(
            [torch.arange(len(held), dtype=torch.int32), held], slots, last, causal=True, **how
        )


def _merge_states(states: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """[T, n, H, D] and [T, n, H] in base 2 to [T, H, D] and [T, H]."""
    weights = (scores * math.log(2)).softmax(dim=1)
    merged = (states * weights[..., None]).sum(dim=1).to(states.dtype)
    return merged, (scores * math.log(2)).logsumexp(dim=1) / math.log(2)


def library() -> SimpleNamespace:
    """What stands for the module `flashinfer`; `made` counts wrappers."""
    made: list[_Wrapper] = []

    def counted(kind: type[_Wrapper]) -> Any:
        def make(*args: Any, **options: Any) -> _Wrapper:
            made.append(kind(*args, **options))
            return made[-1]

        return make

    return SimpleNamespace(
        BatchPrefillWithPagedKVCacheWrapper=counted(_Prefill),
        BatchDecodeWithPagedKVCacheWrapper=counted(_Decode),
        merge_states=_merge_states,
        made=made,
    )

"""One plan laid out for the device: all rows end to end, and which outputs are wanted.

    rows      |--- row 0 ---|- row 1 -|------ row 2 ------|
    tokens    0 1 2 3 4 5 6 7 8 9 ...                      T
    wanted              ^ ^         ^                     ^

What is wanted is a suffix of each row, most often its last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmserve.core import FeatureUse, ForwardPlan, PlanRow
from mmserve.kernels import (
    AttentionBackend,
    AttentionParts,
    AttentionPlan,
    KvTensors,
    QueryRow,
    Turn,
)
from mmserve.models import DecoderShape

__all__ = ["Layout", "StepAttention", "lay_out", "num_wanted"]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Host arrays of a step.

    Args:
        token_ids: int64 [T]; 0 where features stand.
        positions: int64 [T], or [3, T] if the rows have time, row and column.
        slots: int64 [T], where new KV goes.
        firsts: int64 [R], each row's first token.
        wanted: int64 [R], how many of a row's last tokens need an output.
        keep: int64 [Q], the tokens that need an output, in order.
        uses: of encoded pictures, row by row.
        use_starts: the first token of each.
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    firsts: NDArray[np.int64]
    wanted: NDArray[np.int64]
    keep: NDArray[np.int64]
    uses: tuple[FeatureUse, ...]
    use_starts: tuple[int, ...]


def num_wanted(row: PlanRow) -> int:
    """How many of the row's last tokens need an output. Pure."""
    num_tokens = len(row.token_ids)
    end = row.start + num_tokens
    wanted = 0 if row.sampling is None else 1
    scored = [position for position, _ in row.rivals]
    if row.logprobs_from is not None:
        first = max(row.logprobs_from, row.start + 1)
        last_known = end - (row.next_id is None)
        if first <= last_known:
            scored.append(first)
    return max([wanted, *(end + 1 - position for position in scored)])


def lay_out(plan: ForwardPlan) -> Layout:
    """Put the rows of a plan end to end. Pure."""
    lengths = np.array([len(row.token_ids) for row in plan.rows], dtype=np.int64)
    firsts = np.concatenate([[0], lengths.cumsum()[:-1]]).astype(np.int64)
    token_ids = np.concatenate([row.token_ids for row in plan.rows]).astype(np.int64)
    placed = [
        (first + use.row_start, use)
        for first, row in zip(firsts.tolist(), plan.rows, strict=True)
        for use in row.features
    ]
    for start, use in placed:
        token_ids[start : start + use.num_tokens] = 0
    wanted = np.array([num_wanted(row) for row in plan.rows], dtype=np.int64)
    ends = firsts + lengths
    kept = [np.arange(end - n, end) for end, n in zip(ends, wanted, strict=True)]
    return Layout(
        token_ids=token_ids,
        positions=_positions(plan),
        slots=np.concatenate([row.slots[row.start :] for row in plan.rows]).astype(np.int64),
        firsts=firsts,
        wanted=wanted,
        keep=np.concatenate(kept).astype(np.int64),
        uses=tuple(use for _, use in placed),
        use_starts=tuple(start for start, _ in placed),
    )


def _positions(plan: ForwardPlan) -> NDArray[np.int64]:
    grids = [row.positions for row in plan.rows if row.positions is not None]
    if len(grids) == len(plan.rows):
        return np.concatenate(grids, axis=1)
    return np.concatenate(
        [np.arange(row.start, len(row.slots), dtype=np.int64) for row in plan.rows]
    )


class StepAttention:
    """The attention of one step, as `models.Attention` asks for it.

    Args:
        backend: how to attend.
        kv: the store's tensors.
        shape: of the decoder.
        rows: the plan's rows.
        layout: of the same rows.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        kv: KvTensors,
        shape: DecoderShape,
        rows: Sequence[PlanRow],
        layout: Layout,
    ) -> None:
        self._writer = backend.writer(kv, layout.slots)
        asked = [QueryRow(len(row.token_ids), row.slots, row.two_way) for row in rows]
        kept = [
            QueryRow(int(num), row.slots, row.two_way)
            for row, num in zip(rows, layout.wanted, strict=True)
            if num
        ]
        self._windows = windows = shape.windows
        softcap = shape.softcap
        self._plans: dict[int | None, AttentionPlan] = {
            window: backend.plan(kv, asked, window=window, softcap=softcap)
            for window in set(windows[:-1])
        }
        last = windows[-1]
        is_whole = len(layout.keep) == len(layout.token_ids)
        if is_whole and last in self._plans:
            self._kept_plan = self._plans[last]
        else:
            self._kept_plan = backend.plan(kv, kept, window=last, softcap=softcap)

    @property
    def parts(self) -> AttentionParts:
        """What it is made of, for layers that run in one piece."""
        plans = [self._plans[window] for window in self._windows[:-1]]
        return AttentionParts(self._writer, plans, self._kept_plan)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """See `models.Attention`. Changes: the KV store."""
        self._writer.write(layer, keys, values)

    def turn_and_write(self, layer: int, fused: Tensor, turn: Turn | None) -> Tensor:
        """See `models.Attention`. Changes: the KV store."""
        return self._writer.turn_and_write(layer, fused, turn)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """See `models.Attention`. Pure."""
        return self._plans[self._windows[layer]].attend(layer, queries)

    def attend_kept(self, layer: int, queries: Tensor) -> Tensor:
        """See `models.Attention`. Pure."""
        return self._kept_plan.attend(layer, queries)

"""Rows staged for the sampling kernels, and what comes back of them.

    RowSampling --stage_rows--> StagedRows --begin_draw--> TritonDraws --read--> Drawn

Nothing waits for the device but `read`. All that a row can ask is done there: penalties, bias,
bans and masks, truncation, the seeded draw, its log-probability. Lists of the likeliest tokens
are torch's softmax and top-k of the rows that ask for them, on the same stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from mmserve.core import RowSampling
from mmserve.kernels.sampling import Drawn
from mmserve.kernels.triton.sampling import (
    FIELDS,
    NOT_FINITE,
    NOTHING_ALLOWED,
    edit_kernel,
    sampling_tile,
    settle_kernel,
    survey_kernel,
    weigh_kernel,
)
from mmserve.kernels.triton.staging import Fetched, together

__all__ = ["StagedRows", "TritonDraws", "begin_draw", "stage_rows"]

_NUM_WARPS = 8
_EDITS = 256
_FAULTS = {NOT_FINITE: "its logits are not finite", NOTHING_ALLOWED: "no token is allowed"}
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True, eq=False)
class StagedRows:
    """How a step's rows choose, on the device.

    Args:
        table: int64 [R, 9], by `sampling.FIELDS`.
        masks: int32 [rows with one, W].
        places: int64 [n], edited logits, counted through [R, V].
        changes: float32 [3, n]: penalty, cost, bias.
        has_warm: whether any row is not greedy.
        reported: rows whose log-probabilities are asked.
        num_top: most likeliest tokens that one of them asks for.
    """

    table: Tensor
    masks: Tensor
    places: Tensor
    changes: Tensor
    has_warm: bool
    reported: tuple[int, ...]
    num_top: int


@dataclass(frozen=True, slots=True, eq=False)
class _Tiles:
    """What the kernels note about tiles, [R, num_tiles] each."""

    peaks: Tensor
    sums: Tensor
    best: Tensor
    best_ids: Tensor
    heaviest: Tensor
    masses: Tensor


class TritonDraws:
    """See `Draws`: tokens under way. The copy to the host begins with them."""

    __slots__ = ("_answers", "_num_top", "_rows", "_token_ids")

    def __init__(
        self, token_ids: Tensor, answers: Tensor, rows: Sequence[RowSampling], num_top: int
    ) -> None:
        self._token_ids = token_ids
        self._answers = Fetched(answers)
        self._rows = rows
        self._num_top = num_top

    @property
    def token_ids(self) -> Tensor:
        """See `Draws.token_ids`."""
        return self._token_ids

    def read(self) -> list[Drawn]:
        """See `Draws.read`. Waits for this draw only."""
        flat = self._answers.read()
        num_rows = len(self._rows)
        ids, faults = flat[: 2 * num_rows].view(2, num_rows).tolist()
        logprobs = flat[2 * num_rows : 3 * num_rows].view(torch.float32).tolist()
        reported = [i for i, row in enumerate(self._rows) if _is_reported(row)]
        tops = self._tops(flat[3 * num_rows :], len(reported))
        lists = dict(zip(reported, tops, strict=True))
        return [
            Drawn(fault=_FAULTS[faults[i]])
            if faults[i]
            else _drawn(row, ids[i], logprobs[i], lists.get(i, []))
            for i, row in enumerate(self._rows)
        ]

    def _tops(self, flat: Tensor, num_rows: int) -> list[list[tuple[int, float]]]:
        """The likeliest tokens of each row, the best first. Pure."""
        if not self._num_top:
            return [[] for _ in range(num_rows)]
        ids, bits = flat.view(2, num_rows, self._num_top)
        values = bits.contiguous().view(torch.float32)
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        return [list(zip(*pair, strict=True)) for pair in pairs]


def _drawn(
    row: RowSampling, token_id: int, logprob: float, top: Sequence[tuple[int, float]]
) -> Drawn:
    if not _is_reported(row):
        return Drawn(token_id)
    best = sorted(top[: row.params.top_logprobs], key=lambda pair: (-pair[1], pair[0]))
    return Drawn(token_id, logprob, tuple(best))


def _is_reported(row: RowSampling) -> bool:
    return row.params.return_logprobs or row.params.top_logprobs > 0


def stage_rows(
    rows: Sequence[RowSampling], vocab_size: int, device: torch.device
) -> StagedRows:
    """Bring what the rows ask for to the device, by one transfer. Pure.

    Cost: O(rows, their edits and the words of their masks) on the host.
    """
    table = np.zeros((len(rows), len(FIELDS)), dtype=np.int64)
    bits = table.view(np.float64)
    masks: list[NDArray[np.uint32]] = []
    edits = [_edits(row, vocab_size) for row in rows]
    end = 0
    for i, (row, (ids, _)) in enumerate(zip(rows, edits, strict=True)):
        params = row.params
        bits[i, 0], bits[i, 1], bits[i, 2] = params.temperature, params.top_p, params.min_p
        table[i, 3] = params.top_k if 0 < params.top_k < vocab_size else 0
        table[i, 4] = np.uint64(row.seed & _MASK64).astype(np.int64)
        table[i, 5] = row.position
        table[i, 6] = -1 if row.allowed is None else len(masks)
        table[i, 7], table[i, 8] = end, end + len(ids)
        end += len(ids)
        if row.allowed is not None:
            masks.append(row.allowed)
    words = np.zeros((len(masks), -(-vocab_size // 32)), dtype=np.uint32)
    for place, allowed in enumerate(masks):
        words[place, : len(allowed)] = allowed[: words.shape[1]]
    places = [ids + i * vocab_size for i, (ids, _) in enumerate(edits)]
    staged = together(
        [
            table,
            words.view(np.int32),
            np.concatenate(places).astype(np.int64),
            np.concatenate([changes for _, changes in edits], axis=1).astype(np.float32),
        ],
        device,
    )
    table_there, masks_there, places_there, changes_there = staged
    return StagedRows(
        table_there,
        masks_there,
        places_there,
        changes_there,
        has_warm=any(row.params.temperature > 0 for row in rows),
        reported=tuple(i for i, row in enumerate(rows) if _is_reported(row)),
        num_top=min(max((row.params.top_logprobs for row in rows), default=0), vocab_size),
    )


_NO_EDITS = np.zeros(0, dtype=np.int64), np.zeros((3, 0))


def _edits(row: RowSampling, vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Tokens [n] that the row names, each once, and penalty, cost and bias [3, n]. Pure."""
    params = row.params
    output = row.output_ids
    is_used = len(output) > 0 and bool(params.frequency_penalty or params.presence_penalty)
    repeated = _repeated(row)
    biased = np.array([place for place, _ in params.logit_bias], dtype=np.int64)
    values = np.array([value for _, value in params.logit_bias], dtype=np.float64)
    banned = np.array(row.banned_ids, dtype=np.int64)
    used = output if is_used else output[:0]
    named = np.concatenate([repeated, used, biased, banned])
    if len(named) == 0:
        return _NO_EDITS
    ids = np.unique(named)
    ids = ids[(ids >= 0) & (ids < vocab_size)]
    changes = np.zeros((3, len(ids)))
    changes[0] = np.where(np.isin(ids, repeated), params.repetition_penalty, 1.0)
    if is_used:
        found, counts = np.unique(used, return_counts=True)
        cost = counts * params.frequency_penalty + params.presence_penalty
        is_known = np.isin(found, ids)
        changes[1, np.searchsorted(ids, found[is_known])] = cost[is_known]
    np.add.at(changes[2], np.searchsorted(ids, biased), values)
    changes[2, np.searchsorted(ids, banned)] = -np.inf
    return ids, changes


def _repeated(row: RowSampling) -> NDArray[np.int64]:
    """Tokens whose logits the repetition penalty changes, perhaps several times each. Pure."""
    if row.params.repetition_penalty == 1.0:
        return row.output_ids[:0]
    if row.prompt_ids is None:
        return row.output_ids
    return np.concatenate([row.prompt_ids, row.output_ids])


def begin_draw(
    logits: Tensor, rows: Sequence[RowSampling], staged: StagedRows | None = None
) -> TritonDraws:
    """Begin to choose the next token of each row; equal to `sampling.sample`.

    Args:
        logits: [R, V] float32. Changes: overwritten.
        rows: how each row chooses.
        staged: the same rows, if they were staged before.

    Does not wait for the device.
    """
    num_rows, vocab_size = logits.shape
    logits = logits.contiguous()
    token_ids = torch.zeros(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows == 0:
        return TritonDraws(token_ids, token_ids.int(), rows, 0)
    if staged is None:
        staged = stage_rows(rows, vocab_size, logits.device)
    size = 3 * num_rows + 2 * len(staged.reported) * staged.num_top
    answers = torch.zeros(size, dtype=torch.int32, device=logits.device)
    if staged.num_top:
        _report(logits, staged, answers[3 * num_rows :])
    _launch(logits, staged, token_ids, answers)
    return TritonDraws(token_ids, answers, rows, staged.num_top)


def _report(logits: Tensor, staged: StagedRows, out: Tensor) -> None:
    """Likeliest tokens of the rows that report. Changes: `out`, ids and bits of values."""
    reported = staged.reported
    if len(reported) < len(logits):
        index = torch.tensor(reported).to(logits.device, non_blocking=True)
        logits = logits[index]
    values, ids = torch.topk(torch.log_softmax(logits, dim=1), staged.num_top, dim=1)
    ids_out, values_out = out.view(2, len(reported), staged.num_top)
    ids_out.copy_(ids)
    values_out.copy_(values.view(torch.int32))


def _launch(logits: Tensor, staged: StagedRows, token_ids: Tensor, answers: Tensor) -> None:
    """Run the kernels. Changes: `logits`, `token_ids`, `answers` [3 R + ...]."""
    num_rows, vocab_size = logits.shape
    tile, num_tiles = sampling_tile(vocab_size)
    tiles = _tiles(num_rows, num_tiles, logits.device)
    has_edits = staged.places.numel() > 0
    has_sums = bool(staged.reported)
    num_words = staged.masks.shape[1]
    grid = (num_tiles, num_rows)
    noted = tiles.peaks, tiles.sums, tiles.best, tiles.best_ids
    sizes = vocab_size, num_words, vocab_size
    raw = torch.empty_like(staged.changes[0])
    for has_raw, has_best in [(True, False), (False, True)] if has_edits else [(True, True)]:
        if has_best and has_edits:
            edit_kernel[(triton.cdiv(len(staged.places), _EDITS),)](
                logits, staged.places, staged.changes, raw, len(staged.places), size=_EDITS
            )
        survey_kernel[grid](
            logits,
            staged.table,
            staged.masks,
            *noted,
            *sizes,
            has_raw=has_raw,
            has_sums=has_sums,
            has_best=has_best,
            tile=tile,
            num_tiles=num_tiles,
            num_warps=_NUM_WARPS,
        )
    # A log-probability needs the chosen token's logit, which weights would overwrite.
    weights = torch.empty_like(logits) if has_sums and staged.has_warm else logits
    padded_tiles = triton.next_power_of_2(num_tiles)
    shape = {"tile": tile, "num_tiles": num_tiles, "padded_tiles": padded_tiles}
    if staged.has_warm:
        weigh_kernel[grid](
            logits,
            weights,
            staged.table,
            staged.masks,
            tiles.best,
            tiles.heaviest,
            tiles.masses,
            *sizes,
            **shape,
            num_warps=_NUM_WARPS,
        )
    settle_kernel[(num_rows,)](
        logits,
        weights,
        staged.table,
        *noted,
        tiles.heaviest,
        tiles.masses,
        staged.places,
        raw,
        token_ids,
        answers,
        vocab_size,
        num_rows,
        vocab_size,
        has_sums=has_sums,
        has_warm=staged.has_warm,
        has_edits=has_edits,
        **shape,
        num_warps=_NUM_WARPS,
    )


def _tiles(num_rows: int, num_tiles: int, device: torch.device) -> _Tiles:
    shape = num_rows, num_tiles
    wide = torch.empty((3, *shape), dtype=torch.float32, device=device)
    narrow = torch.empty((2, *shape), dtype=torch.int32, device=device)
    masses = torch.empty(shape, dtype=torch.int64, device=device)
    return _Tiles(wide[0], wide[1], wide[2], narrow[0], narrow[1], masses)

"""How long answers get, learnt from those that ended.

lengths of the last 1024 answers
0 ................ body ................ | tail
survival by Kaplan-Meier,                | a constant chance to end,
cut answers count as still going on      | from the 16 longest
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

__all__ = ["DEFAULT_TOKENS", "GrowthForecast"]

Floats = NDArray[np.float64]

DEFAULT_TOKENS = 32
"""Further tokens of any answer before anything is learnt."""

_WINDOW = 1024
_FIRST = 4
_EVERY = 32
_TAIL = 16
_CELLS = 2048
_MARGIN = 0.5
_UNSEEN_ENDS = 0.5
_LEAST_ENDS = 4.0


class GrowthForecast:
    """Expected further tokens of a running answer: mean residual life and half its deviation.

    Why this statistic. Admission compares free slots with a sum over all running answers. The
    mean of a sum is the sum of the means, whatever the lengths are; of n answers alike the sum
    deviates by sqrt(n) deviations of one, so half a deviation each covers sqrt(n) / 2 of those
    of the sum: 1.4 at n = 8, 2.8 at n = 32. Alone, nobody is harmed by an answer that grows
    beyond it. A high quantile each would reserve for all what only few take. The sum is also
    never needed at one time: answers that end early give their slots back.

    The table is made anew after 4, 8, 16 and 32 answers and then every 32; a look-up is O(1).

    Source: product-limit estimator (Kaplan and Meier, 1958) for answers cut by their limit, of
    which only a lower bound is known. Beyond the length that only 16 answers exceeded we take a
    constant chance to end instead of its last steps: ends over tokens lived through there,
    filled up to 4 ends at the chance of all answers from their first token on.
    """

    def __init__(self) -> None:
        self._lengths: deque[tuple[int, bool]] = deque(maxlen=_WINDOW)
        self._num_notes = 0
        self._next_rebuild = _FIRST
        self._width = 1
        self._table: list[float] = []
        self._tail_tokens = float(DEFAULT_TOKENS)

    def note(self, num_output: int, *, is_cut: bool) -> None:
        """Learn from an answer that ended; aborted ones are best not told.

        Args:
            num_output: its tokens; nothing is learnt from 0.
            is_cut: it ended because it reached the most tokens it might have.

        Changes: the window, and sometimes the table. Cost: now and then O(2048).
        """
        if num_output <= 0:
            return
        self._lengths.append((num_output, is_cut))
        self._num_notes += 1
        if self._num_notes >= self._next_rebuild:
            self._next_rebuild = self._num_notes + min(self._num_notes, _EVERY)
            self._rebuild()

    def remaining(self, num_output: int, most: int) -> int:
        """Expected further tokens, margin included, of an answer that has `num_output`.

        Args:
            num_output: tokens it has, at least 0.
            most: tokens it may still get.

        Returns a number in [1, most], 0 only if `most` is 0 or less. Pure.
        """
        if most <= 0:
            return 0
        cell = num_output // self._width
        expected = self._table[cell] if cell < len(self._table) else self._tail_tokens
        return most if expected >= most else max(1, int(expected + 0.999))

    def _rebuild(self) -> None:
        lengths = np.array([length for length, _ in self._lengths])
        is_end = np.array([not is_cut for _, is_cut in self._lengths])
        body = int(np.sort(lengths)[-_TAIL]) - 1 if len(lengths) > _TAIL else 0
        chance = _tail_chance(lengths, is_end, body)
        self._tail_tokens = (1 + _MARGIN * float(np.sqrt(1 - chance))) / chance
        self._width = body // _CELLS + 1
        self._table = []
        if body:
            survival = _survival(lengths, is_end, body, self._width)
            self._table = _residual(survival, self._width, chance).tolist()


def _tail_chance(lengths: NDArray[np.int64], is_end: NDArray[np.bool_], body: int) -> float:
    """Chance of an answer beyond `body` tokens to end with its next one, in (0, 1]. Pure."""
    overall = max(float(is_end.sum()), _UNSEEN_ENDS) / float(lengths.sum())
    lived = np.maximum(lengths - body, 0)
    num_ends = float((is_end & (lived > 0)).sum())
    added = max(0.0, _LEAST_ENDS - num_ends)
    return min(1.0, (num_ends + added) / (float(lived.sum()) + added / overall))


def _survival(
    lengths: NDArray[np.int64], is_end: NDArray[np.bool_], body: int, width: int
) -> Floats:
    """Chance [n + 1] to get beyond `width * i` tokens, for the n cells up to `body`. Pure."""
    num_cells = -(-body // width)
    cells = np.minimum(-(-lengths // width), num_cells + 1)
    num_at = np.bincount(cells, minlength=num_cells + 2)
    num_ends = np.bincount(cells[is_end], minlength=num_cells + 2)
    num_alive = np.cumsum(num_at[::-1])[::-1]
    stays = 1 - num_ends / np.maximum(num_alive, 1)
    survival: Floats = np.cumprod(stays[: num_cells + 1], dtype=np.float64)
    return survival


def _residual(survival: Floats, width: int, chance: float) -> Floats:
    """Mean further tokens and margin [n] at the start of each cell. Pure.

    With S the chance to get beyond t tokens and R the further tokens of those that do, the sums
    over s >= t of S(s) and of (2 (s - t) + 1) S(s) are S(t) times the means of R and R squared.
    """
    tail = 1 / chance
    tail_square = (2 - chance) / chance**2
    inner, last = survival[:-1], survival[-1]
    ends = np.arange(len(inner), 0, -1) * width
    ones = np.cumsum(inner[::-1])[::-1] * width
    places = np.arange(len(inner)) * width
    weighted = np.cumsum((inner * (2 * places + width))[::-1])[::-1] * width
    squares = weighted - 2 * places * ones
    alive = np.maximum(inner, 1e-9)
    mean = (ones + last * tail) / alive
    square = (squares + last * (tail_square + 2 * ends * tail)) / alive
    residual: Floats = mean + _MARGIN * np.sqrt(np.maximum(square - mean**2, 0.0))
    return residual

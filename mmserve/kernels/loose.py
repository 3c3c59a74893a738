"""Slots that single queries read each for itself: neighbours through a window, the rest padded.

    slots   |-- row 0 --|  |-- row 1 --|    |-- row 2 --|
    window  [                                           ]   read by rows 0, 1, 2 with a mask

A masked product over a view takes about a third of the time of gathering, as long as few rows
share a window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LooseRead", "LooseTable", "Window", "in_tables", "look_through"]

WINDOW_RUNS = 8
"""Most runs read through one window."""
MIN_RUN = 8
"""A shorter run is not worth a window."""
MAX_GAP = 32
"""Most slots between neighbouring runs of a window."""


@dataclass(frozen=True, slots=True, eq=False)
class LooseRead:
    """Query `query`, an index into the step's tokens, reads `slots` (int64, not empty).

    Queries of one `family` share what they read before; only they share a window.
    """

    query: int
    slots: NDArray[np.int64]
    family: int


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Consecutive `slots` [L], read by `queries` [n] except where `hidden`, bool [n, L]."""

    queries: NDArray[np.int64]
    slots: NDArray[np.int64]
    hidden: NDArray[np.bool_]

    def after(self, run: NDArray[np.int64]) -> Window | None:
        """This window with consecutive slots that all its queries read put before it.

        None if the run does not end shortly before the window. Pure.
        """
        gap = int(self.slots[0]) - int(run[-1]) - 1
        if not 0 <= gap <= MAX_GAP or not (np.diff(run) == 1).all():
            return None
        shown = np.zeros((len(self.queries), len(run)), dtype=np.bool_)
        between = np.ones((len(self.queries), gap), dtype=np.bool_)
        hidden = np.concatenate([shown, between, self.hidden], axis=1)
        return Window(self.queries, np.arange(run[0], self.slots[-1] + 1), hidden)


@dataclass(frozen=True, slots=True, eq=False)
class LooseTable:
    """Reads padded to one length.

    Args:
        queries: int64 [R] indices into the step's tokens.
        slots: int64 [R, L]; places beyond a row's length repeat its first slot.
        is_padding: bool [R, L].
    """

    queries: NDArray[np.int64]
    slots: NDArray[np.int64]
    is_padding: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Run:
    """Slots [start, start + length) of one query."""

    query: int
    start: int
    length: int
    family: int

    @property
    def end(self) -> int:
        return self.start + self.length


def look_through(reads: list[LooseRead]) -> tuple[list[Window], list[LooseRead]]:
    """Windows over runs that lie close together, and what is left to gather. Pure."""
    runs = [
        _Run(read.query, int(part[0]), len(part), read.family)
        for read in reads
        for part in np.split(read.slots, np.flatnonzero(np.diff(read.slots) != 1) + 1)
    ]
    windows: list[Window] = []
    left: dict[int, list[NDArray[np.int64]]] = {}
    families = {read.query: read.family for read in reads}
    for group in _neighbours(runs):
        if len({run.query for run in group}) > 1:
            windows.append(_window(group))
            continue
        for run in group:
            left.setdefault(run.query, []).append(np.arange(run.start, run.end))
    rest = [LooseRead(q, np.concatenate(parts), families[q]) for q, parts in left.items()]
    return windows, rest


def _neighbours(runs: list[_Run]) -> list[list[_Run]]:
    """Runs in slot order, cut into groups of at most WINDOW_RUNS with no wide gap inside."""
    groups = [[run] for run in runs if run.length < MIN_RUN]
    last: list[_Run] = []
    for run in sorted(runs, key=lambda run: run.start):
        if run.length < MIN_RUN:
            continue
        if last and len(last) < WINDOW_RUNS and _may_join(last[-1], run):
            last.append(run)
        else:
            last = [run]
            groups.append(last)
    return groups


def _may_join(left: _Run, right: _Run) -> bool:
    return left.family == right.family and 0 <= right.start - left.end <= MAX_GAP


def _window(runs: list[_Run]) -> Window:
    queries = sorted({run.query for run in runs})
    begin, end = runs[0].start, runs[-1].end
    hidden = np.ones((len(queries), end - begin), dtype=np.bool_)
    for run in runs:
        hidden[queries.index(run.query), run.start - begin : run.end - begin] = False
    return Window(np.array(queries), np.arange(begin, end), hidden)


def in_tables(reads: list[LooseRead]) -> list[LooseTable]:
    """Reads grouped by length, so that padding at most doubles the reading. Pure."""
    reads = sorted(reads, key=lambda read: len(read.slots))
    tables: list[LooseTable] = []
    start = 0
    while start < len(reads):
        limit = max(32, 2 * len(reads[start].slots))
        end = start
        while end < len(reads) and len(reads[end].slots) <= limit:
            end += 1
        tables.append(_table(reads[start:end]))
        start = end
    return tables


def _table(reads: list[LooseRead]) -> LooseTable:
    reads = sorted(reads, key=lambda read: read.query)
    lengths = np.array([len(read.slots) for read in reads])
    width = int(lengths.max())
    slots = np.repeat(np.array([read.slots[0] for read in reads])[:, None], width, axis=1)
    for place, read in enumerate(reads):
        slots[place, : len(read.slots)] = read.slots
    queries = np.array([read.query for read in reads])
    return LooseTable(queries, slots, np.arange(width) >= lengths[:, None])

"""The plan of shared-prefix attention reads each seen slot of each query exactly once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.kernels import QueryRow
from mmserve.kernels.reading import StepReading, plan_reading

_PREFIX = np.arange(100, 140)


@st.composite
def _rows(draw: st.DrawFn) -> list[QueryRow]:
    """Rows that share beginnings as branches of a tree do, with slots in no order."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    slots = random.permutation(5000)
    stems = [slots[:0]]
    rows, used = [], 0
    for _ in range(draw(st.integers(1, 7))):
        stem = stems[draw(st.integers(0, len(stems) - 1))]
        stem = stem[: draw(st.integers(0, len(stem)))]
        num_own = draw(st.integers(0 if len(stem) else 1, 60))
        whole = np.concatenate([stem, slots[used : used + num_own]])
        used += num_own
        stems.append(whole)
        num_queries = draw(st.integers(0, min(len(whole), 20)))
        start = len(whole) - num_queries
        spans: tuple[tuple[int, int], ...] = ()
        if num_queries > 3 and draw(st.booleans()):
            first = draw(st.integers(start, len(whole) - 2))
            spans = ((first, draw(st.integers(first + 1, len(whole)))),)
        rows.append(QueryRow(num_queries, whole, spans))
    return rows


def _read(reading: StepReading) -> dict[int, list[int]]:
    """Slots that each query reads, by the segments and the ranges."""
    found: dict[int, list[int]] = {int(query): [] for query in reading.order}
    for segment in reading.segments:
        for place in range(segment.first_place, segment.end_place):
            begin = max(segment.first_position, int(reading.low[place]))
            end = min(segment.end_position, int(reading.high[place]))
            some = segment.slots[begin - segment.first_position : end - segment.first_position]
            if end > begin:
                found[int(reading.order[place])] += some.tolist()
    return found


def _wanted(rows: list[QueryRow], window: int | None) -> dict[int, list[int]]:
    """The same from the definition, one query at a time."""
    wanted, number = {}, 0
    for row in rows:
        for position in range(row.start, len(row.slots)):
            seen = [
                other <= position and (window is None or other > position - window)
                for other in range(len(row.slots))
            ]
            for start, end in row.two_way:
                if start <= position < end:
                    seen[position:end] = [True] * (end - position)
            wanted[number] = row.slots[seen].tolist()
            number += 1
    return wanted


@given(_rows(), st.sampled_from([None, 1, 7, 40]))
@settings(max_examples=300, deadline=None)
def test_every_seen_slot_is_read_once(rows: list[QueryRow], window: int | None) -> None:
    """Over random trees, windows and two-way ranges, queries read what the definition says."""
    assert _read(plan_reading(rows, window)) == _wanted(rows, window)


@given(_rows())
@settings(max_examples=100, deadline=None)
def test_depths_number_the_path_of_each_query(rows: list[QueryRow]) -> None:
    """The segments of a query have the depths 0, 1, 2 and so on, by rising position."""
    reading = plan_reading(rows)
    for place in range(len(reading.order)):
        path = [s.depth for s in reading.segments if s.first_place <= place < s.end_place]
        assert path == list(range(len(path)))


def test_questions_about_one_picture_read_it_together() -> None:
    """Three rows that begin with the same 40 slots make one segment of these for all."""
    rows = [QueryRow(2, np.concatenate([_PREFIX, np.arange(3) + 10 * i])) for i in range(3)]
    reading = plan_reading(rows)
    first = reading.segments[0]
    assert (first.first_place, first.end_place, len(first.slots)) == (0, 6, 40)
    assert len(reading.segments) == 4


def test_a_row_may_read_what_an_earlier_row_writes() -> None:
    """A prefix that one row computes in this step is one segment for it and for its readers."""
    writer = QueryRow(40, _PREFIX)
    reader = QueryRow(1, np.concatenate([_PREFIX, [7]]))
    reading = plan_reading([writer, reader])
    assert [(s.first_place, s.end_place, len(s.slots)) for s in reading.segments] == [
        (0, 41, 40),
        (40, 41, 1),
    ]


def test_few_shared_slots_are_not_worth_a_segment() -> None:
    """Rows that share five slots read them for themselves."""
    rows = [QueryRow(1, np.concatenate([_PREFIX[:5], np.arange(20) + 50 * i])) for i in (1, 2)]
    assert all(s.end_place - s.first_place == 1 for s in plan_reading(rows).segments)

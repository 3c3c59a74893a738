"""The plan of a step's reading: what is read together, and that all is read once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from tensor.kernels.steps import NUM_SLOTS, Step, narrowed, steps

from mmserve.kernels import QueryRow
from mmserve.kernels.loose import LooseRead, in_tables
from mmserve.kernels.segments import StepSegments, plan_segments


def _times_read(step: StepSegments) -> np.ndarray:
    """How often each query reads each slot, [T, NUM_SLOTS], by the meaning of the values."""
    times = np.zeros((step.num_queries, NUM_SLOTS), dtype=np.int64)
    for segment in step.segments:
        query_at = np.arange(len(segment.queries)) + len(segment.slots) - len(segment.queries)
        key_at = np.arange(len(segment.slots))
        is_seen = np.ones((len(query_at), len(key_at)), dtype=bool)
        if segment.is_causal:
            is_seen &= key_at <= query_at[:, None]
        if segment.window is not None:
            is_seen &= key_at > query_at[:, None] - segment.window
        np.add.at(times, (segment.queries[:, None], segment.slots), is_seen)
    for batch in step.batches:
        table = batch.table
        is_seen = ~table.is_hidden & table.is_query[:, :, None]
        np.add.at(times, (table.queries[:, :, None], table.slots[:, None, :]), is_seen)
    return times


def _visible(rows: list[QueryRow], window: int | None) -> np.ndarray:
    """1 where a query sees a slot, 0 elsewhere."""
    wanted = np.zeros((sum(row.num_queries for row in rows), NUM_SLOTS), dtype=np.int64)
    query = 0
    for row in rows:
        for end in range(row.start + 1, len(row.slots) + 1):
            wanted[query, row.slots[max(0, end - window) if window else 0 : end]] = 1
            query += 1
    return wanted


@settings(max_examples=100)
@given(step=steps())
def test_every_visible_pair_is_read_exactly_once(step: Step) -> None:
    """No query reads a slot twice, misses one of its own past, or reads one of its future."""
    with pytest.MonkeyPatch.context() as patch:
        narrowed(patch, step)
        plan = plan_segments(step.rows, step.window)
    assert np.array_equal(_times_read(plan), _visible(step.rows, step.window))


@settings(max_examples=50)
@given(step=steps())
def test_no_two_parts_of_a_query_have_one_level(step: Step) -> None:
    """Parts that are merged lie in different buffers, all of them below `num_levels`."""
    with pytest.MonkeyPatch.context() as patch:
        narrowed(patch, step)
        plan = plan_segments(step.rows, step.window)
    parts = [(segment.queries, segment.level) for segment in plan.segments]
    parts += [
        (batch.table.queries[batch.table.is_query], batch.level) for batch in plan.batches
    ]
    places = [(query, level) for queries, level in parts for query in queries.tolist()]
    assert len(set(places)) == len(places)
    assert {level for _, level in places} == set(range(plan.num_levels))


def test_sixteen_pictures_are_read_once_each() -> None:
    """Eight questions on each of 16 pictures are one shared segment a picture and one batch."""
    rows = []
    for picture in range(16):
        base = np.arange(picture * 60, picture * 60 + 50)
        for question in range(8):
            own = 1000 + np.arange(5) * 8 + question
            rows.append(QueryRow(1, np.concatenate([base, own])))
    step = plan_segments(rows)
    assert [len(segment.queries) for segment in step.segments] == [8] * 16
    assert {len(segment.slots) for segment in step.segments} == {50}
    assert [len(batch.table.queries) for batch in step.batches] == [128]
    assert step.num_levels == 2


def test_shared_prefix_of_a_group_is_cut_at_every_depth() -> None:
    """Rows share a system prompt and pairs of them a picture: three levels are read."""
    system, pictures = np.arange(100), [np.arange(200, 300), np.arange(400, 500)]
    rows = [
        QueryRow(1, np.concatenate([system, pictures[i // 2], [600 + i]])) for i in range(4)
    ]
    step = plan_segments(rows)
    shapes = sorted((len(s.queries), len(s.slots)) for s in step.segments)
    assert shapes == [(2, 100), (2, 100), (4, 100)]
    assert step.num_levels == 3


def test_forced_tokens_are_read_with_the_drawn_ones() -> None:
    """A batch in which some answers jump shares its prompt and needs two tables."""
    prompt = np.arange(60)
    counts = [1, 1, 6, 1, 1, 3, 1, 1, 1, 4, 1, 1, 12, 1, 1, 8]
    rows = [
        QueryRow(count, np.concatenate([prompt, 60 + np.arange(90) * 16 + i]))
        for i, count in enumerate(counts)
    ]
    step = plan_segments(rows)
    assert [(len(s.queries), len(s.slots)) for s in step.segments] == [(sum(counts), 60)]
    shapes = [batch.table.queries.shape for batch in step.batches]
    assert shapes == [(11, 1), (5, 12)]
    assert step.num_levels == 2


def test_a_long_run_among_other_slots_is_read_for_itself() -> None:
    """2,048 slots in a row are worth a segment, which is a view; 2,047 are not."""
    for length, num_segments in ((2047, 0), (2048, 1)):
        slots = np.concatenate([np.arange(length), 9000 + np.arange(9) * 2])
        assert len(plan_segments([QueryRow(3, slots)]).segments) == num_segments


def test_a_short_extend_of_a_very_long_context_holds_no_mask_of_it() -> None:
    """64 queries on 9,000 scattered slots are segments, since a table has a mask of pairs."""
    step = plan_segments([QueryRow(64, np.arange(9000) * 2)])
    assert [(len(s.slots), s.is_causal) for s in step.segments] == [(8936, False), (64, True)]
    assert step.batches == ()


def test_padding_at_most_doubles_a_tables_work() -> None:
    """Reads of all shapes: padded pairs stay below twice the own ones and a table's cost."""
    rng = np.random.default_rng(3)
    reads = [
        LooseRead(np.arange(rng.integers(1, 65)), np.arange(64 + rng.integers(0, 2000)))
        for _ in range(300)
    ]
    tables = in_tables(reads)
    assert sum(len(table.queries) for table in tables) == len(reads)
    for table in tables:
        num_own = (table.num_queries + 3) @ table.num_seen.max(axis=1)
        num_rows, num_queries = table.queries.shape
        assert num_rows * (num_queries + 3) * table.slots.shape[1] <= 2 * num_own + 1500

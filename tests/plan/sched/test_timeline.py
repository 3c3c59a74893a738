"""What is kept of the last steps, and lanes made of it."""

from mmserve.sched.show.lanes import Waiter, lanes_of
from mmserve.sched.show.timeline import StepRecord, StepRow, Timeline


def record(step, *rows, retracted=(), start_s=None) -> StepRecord:
    """A step of 10 ms, with rows of (sequence, cached, prefill, decode[, finish])."""
    return StepRecord(
        step=step,
        start_s=step / 100 if start_s is None else start_s,
        plan_ms=1.0,
        encode_ms=2.0,
        forward_ms=7.0,
        facts=tuple(
            (n, f"client {n}", 0.0, *sizes, *([None] * (4 - len(sizes)))) for n, *sizes in rows
        ),
        retracted=retracted,
    )


def test_a_ring_of_records():
    """The oldest is forgotten, and what was handed out does not change."""
    timeline = Timeline(max_steps=3)
    for step in range(3):
        timeline.note(record(step))
    before = timeline.records()
    timeline.note(record(3))
    assert [one.step for one in before] == [0, 1, 2]
    assert [one.step for one in timeline.records()] == [1, 2, 3]


def test_a_record_knows_its_sums():
    """Times add up, prefill and decoded tokens are both computed, cached ones are not."""
    one = record(2, (7, 30, 5, 0), (8, 0, 0, 1, "stop"))
    assert (one.total_ms, one.num_tokens) == (10.0, 6)
    assert one.end_s == 0.03
    assert one.rows[1] == StepRow(8, "client 8", 0.0, 0, 0, 1, "stop")


def test_lanes_are_by_sequence():
    """Rows, sums and retractions of each sequence, in the order of arrival."""
    records = [
        record(0, (2, 0, 8, 0), (1, 8, 2, 0)),
        record(1, (1, 0, 0, 1)),
        record(2, (1, 0, 0, 1), retracted=(2,)),
        record(3, (2, 8, 1, 0, "stop")),
    ]
    lanes, num_hidden = lanes_of(records, (), 10)
    assert ([lane.sequence_id for lane in lanes], num_hidden) == ([1, 2], 0)
    first, second = lanes
    assert (first.num_cached, first.num_prefill, first.num_decode) == (8, 2, 2)
    assert [place for place, _ in second.rows] == [0, 3]
    assert second.waits(records) == [(2, 3)]


def test_waiting_begins_with_arrival():
    """A sequence waits in the steps that began after it came, until its first row."""
    facts = (5, "a", 0.015, 0, 3, 0, None)
    records = [record(step) for step in range(4)]
    records.append(
        StepRecord(step=4, start_s=0.04, plan_ms=0, encode_ms=0, forward_ms=1, facts=(facts,))
    )
    (lane,), _ = lanes_of(records, (), 10)
    assert lane.waits(records) == [(2, 4)]


def test_those_that_wait_have_lanes():
    """Newcomers get at most a third of them; a retracted one waits until now."""
    records = [record(0, (1, 0, 4, 0), (2, 0, 4, 0)), record(1, (2, 0, 0, 1), retracted=(1,))]
    waiters = [Waiter(1, "client 1", 0.0), *(Waiter(n, "c", 0.02) for n in range(10, 40))]
    lanes, num_hidden = lanes_of(records, waiters, 9)
    assert [lane.sequence_id for lane in lanes] == [1, 2, 10, 11, 12]
    assert num_hidden == 0
    assert lanes[0].waits(records) == [(1, 2)]
    assert lanes[2].waits(records) == []


def test_the_latest_sequences_are_kept():
    """With more sequences than lanes, those that ran last stay, and the others are counted."""
    records = [record(step, (step, 0, 1, 0, "stop")) for step in range(50)]
    lanes, num_hidden = lanes_of(records, (), 8)
    assert [lane.sequence_id for lane in lanes] == list(range(42, 50))
    assert num_hidden == 42

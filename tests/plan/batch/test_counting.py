"""What a run adds up about its records."""

import random
import sys

import pytest

from mmserve.batch import Record
from mmserve.batch.counting import Counted, Course, Faults, Samples, Sketch, Stretch
from mmserve.core import Timing, Usage


def answer(line: int, index: int = 0, **fields: object) -> Record:
    """A record of an answer about a clip of three frames."""
    given = {
        "answer": "a",
        "frames_used": 3,
        "timestamps_s": (0.0, 1.0, 2.0),
        "usage": Usage(100, 10, cached_tokens=60),
        "timing": Timing(prefill=5.0, total=20.0),
    } | fields
    return Record(row_id=line, line=line, question_index=index, question="q", **given)


def error(line: int, code: str = "media_refused", message: str = "gone") -> Record:
    """An error record."""
    return Record(row_id=line, line=line, question_index=0, question="q", error=(code, message))


def test_quantiles_are_near_and_cost_little() -> None:
    """p50, p90 and p99 of a long-tailed sample are within 2 %, in a few hundred counters."""
    drawn = random.Random(1)
    values = sorted(drawn.lognormvariate(3, 2) for _ in range(20_000))
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    for share in (0.5, 0.9, 0.99):
        exact = values[int(share * len(values)) - 1]
        assert sketch.quantile(share) == pytest.approx(exact, rel=0.02)
    assert sketch.num_counters < 500


def test_quantiles_of_nothing_and_of_one() -> None:
    """Nothing gives 0, one number gives itself."""
    sketch = Sketch()
    assert sketch.quantile(0.5) == 0.0
    sketch.add(7.25)
    assert [sketch.quantile(share) for share in (0.0, 0.5, 1.0)] == [7.25] * 3


def test_a_course_coarsens_and_loses_nothing() -> None:
    """However long a run is, it has at most 200 stretches, and they sum up to it."""
    course = Course()
    for number in range(5000):
        course.add(number * 3.7, Stretch(questions=1, prompt_tokens=number))
    assert len(course.stretches) <= 200
    assert sum(stretch.questions for stretch in course.stretches) == 5000
    assert sum(s.prompt_tokens for s in course.stretches) == sum(range(5000))


def test_a_course_keeps_the_order_of_time() -> None:
    """What was written first stands in the first stretch, also after many doublings."""
    course = Course()
    course.add(0.0, Stretch(failed=1))
    course.add(10_000.0, Stretch(questions=1))
    assert course.stretches[0].failed == course.stretches[-1].questions == 1


def test_faults_are_counted_by_code_with_different_examples() -> None:
    """The most frequent code is first; equal messages are one example."""
    faults = Faults()
    for line in range(10):
        faults.add(line, "media_refused", "gone" if line < 8 else f"gone {line}")
    faults.add(11, "bad_row", "x" * 1000)
    first, second = faults.kinds()
    assert (first.code, first.count) == ("media_refused", 10)
    assert first.examples == [(0, "gone"), (8, "gone 8"), (9, "gone 9")]
    assert len(second.examples[0][1]) < 500


def test_kinds_of_faults_are_bounded() -> None:
    """Codes without end are counted together, and none is lost."""
    faults = Faults()
    for number in range(1000):
        faults.add(number, f"code {number}", "m")
    assert len(faults.kinds()) <= 41
    assert sum(kind.count for kind in faults.kinds()) == 1000


def test_samples_are_the_same_each_time_and_spread() -> None:
    """Eight rows, from all parts of the run, and the same ones for the same run."""

    def chosen() -> list[int]:
        samples = Samples()
        for line in range(1, 1001):
            samples.begin_row(line)
            samples.add(answer(line))
        return [sample.line for sample in samples.chosen()]

    lines = chosen()
    assert lines == chosen() == sorted(lines)
    assert len(lines) == 8
    assert lines[0] < 500 < lines[-1]


def test_a_rows_frames_count_once() -> None:
    """Three answers about a clip of three frames are a row, a clip, three frames."""
    counted = Counted()
    for index in range(3):
        counted.add(answer(1, index), 0.0)
    counted.add(error(2), 0.0)
    assert (counted.rows, counted.clips, counted.frames) == (2, 1, 3)


def test_a_row_whose_first_question_failed_counts_its_frames() -> None:
    """The first answer of a row tells its frames, whichever question it is of."""
    counted = Counted()
    counted.add(error(1), 0.0)
    counted.add(answer(1, 1), 0.0)
    assert (counted.rows, counted.frames) == (1, 3)


def test_memory_does_not_grow_with_rows() -> None:
    """A hundred times as many rows take less than twice the room."""

    def room(num_rows: int) -> int:
        counted = Counted()
        for line in range(num_rows):
            counted.add(answer(line) if line % 3 else error(line, message=f"m {line}"), line)
        held = [counted._begun, counted.course.stretches, counted.samples._chosen]
        held += [kind.examples for kind in counted.faults.kinds()]
        return sum(map(sys.getsizeof, held))

    assert room(50_000) < 2 * room(5000)

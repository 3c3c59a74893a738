"""What of a row is asked next, given the records it has.

Questions by themselves are asked all at once, each for all its samples; a turn of a
conversation when the one before is answered:

    q0 q1 q2        q0 -> q1 -> q2
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mmserve.batch.asks import request_of
from mmserve.batch.records import Record
from mmserve.batch.row import Row
from mmserve.batch.settings import AskSettings
from mmserve.core import Request

__all__ = ["Done", "Step", "first_steps", "next_turn", "request_for"]

Done = Mapping[tuple[int, int], tuple[bool, bytes]]
"""(is error, line of output) of a row's records, by question and sample index."""


@dataclass(frozen=True, slots=True)
class Step:
    """A request to make.

    Args:
        question_index: of the row.
        samples: indices of the answers it gives.
        due: those that have no record yet.
        history: answers of the turns before.
    """

    question_index: int
    samples: tuple[int, ...]
    due: frozenset[int]
    history: tuple[str, ...] = ()


def first_steps(row: Row, done: Done) -> tuple[list[Step], list[Record]]:
    """What a row begins with, and records of turns that will never be asked. Pure."""
    samples = tuple(range(row.num_samples))
    if not row.is_conversation:
        due = [
            frozenset(sample for sample in samples if (index, sample) not in done)
            for index in range(len(row.questions))
        ]
        return [Step(index, samples, own) for index, own in enumerate(due) if own], []
    return next_turn(row, done)


def next_turn(row: Row, done: Done) -> tuple[list[Step], list[Record]]:
    """The turn of a conversation behind those that are done, if it can be asked. Pure."""
    history: list[str] = []
    for index in range(len(row.questions)):
        found = done.get((index, 0))
        if found is None:
            return [Step(index, (0,), frozenset((0,)), tuple(history))], []
        is_error, content = found
        if is_error:
            left = range(index + 1, len(row.questions))
            return [], [
                _not_asked(row, later, index) for later in left if (later, 0) not in done
            ]
        history.append(json.loads(content)["answer"])
    return [], []


def request_for(row: Row, step: Step, settings: AskSettings) -> Request:
    """The request of a step. Pure."""
    request = request_of(row, step.question_index, settings, step.history)
    return replace(request, sampling=replace(request.sampling, n=len(step.samples)))


def _not_asked(row: Row, index: int, failed: int) -> Record:
    return Record(
        row_id=row.row_id,
        line=row.line,
        question_index=index,
        question=row.questions[index],
        error=(
            "not_asked",
            f"question {index} was not asked: question {failed} of its conversation failed",
        ),
    )

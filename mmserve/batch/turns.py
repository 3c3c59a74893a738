"""What of a row is asked next, given the records it has.

questions by themselves   q0 q1 q2            all at once, each for all its samples
conversation, 2 samples   q0 -> q1 -> q2      each sample a conversation of its own, whose
                          q0 -> q1 -> q2      next turn is asked behind its last answer
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mmserve.batch.asks import AskSettings, request_of
from mmserve.batch.records import Record
from mmserve.batch.rows import Row
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
    chains = [next_turn(row, done, sample) for sample in samples]
    return (
        [step for steps, _ in chains for step in steps],
        [record for _, records in chains for record in records],
    )


def next_turn(row: Row, done: Done, sample: int) -> tuple[list[Step], list[Record]]:
    """The turn of a conversation behind those that are done, if it can be asked. Pure."""
    history: list[str] = []
    for index in range(len(row.questions)):
        found = done.get((index, sample))
        if found is None:
            return [Step(index, (sample,), frozenset((sample,)), tuple(history))], []
        is_error, content = found
        if is_error:
            left = range(index + 1, len(row.questions))
            return [], [
                _not_asked(row, later, index, sample)
                for later in left
                if (later, sample) not in done
            ]
        history.append(json.loads(content)["answer"])
    return [], []


def request_for(row: Row, step: Step, settings: AskSettings) -> Request:
    """The request of a step. Pure."""
    request = request_of(row, step.question_index, settings, step.history)
    sampling = replace(request.sampling, n=len(step.samples))
    if not row.is_conversation or row.num_samples == 1:
        return replace(request, sampling=sampling)
    (sample,) = step.samples
    if sampling.seed is not None:
        sampling = replace(sampling, seed=sampling.seed + sample)
    return replace(request, request_id=f"{request.request_id}-{sample}", sampling=sampling)


def _not_asked(row: Row, index: int, failed: int, sample: int) -> Record:
    return Record(
        row_id=row.row_id,
        line=row.line,
        question_index=index,
        question=row.questions[index],
        error=(
            "not_asked",
            f"question {index} was not asked: question {failed} of its conversation failed",
        ),
        sample_index=None if row.num_samples == 1 else sample,
    )

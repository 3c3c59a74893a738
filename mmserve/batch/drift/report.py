"""Pairs counted by task, and the report for machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from mmserve.batch.drift.compare import Pair

__all__ = ["Report", "TaskDrift", "report_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDrift:
    """The flips of one task.

    Args:
        task: its name.
        compared: prompts that both sides answered.
        flipped: of these, those with different words.
        failed: prompts that a side did not answer; they are in no share.
        other_tokens: prompts with the same words in other tokens.
        first_place, median_place: of the first difference of a flipped answer, from 0.
        median_gap, largest_gap: of `Difference.gap`, where it is known.
        logprob_off: the most that a log-probability differs before answers part.
    """

    task: str
    compared: int
    flipped: int
    failed: int
    other_tokens: int
    first_place: int | None
    median_place: float | None
    median_gap: float | None
    largest_gap: float | None
    logprob_off: float | None

    @property
    def flipped_share(self) -> float:
        """Flipped over compared; 0 where nothing could be compared. Pure."""
        return self.flipped / self.compared if self.compared else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All pairs of a run, in the order of the file; `a` and `b` name the sides."""

    a: str
    b: str
    pairs: tuple[Pair, ...]

    @property
    def tasks(self) -> tuple[TaskDrift, ...]:
        """Counts by task, in the order in which the file names them. Pure."""
        names = dict.fromkeys(pair.task for pair in self.pairs)
        return tuple(
            _counted(name, [p for p in self.pairs if p.task == name]) for name in names
        )

    @property
    def total(self) -> TaskDrift:
        """Counts of all prompts together. Pure."""
        return _counted("all tasks", self.pairs)

    @property
    def worst_share(self) -> float:
        """The largest share of flipped answers that a task has. Pure."""
        return max((task.flipped_share for task in self.tasks), default=0.0)


def _counted(task: str, pairs: Sequence[Pair]) -> TaskDrift:
    flips = [pair.difference for pair in pairs if pair.difference is not None]
    places = [flip.place for flip in flips]
    gaps = _known(flip.gap for flip in flips)
    failed = sum(pair.result == "failed" for pair in pairs)
    return TaskDrift(
        task=task,
        compared=len(pairs) - failed,
        flipped=len(flips),
        failed=failed,
        other_tokens=sum(pair.has_other_tokens for pair in pairs),
        first_place=min(places, default=None),
        median_place=median(places) if places else None,
        median_gap=median(gaps) if gaps else None,
        largest_gap=max(gaps, default=None),
        logprob_off=max(_known(pair.logprob_off for pair in pairs), default=None),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def report_json(report: Report) -> dict[str, Any]:
    """The whole report as one JSON object; keys are stable. Pure."""
    return {
        "a": report.a,
        "b": report.b,
        "summary": _with_share(report.total) | {"worst_share": report.worst_share},
        "tasks": [_with_share(task) for task in report.tasks],
        "rows": [_row(pair) for pair in report.pairs],
    }


def _with_share(task: TaskDrift) -> dict[str, Any]:
    return asdict(task) | {"flipped_share": task.flipped_share}


def _row(pair: Pair) -> dict[str, Any]:
    errors = {
        side: {"code": said.error[0], "message": said.error[1]} if said.error else None
        for side, said in (("a", pair.a), ("b", pair.b))
    }
    return {
        "id": pair.row_id,
        "line": pair.line,
        "task": pair.task,
        "result": pair.result,
        "answer_a": None if errors["a"] else pair.a.text,
        "answer_b": None if errors["b"] else pair.b.text,
        "difference": None if pair.difference is None else asdict(pair.difference),
        "logprob_off": pair.logprob_off,
        "other_tokens": pair.has_other_tokens,
        "error_a": errors["a"],
        "error_b": errors["b"],
    }

"""One record of the output: an answer or an error about one question, never both."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from mmserve.batch.asker import AskTicket
from mmserve.batch.row import Row, RowFault
from mmserve.core import (
    Aborted,
    Broken,
    MediaRefused,
    MmserveError,
    Output,
    PromptReport,
    Timing,
    Usage,
)

__all__ = [
    "Answer",
    "Record",
    "answered_record",
    "fault_record",
    "read_answer",
    "record_line",
    "refused_record",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What became of one question; `error` is None exactly when `answer` is not.

    Args:
        row_id: the row's own id, or `line-<n>`.
        line: the row's line in the input, from 1; with `question_index` it names the question.
        question: None if the line was unreadable.
        frames_used: frames of the clip, or pictures.
        timestamps_s: when in the clip the frames are; None for pictures.
        usage: token counts.
        timing: milliseconds by stage.
        error: (stable code, message).
        note: what a reader of the answer should know: damaged frames, an answer cut short.
        sample_index: which of the row's `n` answers; None if the row asks for one.
    """

    row_id: str | int
    line: int
    question_index: int
    question: str | None
    answer: str | None = None
    frames_used: int | None = None
    timestamps_s: tuple[float, ...] | None = None
    usage: Usage | None = None
    timing: Timing | None = None
    error: tuple[str, str] | None = None
    note: str | None = None
    sample_index: int | None = None


def record_line(record: Record) -> bytes:
    """The record as one line of JSON in UTF-8; optional fields that are None are left out."""
    error = record.error
    fields: dict[str, Any] = {
        "id": record.row_id,
        "line": record.line,
        "question_index": record.question_index,
        "question": record.question,
        "answer": record.answer,
        "frames_used": record.frames_used,
        "timestamps_s": record.timestamps_s,
        "usage": asdict(record.usage) if record.usage else None,
        "timing_ms": _rounded(record.timing) if record.timing else None,
        "error": {"code": error[0], "message": error[1]} if error else None,
    }
    if record.sample_index is not None:
        fields["sample_index"] = record.sample_index
    if record.note is not None:
        fields["note"] = record.note
    # Half a surrogate pair has no UTF-8; as a backslash escape it is still valid JSON.
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _rounded(timing: Timing) -> dict[str, float]:
    return {stage: round(ms, 3) for stage, ms in asdict(timing).items()}


def fault_record(fault: RowFault, question_index: int) -> Record:
    """The error record of one question of a line that is no row. Pure."""
    return Record(
        row_id=fault.row_id,
        line=fault.line,
        question_index=question_index,
        question=fault.questions[question_index],
        error=("bad_row", fault.message),
    )


def refused_record(row: Row, question_index: int, error: MmserveError) -> Record:
    """The error record of a question that the engine refused or failed. Pure."""
    message = str(error)
    place = _place_at_fault(row, error)
    if place is not None and place not in message:
        message = f"{place}: {message}"
    return Record(
        row_id=row.row_id,
        line=row.line,
        question_index=question_index,
        question=row.questions[question_index],
        error=(error.code, message),
    )


def _place_at_fault(row: Row, error: MmserveError) -> str | None:
    """The path or address as the row has it; None if no medium is at fault, or it is inline."""
    if not isinstance(error, MediaRefused):
        return None
    places = row.images if row.video is None else (row.video,)
    index = error.fields.get("index") if len(places) > 1 else 0
    place = places[index] if isinstance(index, int) and 0 <= index < len(places) else ""
    return None if place.lower().startswith("data:") or not place else place


@dataclass(frozen=True, slots=True)
class Answer:
    """A sequence that ended well: its whole text, and its last news."""

    text: str
    report: PromptReport
    last: Output


def read_answer(ticket: AskTicket) -> Answer:
    """Wait until the only sequence of `ticket` has ended. Raises its refusal or failure."""
    pieces = []
    for output in ticket.outputs():
        pieces.append(output.text)
        if output.finish is None:
            continue
        if output.finish.reason in ("error", "abort"):
            raise output.finish.error or Aborted("the answer was stopped before its end")
        return Answer("".join(pieces), ticket.report(), output)
    raise Broken("a request ended without an end")


def answered_record(row: Row, question_index: int, answer: Answer) -> Record:
    """The record of a question with an answer. Pure."""
    usage, finish = answer.last.usage, answer.last.finish
    clip = answer.report.clips[0] if answer.report.clips else None
    notes = [clip.note] if clip and clip.note else []
    if finish is not None and finish.reason == "length":
        notes.append(f"the answer was cut at {usage.completion_tokens} tokens")
    return Record(
        row_id=row.row_id,
        line=row.line,
        question_index=question_index,
        question=row.questions[question_index],
        answer=answer.text,
        frames_used=len(clip.timestamps_s) if clip else len(row.images),
        timestamps_s=clip.timestamps_s if clip else None,
        usage=usage,
        timing=answer.last.timing,
        note="; ".join(notes) or None,
    )

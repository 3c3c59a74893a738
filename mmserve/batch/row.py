"""What a row is: some media, the questions about them, and how these are asked."""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.core import Constraint

__all__ = ["Row", "RowFault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a batch file: some media and the questions about them.

    Args:
        line: its line in the file, counted from 1.
        row_id: the caller's own id, or `line-<n>`.
        questions: at least one, as they are asked: a template is filled in.
        video: path or address of the clip; None if the row is about `images`.
        images: paths or addresses of the pictures, in order.
        num_frames, fps, start_s, end_s, times_s, key_frames: how to sample the clip; None where
            the row is silent.
        max_tokens: most tokens of each answer; None where the row is silent.
        constraint: what each answer must match.
        system: what the conversation begins with; None where the row is silent.
        is_conversation: whether each question is asked after the answer to the one before, in
            one conversation; else each is asked by itself.
        num_samples: answers drawn for each question.
        temperature, top_p, top_k, seed: how they are drawn; None where the row is silent.
    """

    line: int
    row_id: str | int
    questions: tuple[str, ...]
    video: str | None = None
    images: tuple[str, ...] = ()
    num_frames: int | None = None
    fps: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    times_s: tuple[float, ...] | None = None
    key_frames: bool | None = None
    max_tokens: int | None = None
    constraint: Constraint | None = None
    system: str | None = None
    is_conversation: bool = False
    num_samples: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFault:
    """Why a line is no row, with as much of its id and questions as could be read.

    `questions` is (None,) where they could not; so a fault, too, has one record a question.
    """

    line: int
    row_id: str | int
    questions: tuple[str | None, ...]
    message: str

"""A row and one of its questions -> the engine's request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmserve.batch.row import Row
from mmserve.batch.settings import AskSettings
from mmserve.core import (
    ImagePart,
    MediaSource,
    PathSource,
    Request,
    SamplingParams,
    TextPart,
    Turn,
    UrlSource,
    VideoPart,
)

__all__ = ["media_source", "request_of"]

_ADDRESS_STARTS = ("http://", "https://", "data:", "file:")


def media_source(place: str) -> MediaSource:
    """A path of the user's own machine, or an address, which goes through the guards. Pure."""
    is_address = "://" in place or place.lower().startswith(_ADDRESS_STARTS)
    return UrlSource(place) if is_address else PathSource(place)


def request_of(
    row: Row, question_index: int, settings: AskSettings, history: Sequence[str] = ()
) -> Request:
    """The system's words, media before the question, and an open turn for the answer. Pure.

    Args:
        row: whose question it is.
        question_index: which of its questions.
        settings: what holds where the row is silent.
        history: answers to the turns before this one of a conversation, in order; else empty.

    Raises ValueError if the history does not fit the turn.
    """
    asked = row.questions[: question_index + 1] if row.is_conversation else ()
    questions = asked or (row.questions[question_index],)
    turns = [Turn("user", (*_media(row, settings), TextPart(questions[0])))]
    for answer, question in zip(history, questions[1:], strict=True):
        turns.append(Turn("assistant", (TextPart(answer),) if answer else ()))
        turns.append(Turn("user", (TextPart(question),)))
    system = settings.system if row.system is None else row.system
    if system is not None:
        turns.insert(0, Turn("system", (TextPart(system),)))
    return Request(
        request_id=f"line-{row.line}-{question_index}",
        parts=(*turns, Turn("assistant", (), is_open=True)),
        sampling=_sampling(row, settings),
        client="video-qa",
    )


def _media(row: Row, settings: AskSettings) -> tuple[VideoPart | ImagePart, ...]:
    if row.video is not None:
        return (_clip(row, row.video, settings),)
    return tuple(ImagePart(media_source(place)) for place in row.images)


def _sampling(row: Row, settings: AskSettings) -> SamplingParams:
    plain = SamplingParams()
    return SamplingParams(
        max_new_tokens=settings.max_tokens if row.max_tokens is None else row.max_tokens,
        n=row.num_samples,
        temperature=settings.temperature if row.temperature is None else row.temperature,
        top_p=plain.top_p if row.top_p is None else row.top_p,
        top_k=plain.top_k if row.top_k is None else row.top_k,
        seed=settings.seed if row.seed is None else row.seed,
        constraint=row.constraint,
    )


def _clip(row: Row, video: str, settings: AskSettings) -> VideoPart:
    part = VideoPart(
        media_source(video),
        num_frames=row.num_frames,
        fps=row.fps,
        start_s=row.start_s,
        end_s=row.end_s,
        times_s=row.times_s,
        key_frames=bool(row.key_frames),
    )
    if row.num_frames is None and row.fps is None and row.times_s is None:
        return replace(part, num_frames=settings.num_frames, fps=settings.fps)
    return part

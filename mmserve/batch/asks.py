"""A row and one of its questions -> the engine's request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mmserve.batch.rows import Row
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

__all__ = ["AskSettings", "media_source", "request_of"]

_ADDRESS_STARTS = ("http://", "https://", "data:", "file:")


def _setting(default: Any, doc: str, low: float) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc, "low": low})


@dataclass(frozen=True, slots=True, kw_only=True)
class AskSettings:
    """What holds for rows that do not say otherwise.

    A row that gives `num_frames` or `fps` replaces both. Flags and docs derive from here.
    """

    num_frames: int | None = _setting(None, "frames of each clip", 1)
    fps: float | None = _setting(None, "frames a second of each clip", 0.001)
    max_tokens: int = _setting(128, "most tokens of an answer", 1)
    temperature: float = _setting(0.0, "chance in choosing tokens; 0 is greedy", 0)


def media_source(place: str) -> MediaSource:
    """A path of the user's own machine, or an address, which goes through the guards. Pure."""
    is_address = "://" in place or place.lower().startswith(_ADDRESS_STARTS)
    return UrlSource(place) if is_address else PathSource(place)


def request_of(
    row: Row, question_index: int, settings: AskSettings, history: Sequence[str] = ()
) -> Request:
    """One user turn, media before the question, and an open turn for the answer. Pure.

    With a `history`, answers of the turns just before, it is the conversation so far.
    """
    media: tuple[VideoPart | ImagePart, ...]
    if row.video is not None:
        media = (_clip(row, row.video, settings),)
    else:
        media = tuple(ImagePart(media_source(place)) for place in row.images)
    first = question_index - len(history)
    turns = [Turn("user", (*media, TextPart(row.questions[first])))]
    for index, answer in enumerate(history, start=first + 1):
        turns.append(Turn("assistant", (TextPart(answer),)))
        turns.append(Turn("user", (TextPart(row.questions[index]),)))
    return Request(
        request_id=f"line-{row.line}-{question_index}",
        parts=(*turns, Turn("assistant", (), is_open=True)),
        sampling=SamplingParams(
            max_new_tokens=settings.max_tokens if row.max_tokens is None else row.max_tokens,
            temperature=settings.temperature,
            constraint=row.constraint,
        ),
        client="video-qa",
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

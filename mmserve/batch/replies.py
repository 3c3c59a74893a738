"""Replies of a server's `/generate` as outputs, reports and typed errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mmserve.core import (
    BackendFailed,
    BadRequest,
    Busy,
    Finish,
    FrameReport,
    MmserveError,
    Output,
    PromptReport,
    Timing,
    Usage,
    read_cache_table,
)

__all__ = ["ANSWER_ERRORS", "error_of", "parse_reply"]

ANSWER_ERRORS = (ValueError, TypeError, KeyError, AttributeError)
"""What `parse_reply` raises for a reply of another form."""
_BUSY = (429, 503)
_NOT_OURS = (401, 403, 404, 405)
_SERVER_FAULT = 500


def parse_reply(reply: Mapping[str, Any], request_id: str) -> tuple[Output, PromptReport]:
    """A whole, unstreamed answer. Pure. Raises `ANSWER_ERRORS` for another form."""
    meta = reply["meta_info"]
    reason = meta["finish_reason"]["type"]
    details = meta.get("cached_tokens_details") or {}
    timing = meta.get("timing_ms")
    output = Output(
        request_id,
        0,
        str(reply["text"]),
        tuple(reply.get("output_ids") or ()),
        Usage(
            prompt_tokens=meta["prompt_tokens"],
            completion_tokens=meta["completion_tokens"],
            image_tokens=meta.get("image_tokens", 0),
            video_tokens=meta.get("video_tokens", 0),
            cached_tokens=meta.get("cached_tokens", 0),
            cached_text_tokens=details.get("text", 0),
            cached_image_tokens=details.get("image", 0),
            cached_video_tokens=details.get("video", 0),
            num_retractions=meta.get("num_retractions", 0),
            cache=read_cache_table(meta.get("cache")),
        ),
        # Whatever is no known good end ("abort", a new word) must not pass for an answer.
        finish=Finish(reason if reason in ("stop", "length") else "abort"),
        timing=_timing(timing) if timing is not None else None,
    )
    clips = tuple(
        FrameReport(tuple(clip["timestamps_s"]), clip.get("note"))
        for clip in meta.get("clips") or ()
    )
    return output, PromptReport((), clips)


def _timing(stages: Mapping[str, float]) -> Timing:
    known = {field.name for field in fields(Timing)}
    return Timing(**{name: float(ms) for name, ms in stages.items() if name in known})


def error_of(status: int, body: object, retry_after: str | None = None) -> MmserveError:
    """The error that a reply stands for: the class of its code word, else by status. Pure."""
    told = body.get("error") if isinstance(body, dict) else None
    told = told if isinstance(told, dict) else {}
    message = str(told.get("message") or f"the server answered with status {status}")
    if status in _BUSY:
        wait_s = int(retry_after) if retry_after is not None and retry_after.isdigit() else 1
        return Busy(message, retry_after_s=wait_s)
    if status >= _SERVER_FAULT or status in _NOT_OURS:  # no row can mend these
        return BackendFailed(message, status=status)
    kind = _classes(MmserveError).get(str(told.get("code")), BadRequest)
    return kind(message, status=status)


def _classes(root: type[MmserveError]) -> dict[str, type[MmserveError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _classes(child)
    return found

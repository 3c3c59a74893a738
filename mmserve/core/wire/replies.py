"""Replies of `/generate` as outputs, reports and typed errors. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmserve.core.errors import (
    BackendFailed,
    BadRequest,
    Broken,
    Busy,
    MmserveError,
    NotFound,
)
from mmserve.core.output import (
    Finish,
    FrameReport,
    Output,
    PromptReport,
    Timing,
    TokenLogprob,
    Usage,
    read_cache_table,
)
from mmserve.core.request import Request
from mmserve.core.wire.requests import first_reported

__all__ = ["error_from", "output_from", "report_from"]

_SERVER_FAULT = 500
_BY_STATUS: dict[int, type[MmserveError]] = {404: NotFound, 429: Busy, 503: Busy}
_FORM_ERRORS = (KeyError, TypeError, ValueError, AttributeError)


def output_from(event: Mapping[str, Any], request: Request) -> Output:
    """An event, or a whole reply, as an output. Raises BackendFailed if malformed. Pure."""
    try:
        meta = event["meta_info"]
        return Output(
            request_id=request.request_id,
            index=int(event.get("index", 0)),
            text=event["text"],
            token_ids=tuple(event.get("output_ids") or ()),
            usage=_usage(meta),
            logprobs=_logprobs(meta, "output"),
            prompt_logprobs=_prompt_logprobs(meta, request),
            finish=_finish(meta.get("finish_reason")),
            timing=_timing(meta),
        )
    except _FORM_ERRORS as error:
        raise _malformed(error) from error


def report_from(reply: Mapping[str, Any]) -> PromptReport:
    """The frames that a whole reply says were taken; it does not tell the prompt's tokens.

    Raises BackendFailed if malformed. Pure.
    """
    try:
        clips = tuple(
            FrameReport(tuple(clip["timestamps_s"]), clip.get("note"))
            for clip in reply["meta_info"].get("clips") or ()
        )
    except _FORM_ERRORS as error:
        raise _malformed(error) from error
    return PromptReport((), clips)


def _malformed(error: Exception) -> BackendFailed:
    message = f"the server's reply is malformed: {type(error).__name__} {error}"
    return BackendFailed(message, status=None)


def error_from(
    status: int | None, body: object, retry_after: str | None = None
) -> MmserveError:
    """The error that a reply stands for: by its code word, else by its status. Pure."""
    inner = body.get("error") if isinstance(body, dict) else None
    told: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
    message = str(told.get("message") or f"the server answered with status {status}")
    fields: dict[str, Any] = {"status": status, "code_word": told.get("code")}
    if told.get("param") is not None:
        fields["field"] = told["param"]
    if retry_after is not None and retry_after.isdigit():
        fields["retry_after_s"] = int(retry_after)
    kind = _kind(status, told.get("code"))
    return kind(message, **fields)


def _kind(status: int | None, code: object) -> type[MmserveError]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status is not None and status >= _SERVER_FAULT:
        return BackendFailed
    named = _error_classes().get(code) if isinstance(code, str) else None
    if named is None:
        return BackendFailed if status is None else BadRequest
    return BackendFailed if issubclass(named, Broken) else named


def _error_classes() -> dict[str, type[MmserveError]]:
    found: dict[str, type[MmserveError]] = {}
    waiting: list[type[MmserveError]] = [MmserveError]
    while waiting:
        kind = waiting.pop()
        found[kind.code] = kind
        waiting.extend(kind.__subclasses__())
    return found


def _usage(meta: Mapping[str, Any]) -> Usage:
    details = meta.get("cached_tokens_details") or {}
    return Usage(
        prompt_tokens=meta.get("prompt_tokens", 0),
        completion_tokens=meta.get("completion_tokens", 0),
        image_tokens=meta.get("image_tokens", 0),
        video_tokens=meta.get("video_tokens", 0),
        cached_tokens=meta.get("cached_tokens", 0),
        cached_text_tokens=details.get("text", 0),
        cached_image_tokens=details.get("image", 0),
        cached_video_tokens=details.get("video", 0),
        num_retractions=meta.get("num_retractions", 0),
        forced_tokens=meta.get("forced_tokens", 0),
        cache=read_cache_table(meta.get("cache")),
    )


def _logprobs(meta: Mapping[str, Any], side: str) -> tuple[TokenLogprob, ...]:
    entries = meta.get(f"{side}_token_logprobs") or ()
    tops = meta.get(f"{side}_top_logprobs") or [None] * len(entries)
    forced = meta.get(f"{side}_token_forced") or [False] * len(entries)
    return tuple(
        _logprob(entry, top, is_forced=is_forced)
        for entry, top, is_forced in zip(entries, tops, forced, strict=False)
    )


def _logprob(entry: list[Any], top: list[list[Any]] | None, *, is_forced: bool) -> TokenLogprob:
    best = tuple((other[1], other[0], _piece(other)) for other in top or ())
    return TokenLogprob(entry[1], entry[0], _piece(entry), best, is_forced)


def _piece(entry: list[Any]) -> bytes:
    return (entry[2] or "").encode("utf-8", errors="replace")


def _prompt_logprobs(
    meta: Mapping[str, Any], request: Request
) -> tuple[TokenLogprob, ...] | None:
    wanted = request.sampling.prompt_logprobs_from
    if wanted is None or not meta.get("input_token_logprobs"):
        return None
    skipped = wanted - first_reported(request.sampling)
    return _logprobs(meta, "input")[skipped:]


def _finish(reason: Mapping[str, Any] | None) -> Finish | None:
    if reason is None:
        return None
    kind = reason["type"]
    if kind not in ("stop", "length", "abort"):
        message = f"unknown finish_reason {kind!r}"
        raise ValueError(message)
    return Finish(kind, reason.get("matched"))


def _timing(meta: Mapping[str, Any]) -> Timing | None:
    stages = meta.get("timing_ms")
    if isinstance(stages, dict):
        known = {name: stages[name] for name in Timing.__dataclass_fields__ if name in stages}
        return Timing(**known)
    if meta.get("e2e_latency") is None:
        return None
    return Timing(total=meta["e2e_latency"] * 1000)

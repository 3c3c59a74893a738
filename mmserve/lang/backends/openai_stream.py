"""Chunks of OpenAI's streams as outputs: pieces as they come, ends when the usage is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from mmserve.core import BackendFailed, Finish, Output, Request, Timing, TokenLogprob, Usage

__all__ = ["TokenUsage", "outputs_of"]

_NO_ID = -1  # these APIs tell tokens by their text only


class TokenUsage:
    """Tokens of all calls that have ended, as the API counted them. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.prompt_tokens = 0
        self.completion_tokens = 0

    def add(self, usage: Usage) -> None:
        """Count one more call. Changes: both numbers."""
        with self._lock:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens

    def __repr__(self) -> str:
        return f"TokenUsage({self.prompt_tokens}, {self.completion_tokens})"


def outputs_of(
    chunks: Iterable[Any],
    request: Request,
    totals: TokenUsage,
    service: str,
    started_s: float | None = None,
) -> Iterator[Output]:
    """The outputs that a stream tells. Changes: `totals`, at the end.

    The API counts all answers of a call together: where log-probabilities do not tell the
    tokens apart, the first answer has them all. `started_s` is when the call was sent, by the
    monotonic clock; None is now. Raises BackendFailed if the stream ends early.
    """
    clock = _Clock(started_s)
    ends: dict[int, Finish] = {}
    refusals: dict[int, str] = {}
    num_tokens = [0] * request.sampling.n
    usage = Usage(0)
    for chunk in chunks:
        if getattr(chunk, "usage", None) is not None:
            usage = _usage(chunk.usage)
        for choice in chunk.choices or ():
            text, logprobs = _news(choice)
            num_tokens[choice.index] += len(logprobs)
            if text or logprobs:
                clock.mark()
                yield Output(request.request_id, choice.index, text, (), Usage(0), logprobs)
            refusal = getattr(getattr(choice, "delta", None), "refusal", None)
            if refusal:
                refusals[choice.index] = refusals.get(choice.index, "") + refusal
            if choice.finish_reason is not None:
                ends[choice.index] = _finish(choice, service)
    if len(ends) < request.sampling.n:
        message = f"{service} ended a stream early"
        raise BackendFailed(message, status=None)
    totals.add(usage)
    for index, finish in sorted(ends.items()):
        if index in refusals:
            message = f"{service} refuses to answer: {refusals[index]}"
            finish = Finish("error", error=BackendFailed(message, status=None))
        own = replace(usage, completion_tokens=_share(usage, num_tokens, index))
        yield Output(
            request.request_id, index, "", (), own, finish=finish, timing=clock.timing()
        )


class _Clock:
    """Milliseconds since the call was sent. Mutable."""

    def __init__(self, started_s: float | None) -> None:
        self._started_s = time.monotonic() if started_s is None else started_s
        self._first_ms: float | None = None

    def mark(self) -> None:
        """Something has come. Changes: the first time, once."""
        if self._first_ms is None:
            self._first_ms = self._now_ms()

    def timing(self) -> Timing:
        """Up to now. Pure."""
        total = self._now_ms()
        first = total if self._first_ms is None else self._first_ms
        return Timing(first_token=first, total=total)

    def _now_ms(self) -> float:
        return (time.monotonic() - self._started_s) * 1000


def _share(usage: Usage, num_tokens: list[int], index: int) -> int:
    if sum(num_tokens) == usage.completion_tokens:
        return num_tokens[index]
    return usage.completion_tokens if index == 0 else 0


def _usage(told: Any) -> Usage:  # noqa: ANN401  an object of the client package
    details = getattr(told, "prompt_tokens_details", None)
    return Usage(
        prompt_tokens=told.prompt_tokens or 0,
        completion_tokens=told.completion_tokens or 0,
        image_tokens=getattr(details, "image_tokens", None) or 0,
        video_tokens=getattr(details, "video_tokens", None) or 0,
        cached_tokens=getattr(details, "cached_tokens", None) or 0,
    )


def _finish(choice: Any, service: str) -> Finish:  # noqa: ANN401  an object of the client package
    reason = choice.finish_reason
    if reason == "length":
        return Finish("length")
    if reason == "stop":
        return Finish("stop", getattr(choice, "matched_stop", None))
    if reason == "content_filter":
        message = f"the content filter of {service} cut the answer"
        return Finish("error", error=BackendFailed(message, status=None))
    if reason == "abort":
        return Finish("abort")
    message = f"{service} ended an answer for an unknown reason, {reason!r}"
    raise BackendFailed(message, status=None)


def _news(choice: Any) -> tuple[str, tuple[TokenLogprob, ...]]:  # noqa: ANN401  of the package
    told = choice.logprobs
    if hasattr(choice, "delta"):
        entries = getattr(told, "content", None) or ()
        return choice.delta.content or "", tuple(map(_chat_logprob, entries))
    return choice.text or "", tuple(_columns(told)) if told is not None else ()


def _chat_logprob(entry: Any) -> TokenLogprob:  # noqa: ANN401  an object of the client package
    top = tuple((_NO_ID, other.logprob, _piece(other)) for other in entry.top_logprobs or ())
    return TokenLogprob(_NO_ID, entry.logprob, _piece(entry), top)


def _piece(entry: Any) -> bytes:  # noqa: ANN401  an object of the client package
    if entry.bytes is not None:
        return bytes(entry.bytes)
    text: str = entry.token
    return text.encode("utf-8", errors="replace")


def _columns(told: Any) -> Iterator[TokenLogprob]:  # noqa: ANN401  an object of the client package
    tops = told.top_logprobs or [None] * len(told.tokens or ())
    for token, logprob, top in zip(
        told.tokens or (), told.token_logprobs or (), tops, strict=True
    ):
        best = sorted((top or {}).items(), key=lambda item: item[1], reverse=True)
        yield TokenLogprob(
            _NO_ID,
            logprob,
            token.encode("utf-8", errors="replace"),
            tuple(
                (_NO_ID, number, text.encode("utf-8", errors="replace"))
                for text, number in best
            ),
        )

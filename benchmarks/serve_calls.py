"""Many calls at once over real HTTP, and how each of them ended.

status 200, stream     data: {...}  ..  finish_reason  [usage]  [DONE]      ends once
status 200, whole      {"choices": [{"finish_reason"}]}                     ends once
status 4xx             {"error": {...}}                                     ends once
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.serve_asks import Ask

__all__ = ["CHAT", "Ended", "play_at", "play_closed"]

CHAT = "/v1/chat/completions"
_LIMIT_S = 900.0
Progress = Callable[[int], None]


@dataclass(slots=True)
class Ended:
    """What became of one call. Mutable while its stream is read.

    Args:
        ask: what was asked.
        status: of HTTP; 0 if the connection broke before it.
        text: what was said.
        num_ends: finish reasons and errors that were told; 1 is right, but for who has left.
        num_done: ends of the stream; a whole answer has one.
        has_more: something came after the end.
        first_s: from when it was due to the first words; None if none came.
        end_s: from when it was due to the end.
        error: what broke; "" if nothing.
    """

    ask: Ask
    status: int = 0
    text: str = ""
    num_ends: int = 0
    num_done: int = 0
    has_more: bool = False
    first_s: float | None = None
    end_s: float = 0.0
    error: str = ""
    reasons: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether it ended exactly once, in the way its kind must. Pure."""
        if self.ask.kind == "left":
            return self.status == 200 and self.num_ends == 0 and self.first_s is not None
        if self.ask.kind == "refused":
            return 400 <= self.status < 500 and self.num_ends == 1
        return (
            self.status == 200
            and (self.num_ends, self.num_done) == (1, 1)
            and not (self.has_more or self.error)
        )


def play_closed(
    url: str, asks: Sequence[Ask], streams: int, on_progress: Progress | None = None
) -> list[Ended]:
    """Keep `streams` calls open until all have ended. Blocks."""
    return asyncio.run(_closed(url, asks, streams, on_progress))


def play_at(url: str, asks: Sequence[Ask], times_s: Sequence[float]) -> list[Ended]:
    """Send each call at its time, whether or not others have ended. Blocks."""
    return asyncio.run(_at(url, asks, times_s))


def _http(url: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=url, timeout=_LIMIT_S, limits=limits, trust_env=False)


async def _closed(
    url: str, asks: Sequence[Ask], streams: int, on_progress: Progress | None
) -> list[Ended]:
    ended: list[Ended | None] = [None] * len(asks)
    waiting = iter(range(len(asks)))
    num_ended = 0

    async def worker(http: httpx.AsyncClient) -> None:
        nonlocal num_ended
        for number in waiting:
            ended[number] = await _call(http, asks[number], time.perf_counter())
            num_ended += 1
            if on_progress is not None:
                on_progress(num_ended)

    async with _http(url) as http:
        await asyncio.gather(*(worker(http) for _ in range(min(streams, len(asks)))))
    return [one for one in ended if one is not None]


async def _at(url: str, asks: Sequence[Ask], times_s: Sequence[float]) -> list[Ended]:
    async with _http(url) as http:
        start = time.perf_counter()

        async def later(ask: Ask, at_s: float) -> Ended:
            await asyncio.sleep(max(0.0, start + at_s - time.perf_counter()))
            return await _call(http, ask, start + at_s)

        return await asyncio.gather(
            *(later(a, float(s)) for a, s in zip(asks, times_s, strict=True))
        )


async def _call(http: httpx.AsyncClient, ask: Ask, due: float) -> Ended:
    ended = Ended(ask)
    try:
        async with http.stream("POST", CHAT, json=ask.body) as response:
            ended.status = response.status_code
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                await _read_stream(response, ended, due)
            else:
                _read_whole(json.loads(await response.aread()), ended)
                ended.first_s = time.perf_counter() - due
    except (httpx.HTTPError, ValueError) as error:
        ended.error = f"{type(error).__name__}: {error}"
    ended.end_s = time.perf_counter() - due
    return ended


async def _read_stream(response: httpx.Response, ended: Ended, due: float) -> None:
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        ended.has_more = ended.has_more or ended.num_done > 0
        word = line.removeprefix("data:").strip()
        if word == "[DONE]":
            ended.num_done += 1
            continue
        _take(json.loads(word), ended)
        if ended.first_s is None and ended.text:
            ended.first_s = time.perf_counter() - due
            if ended.ask.kind == "left":
                return  # closing the stream closes the connection: this client leaves


def _take(event: dict[str, Any], ended: Ended) -> None:
    if "error" in event:
        ended.num_ends += 1
        ended.error = str(event["error"].get("message"))
        return
    for choice in event.get("choices") or ():
        ended.text += (choice.get("delta") or {}).get("content") or ""
        if choice.get("finish_reason") is not None:
            ended.num_ends += 1
            ended.reasons.append(choice["finish_reason"])


def _read_whole(value: dict[str, Any], ended: Ended) -> None:
    if "error" in value:
        ended.num_ends += 1
        return
    for choice in value["choices"]:
        ended.text += choice["message"]["content"] or ""
        ended.num_ends += choice["finish_reason"] is not None
        ended.reasons.append(choice["finish_reason"])
    ended.num_done += 1

"""Requests that come whether or not earlier ones are answered, over real HTTP.

arrivals   |  |     ||    |        |  |        a Poisson process, drawn once; a higher rate
|  |  ||  |   |  |                  is the same process played faster
request    sent ----- first ---- token ---- token ---- end
TTFT        gap       gap
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

__all__ = ["Served", "Wish", "arrivals_s", "play_open_loop", "rate_at"]

_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Wish:
    """One call of `/v1/completions`; `extra` is what one server needs beside the others."""

    prompt: str
    max_tokens: int
    model: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """Greedy and streamed. Pure."""
        return {
            "model": self.model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0.0,
            "stream": True,
            **self.extra,
        }


@dataclass(frozen=True, slots=True)
class Served:
    """Times of one answer in seconds, from when it was due, not from when it could be sent.

    Args:
        late_s: from when it was due to when it was sent.
        first_s: to the first text; None if nothing came.
        end_s: to the end.
        gaps_s: between pieces of text.
        error: why it failed; empty if it did not.
    """

    late_s: float
    first_s: float | None
    end_s: float
    gaps_s: tuple[float, ...]
    error: str = ""


def arrivals_s(rate: float, count: int, seed: int) -> NDArray[np.float64]:
    """Times of `count` arrivals of a Poisson process, `rate` a second, float64 [count]. Pure.

    Equal seeds give the same process at another speed.
    """
    gaps = np.random.default_rng(seed).exponential(1.0, count)
    return np.cumsum(gaps) / rate


def play_open_loop(
    url: str, wishes: Sequence[Wish], times_s: NDArray[np.float64]
) -> list[Served]:
    """Send each wish at its time, and read all answers. Blocks until the last has ended."""
    return asyncio.run(_play(url, wishes, times_s))


async def _play(url: str, wishes: Sequence[Wish], times_s: NDArray[np.float64]) -> list[Served]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(base_url=url, timeout=_LIMIT_S, limits=limits) as client:
        start = time.perf_counter()
        calls = [
            _call(client, wish, start + float(at_s))
            for wish, at_s in zip(wishes, times_s, strict=True)
        ]
        return await asyncio.gather(*calls)


async def _call(client: httpx.AsyncClient, wish: Wish, due: float) -> Served:
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    sent = time.perf_counter()
    pieces: list[float] = []
    error = ""
    try:
        async with client.stream("POST", "/v1/completions", json=wish.body) as response:
            if response.status_code != httpx.codes.OK:
                error = f"{response.status_code}: {(await response.aread())[:300]!r}"
            async for line in response.aiter_lines():
                if _has_text(line):
                    pieces.append(time.perf_counter())
    except httpx.HTTPError as failure:
        error = f"{type(failure).__name__}: {failure}"
    if not pieces and not error:
        error = "no text came"
    first_s = pieces[0] - due if pieces else None
    gaps = tuple(map(float, np.diff(pieces)))
    return Served(sent - due, first_s, time.perf_counter() - due, gaps, error)


def _has_text(line: str) -> bool:
    """Whether a line of an event stream brings a piece of the answer. Pure."""
    value = line.removeprefix("data:").strip()
    if value == line or not value.startswith("{"):
        return False
    choices = json.loads(value).get("choices") or [{}]
    return bool(choices[0].get("text"))


def rate_at(limit: float, rates: Sequence[float], values: Sequence[float]) -> float:
    """The rate at which rising values pass `limit`, between the rates that were played.

    The logarithm of the value is taken as linear between two rates. All rates below the limit
    give the highest of them; none gives the lowest, scaled down by how far it is beyond. Pure.

    Args:
        limit: of the value.
        rates: rising.
        values: one a rate; infinite where requests failed.
    """
    for number, (rate, value) in enumerate(zip(rates, values, strict=True)):
        if value <= limit:
            continue
        if number == 0:
            return rate * limit / value
        low, below = rates[number - 1], values[number - 1]
        if not np.isfinite(value):
            return low
        share = np.log(limit / below) / np.log(value / below)
        return float(low + share * (rate - low))
    return rates[-1]

"""What the HTTP layer itself costs: a server whose engine answers at once, in its own process.

    cpu(1 token)   = request + token           of the server's process, user and system
    cpu(N tokens)  = request + N x token       so both follow from two loads

`python -m benchmarks.serve_api_cost --serve` is that server.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from statistics import median
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.record import Record, report
from benchmarks.serve_asks import Ask, Shown, scenes
from benchmarks.serve_calls import play_closed
from mmserve.core import Finish, Output, PromptReport, Request, ServerConfig, Timing, Usage
from mmserve.server import serve
from mmserve.testing import FakeClient

__all__ = ["api_rows", "api_summary"]

_TOKENS = (1, 101)
_AT_ONCE = 8
_PROMPT_TOKENS = 20
_FIRST = 80_000


class _ReadyTicket:
    """A request that is answered as fast as it is read, a token each turn of the loop."""

    def __init__(self, request: Request) -> None:
        self.request_id = request.request_id
        self._num_tokens = request.sampling.max_new_tokens or 1
        self._is_cancelled = False

    def report(self, timeout_s: float | None = None) -> PromptReport:
        """See `core.ports.Ticket`."""
        del timeout_s
        return PromptReport(tuple(range(_PROMPT_TOKENS)))

    async def report_async(self) -> PromptReport:
        """See `core.ports.Ticket`."""
        return self.report()

    def outputs(self) -> Iterator[Output]:
        """See `core.ports.Ticket`."""
        for number in range(1, self._num_tokens + 1):
            is_last = number == self._num_tokens or self._is_cancelled
            finish = Finish("abort" if self._is_cancelled else "length") if is_last else None
            timing = Timing() if is_last else None
            usage = Usage(_PROMPT_TOKENS, number)
            yield Output(self.request_id, 0, "word ", (5,), usage, finish=finish, timing=timing)
            if is_last:
                return

    async def outputs_async(self) -> AsyncIterator[Output]:
        """See `core.ports.Ticket`."""
        for output in self.outputs():
            await asyncio.sleep(0)
            yield output

    def cancel(self) -> None:
        """See `core.ports.Ticket`."""
        self._is_cancelled = True


class _ReadyClient(FakeClient):
    """An engine that costs nothing worth counting."""

    def submit(self, request: Request) -> _ReadyTicket:  # type: ignore[override]
        """See `core.ports.Client`."""
        return _ReadyTicket(request)


def api_rows(count: int, repeats: int) -> list[dict[str, Any]]:
    """Processor time a request in milliseconds, by prompt and number of tokens."""
    words = [sys.executable, "-m", "benchmarks.serve_api_cost", "--serve"]
    rows: list[dict[str, Any]] = []
    prompts = {"text": Shown("", "What is this?"), "picture": scenes(1, _FIRST)[0]}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            url = process.stdout.readline().strip()
            server = psutil.Process(process.pid)
            for number in range(repeats + 1):
                for name, shown in prompts.items():
                    for tokens in _TOKENS:
                        cost = _cost_ms(server, url, shown, tokens, count)
                        if number:  # the first round warms up
                            rows.append(
                                {
                                    "measured": "api",
                                    "prompt": name,
                                    "tokens": tokens,
                                    "round": number,
                                    "cpu_ms": cost,
                                }
                            )
        finally:
            process.terminate()
    return rows


def _cost_ms(server: psutil.Process, url: str, shown: Shown, tokens: int, count: int) -> float:
    body = shown.body(stream=True, max_tokens=tokens)
    if not shown.picture:
        body["messages"] = [{"role": "user", "content": shown.question}]
    before = _cpu_s(server)
    ended = play_closed(url, [Ask("answered", body)] * count, _AT_ONCE)
    spent_s = _cpu_s(server) - before
    if not all(one.is_clean for one in ended):
        raise SystemExit(f"the HTTP layer failed: {next(e for e in ended if not e.is_clean)}")
    return spent_s / count * 1e3


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def api_summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Cost a request, and a streamed token, from medians over the rounds. Pure."""
    costs = {
        (name, tokens): median(
            row["cpu_ms"] for row in rows if (row["prompt"], row["tokens"]) == (name, tokens)
        )
        for name in ("text", "picture")
        for tokens in _TOKENS
    }
    few, many = _TOKENS
    token_ms = (costs["text", many] - costs["text", few]) / (many - few)
    return {
        "api_request_ms": costs["text", few] - token_ms,
        "api_picture_request_ms": costs["picture", few] - token_ms,
        "api_token_us": token_ms * 1e3,
    }


def main() -> None:
    """Serve, or measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", action="store_true", help="be the server")
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--quick", action="store_true", help="few requests")
    flags = parser.parse_args()
    if flags.serve:
        serve(_ReadyClient(), ServerConfig(port=0), lambda url: print(url, flush=True))
        return
    repeats = 1 if flags.quick else 5
    rows = api_rows(50 if flags.quick else 400, repeats)
    report(Record(repeats=repeats, summary=api_summary(rows), rows=rows), flags.json)


if __name__ == "__main__":
    main()

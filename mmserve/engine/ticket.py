"""A request under way: what the loop has to say about it, and how a reader waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace

from mmserve.core import CallTimeout, MmserveError, Output, PromptReport

__all__ = ["EngineTicket", "joined"]

_MOST_APART = 256
"""Outputs that wait for a slow reader; of more, those of one sequence become one."""


class EngineTicket:
    """Implements `core.ports.Ticket`; the engine writes, one reader reads.

    Everything that the engine says goes through `accept`, `refuse` and `put`, each safe from
    any thread. After the last sequence has ended, nothing more is said.
    """

    def __init__(
        self, request_id: str, num_sequences: int, cancel: Callable[[EngineTicket], None]
    ) -> None:
        self.request_id = request_id
        self.created_at = time.monotonic()
        self._num_open = num_sequences or 1  # a call for none is refused, which is an end too
        self._cancel = cancel
        self._condition = threading.Condition(threading.RLock())
        self._outputs: deque[Output] = deque()
        self._report: PromptReport | None = None
        self._refusal: MmserveError | None = None
        self._wakers: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._ended: set[int] = set()
        self._seen: set[int] = set()
        self._is_cancelled = False

    # --- the engine's side -------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether the request was refused or all its sequences have ended. Pure."""
        with self._condition:
            return self._refusal is not None or self._num_open == 0

    @property
    def is_cancelled(self) -> bool:
        """Whether the reader has lost interest. Pure."""
        return self._is_cancelled

    def accept(self, report: PromptReport) -> None:
        """Say that the request will be answered. Changes: the report."""
        with self._condition:
            self._report = report
            self._wake()

    def refuse(self, error: MmserveError) -> None:
        """Say that the request will not be answered. Changes: the refusal; nothing follows."""
        with self._condition:
            if self._refusal is None and self._num_open:
                self._refusal = error
                self._wake()

    def put(self, output: Output) -> None:
        """Hand over news of one sequence. Changes: the queue. News after an end are dropped."""
        with self._condition:
            if output.index in self._ended or self._refusal is not None:
                return
            self._seen.add(output.index)
            if output.finish is not None:
                self._ended.add(output.index)
                self._num_open -= 1
            self._outputs.append(output)
            if len(self._outputs) > _MOST_APART + 2 * len(self._seen):
                self._outputs = deque(joined(self._outputs))
            self._wake()

    def _wake(self) -> None:
        self._condition.notify_all()
        for loop, event in self._wakers:
            with contextlib.suppress(RuntimeError):  # a reader whose event loop was closed
                loop.call_soon_threadsafe(event.set)

    # --- the reader's side -------------------------------------------------------------------

    def report(self, timeout_s: float | None = None) -> PromptReport:
        """Wait until the request is accepted; see `core.ports.Ticket`."""
        with self._condition:
            self._condition.wait_for(self._is_decided, timeout_s)
            return self._decided()

    async def report_async(self) -> PromptReport:
        """Like `report`, without blocking the event loop."""
        await self._until(self._is_decided)
        return self._decided()

    def outputs(self) -> Iterator[Output]:
        """Outputs as they come; see `core.ports.Ticket`."""
        while True:
            with self._condition:
                self._condition.wait_for(self._has_news)
                batch, is_over = self._take()
            yield from batch
            if is_over:
                return

    async def outputs_async(self) -> AsyncIterator[Output]:
        """Like `outputs`, without blocking the event loop."""
        while True:
            await self._until(self._has_news)
            batch, is_over = self._take()
            for output in batch:
                yield output
            if is_over:
                return

    def cancel(self) -> None:
        """Abort what still runs; see `core.ports.Ticket`."""
        self._is_cancelled = True
        self._cancel(self)

    def _is_decided(self) -> bool:
        return self._report is not None or self._refusal is not None

    def _decided(self) -> PromptReport:
        if self._refusal is not None:
            raise self._refusal
        if self._report is None:
            raise CallTimeout(
                f"request {self.request_id} is not decided yet", field="timeout_s"
            )
        return self._report

    def _has_news(self) -> bool:
        return bool(self._outputs) or self._refusal is not None or self._num_open == 0

    def _take(self) -> tuple[list[Output], bool]:
        with self._condition:
            if self._refusal is not None:
                raise self._refusal
            batch = list(self._outputs)
            self._outputs.clear()
            return batch, self._num_open == 0

    async def _until(self, is_true: Callable[[], bool]) -> None:
        event = asyncio.Event()
        waker = (asyncio.get_running_loop(), event)
        with self._condition:
            self._wakers.append(waker)
        try:
            while not is_true():
                await event.wait()
                event.clear()
        finally:
            with self._condition:
                self._wakers.remove(waker)


def joined(outputs: Iterable[Output]) -> list[Output]:
    """One output of each sequence that says what all of its outputs say, in order. Pure."""
    by_index: dict[int, list[Output]] = {}
    for output in outputs:
        by_index.setdefault(output.index, []).append(output)
    return [_joined(own) for own in by_index.values()]


def _joined(own: list[Output]) -> Output:
    scores = [output.prompt_logprobs for output in own if output.prompt_logprobs is not None]
    return replace(
        own[-1],  # has the usage up to here, and the end if there is one
        text="".join(output.text for output in own),
        token_ids=tuple(token_id for output in own for token_id in output.token_ids),
        logprobs=tuple(entry for output in own for entry in output.logprobs),
        prompt_logprobs=scores[0] if scores else None,
    )

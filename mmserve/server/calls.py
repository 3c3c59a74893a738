"""Requests under way: handing them in, reading their news, ending them.

    HTTP request -> OpenCall -> ticket 0 -> sequences 0, 1 .. n-1
                             -> ticket 1 -> sequences n, n+1 ..      (a batch of prompts)

Clients choose ids freely and may use one twice; inside, every ticket has an id of its own.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace

from mmserve.core import (
    Aborted,
    BadRequest,
    Broken,
    Client,
    Finish,
    MmserveError,
    Output,
    PromptReport,
    Request,
    Ticket,
    Usage,
)
from mmserve.server.clients import Caller, scoped_salt
from mmserve.server.visit import Followed, here

__all__ = ["MOST_ANSWERS", "Calls", "OpenCall"]

MOST_ANSWERS = 4096
"""Answers that one call may ask for: its prompts, times its samples."""

_NO_REPORT = PromptReport(())


class Calls:
    """The calls that are open now, by the ids that clients know. Mutable; one per app."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._open: dict[OpenCall, frozenset[str]] = {}
        self._refusal: Exception | None = None

    @property
    def refusal(self) -> Exception | None:
        """Why no call is opened any more, or None while calls are. Pure."""
        return self._refusal

    @property
    def num_open(self) -> int:
        """Calls that are open now. Pure."""
        return len(self._open)

    def refuse_new(self, error: Exception) -> None:
        """Open no call from now on; whoever tries gets `error`. Changes: the refusal."""
        self._refusal = error

    def open(self, requests: Sequence[Request], shown_ids: Iterable[str]) -> OpenCall:
        """Hand requests in; `abort` knows the call by any of `shown_ids`.

        A caller whose key has a cache of its own gets it here, whatever the route.

        Changes: the open calls. Whoever opens a call closes it. Raises what `refuse_new` says,
        BadRequest for too many answers at once, and the 429 refusal if the client has too many.
        """
        if self._refusal is not None:
            raise self._refusal
        visit, num_samples = here(), requests[0].num_sequences
        if len(requests) > 1:
            _check_number(len(requests), num_samples)
        caller = Caller() if visit is None else visit.caller
        followed = None
        if visit is not None:
            num_sequences = len(requests) * num_samples
            followed = visit.follow(requests[0].client, num_sequences, num_samples)
        tickets = [
            self._client.submit(
                replace(
                    request,
                    request_id=uuid.uuid4().hex,
                    cache_salt=scoped_salt(caller, request.cache_salt),
                )
            )
            for request in requests
        ]
        call = OpenCall(self, tickets, num_samples, followed)
        call.client = requests[0].client
        self._open[call] = frozenset(shown_ids)
        return call

    def forget(self, call: OpenCall) -> None:
        """Changes: the open calls. Idempotent."""
        self._open.pop(call, None)

    def abort(self, shown_id: str, caller: Caller | None = None) -> int:
        """End the calls known by exactly this id; gives their number.

        With a `caller`, only those that are his: whoever has a key of his own ends the calls
        made with it, all others those of nobody's own key.

        Changes: those calls.
        """
        found = [
            call
            for call, ids in self._open.items()
            if shown_id in ids and (caller is None or _is_own(call.client, caller))
        ]
        for call in found:
            call.cancel()
        return len(found)

    def abort_all(self) -> int:
        """End every open call; gives their number. Changes: those calls."""
        for call in list(self._open):
            call.cancel()
        return len(self._open)

    def fail_all(self, error: Exception) -> None:
        """End every open call with `error` in place of the rest. Changes: those calls."""
        for call in list(self._open):
            call.fail(error)


class OpenCall:
    """The tickets of one HTTP request, each of `num_samples` sequences. Mutable; one reader."""

    def __init__(
        self,
        calls: Calls,
        tickets: list[Ticket],
        num_samples: int,
        followed: Followed | None = None,
    ) -> None:
        self.num_samples = num_samples
        self.client = ""
        self.reports: list[PromptReport] = []
        self._calls = calls
        self._tickets = tickets
        self._ended: set[int] = set()
        self._error: Exception | None = None
        self._followed = followed

    @property
    def num_sequences(self) -> int:
        """Sequences of all tickets. Pure."""
        return len(self._tickets) * self.num_samples

    async def accepted(self) -> list[PromptReport]:
        """Wait until every request is accepted; raises a refusal. Changes: `reports`."""
        for ticket in self._tickets:
            try:
                self.reports.append(await ticket.report_async())
            except Aborted:
                self.reports.append(_NO_REPORT)
        return self.reports

    async def news(self) -> AsyncIterator[tuple[int, Output]]:
        """Outputs with their sequence's number in the call, until all have ended.

        An aborted sequence ends with reason "abort"; a failed one raises its error.
        """
        if len(self._tickets) == 1:
            async for number, output in self._outputs(0):
                yield number, output
            return
        queue: asyncio.Queue[tuple[int, Output] | Exception | None] = asyncio.Queue()
        pumps = [
            asyncio.create_task(self._pump(position, queue))
            for position in range(len(self._tickets))
        ]
        try:
            num_open = len(pumps)
            while num_open:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    num_open -= 1
                else:
                    yield item
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def cancel(self) -> None:
        """Abort what still runs. Changes: the tickets. Idempotent."""
        for position, ticket in enumerate(self._tickets):
            first = position * self.num_samples
            if not self._ended.issuperset(range(first, first + self.num_samples)):
                ticket.cancel()

    def fail(self, error: Exception) -> None:
        """Abort what still runs; whoever reads the news gets `error`. Changes: the tickets."""
        self._error = error
        self.cancel()

    def close(self) -> None:
        """Abort what still runs and be forgotten. Changes: the open calls. Idempotent."""
        self.cancel()
        self._calls.forget(self)

    async def _pump(
        self, position: int, queue: asyncio.Queue[tuple[int, Output] | Exception | None]
    ) -> None:
        try:
            async for item in self._outputs(position):
                queue.put_nowait(item)
        except Exception as error:  # noqa: BLE001 - whoever reads the queue raises it
            queue.put_nowait(error)
        queue.put_nowait(None)

    async def _outputs(self, position: int) -> AsyncIterator[tuple[int, Output]]:
        ticket, first = self._tickets[position], position * self.num_samples
        try:
            async for output in ticket.outputs_async():
                finish = output.finish
                if self._followed is not None:
                    self._followed.saw(first + output.index, output)
                if finish is not None:
                    self._ended.add(first + output.index)
                    if finish.reason == "error":
                        raise _failure(finish)
                    if finish.reason == "abort" and self._error is not None:
                        raise self._error
                yield first + output.index, output
        except Aborted:
            if self._error is not None:
                raise self._error from None
            num_tokens = len(self.reports[position].token_ids) if self.reports else 0
            for index in range(self.num_samples):
                if first + index not in self._ended:
                    self._ended.add(first + index)
                    usage, finish = Usage(num_tokens), Finish("abort")
                    yield (
                        first + index,
                        Output(ticket.request_id, index, "", (), usage, finish=finish),
                    )


def _check_number(num_prompts: int, num_samples: int) -> None:
    if num_prompts * num_samples > MOST_ANSWERS:
        message = f"{num_prompts} prompts with n {num_samples} are too many answers at once"
        hint = f"a call may ask for {MOST_ANSWERS}; send several"
        raise BadRequest(message, field="n", reason="too_many", hint=hint)


def _is_own(client: str, caller: Caller) -> bool:
    return client == caller.owner if caller.owner else client not in caller.names


def _failure(finish: Finish) -> MmserveError:
    return finish.error or Broken("the answer could not be finished")

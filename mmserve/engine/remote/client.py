"""The `Client` port over a wire: tickets and calls here, the engine in another process."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, TypeVar

from mmserve.core import (
    EngineDown,
    Finish,
    ImagePart,
    MediaLook,
    MmserveError,
    ModelInfo,
    Output,
    PromptLook,
    PromptReport,
    Release,
    Request,
    Timing,
    Usage,
    VideoPart,
)
from mmserve.engine.remote.messages import (
    Call,
    Cancel,
    Counters,
    Detokenize,
    Draw,
    EndHold,
    Failed,
    FlushCache,
    Hold,
    Look,
    Message,
    Prepare,
    Render,
    Submit,
    Tokenize,
    Told,
)
from mmserve.engine.ticket import EngineTicket

__all__ = ["RemoteEngine", "Send"]

Send = Callable[[Message], None]
_COUNTING_S = 5.0
_MOST_TEXTS = 1024
T = TypeVar("T")


class RemoteEngine:
    """An engine in another process. Implements `core.ports.Client`; safe from any thread.

    While it is connected, requests and calls go out through `send`, and what comes back goes
    to `take`. When it is not, they fail at once with the error that `disconnect` was given;
    so does everything that was under way. Every request ends exactly once.

    Changes: the requests and calls that are open.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._send: Send | None = None
        self._why: MmserveError = EngineDown("the engine is starting", retry_after_s=1)
        self._model: ModelInfo | None = None
        self._numbers = itertools.count(1)
        self._open: dict[int, _OpenRequest] = {}
        self._calls: dict[int, Future[Any]] = {}
        self._texts: dict[tuple[tuple[int, ...], bool], str] = {}
        """Texts of single tokens that were asked for; surfaces ask for few, and often."""
        self._num_starts = 0

    # --- the supervisor's side ---------------------------------------------------------------

    def connect(self, send: Send, model: ModelInfo) -> None:
        """Requests go out from now on. Changes: the model's facts."""
        with self._lock:
            self._send, self._model = send, model
            self._texts.clear()  # it may be another model
            self._num_starts += 1

    def disconnect(self, error: MmserveError) -> None:
        """Nothing goes out any more; what is open ends with `error`. Idempotent."""
        with self._lock:
            self._send, self._why = None, error
            requests, self._open = self._open, {}
            calls, self._calls = self._calls, {}
        for request in requests.values():
            request.fail(error)
        for future in calls.values():
            future.set_exception(error)

    def take(self, message: Message) -> None:
        """Take in what the engine says. Changes: a ticket, or a call. From one thread."""
        if not isinstance(message, Told | Failed):
            raise TypeError(f"a {type(message).__name__} is not for the client")
        request = self._open.get(message.number)
        if request is None:
            self._take_answer(message)
        else:
            self._take_news(request, message)

    def fail(self, message: Message, error: Exception) -> None:
        """A message could not be sent. Changes: what it began has ended."""
        refusal = MmserveError(f"the request cannot be handed to the engine: {error}")
        if isinstance(message, Submit | Call):
            self.take(Failed(message.number, refusal))

    @property
    def num_open(self) -> int:
        """Requests and calls under way. Pure."""
        return len(self._open) + len(self._calls)

    # --- Client ------------------------------------------------------------------------------

    @property
    def model(self) -> ModelInfo:
        """Facts of the model served, those of the latest process."""
        if self._model is None:
            raise self._why
        return self._model

    def submit(self, request: Request) -> EngineTicket:
        """Hand a request in; see `core.ports.Client`."""
        number = next(self._numbers)
        cancel = partial(self._cancel, number)
        ticket = EngineTicket(request.request_id, request.num_sequences, cancel)
        with self._lock:
            send, why = self._send, self._why
            if send is not None:
                self._open[number] = _OpenRequest(ticket, request.num_sequences)
        if send is None:
            ticket.refuse(why)
        else:
            send(Submit(number, request))
        return ticket

    def prepare(
        self, part: ImagePart | VideoPart, *, cache_salt: str = "", client: str = ""
    ) -> None:
        """A hint that requests will soon have this part; see `core.ports.Client`."""
        send = self._send
        if send is not None:
            send(Prepare(part, cache_salt, client))

    def hold(self, part: ImagePart | VideoPart, *, cache_salt: str = "") -> Release:
        """Keep what requests fetch of this part; see `core.ports.Client`."""
        ends, send, number = ExitStack(), self._send, next(self._numbers)
        if send is not None:
            send(Hold(number, part, cache_salt))
            ends.callback(send, EndHold(number))
        return ends.close

    def look(self, part: ImagePart | VideoPart) -> MediaLook:
        """What the model will see of a picture or clip; see `core.ports.Client`."""
        return self._call(MediaLook, lambda number: Look(number, part))

    def render(self, request: Request) -> PromptLook:
        """A request's prompt as the model would get it; see `core.ports.Client`."""
        return self._call(PromptLook, lambda number: Render(number, request))

    def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of template text; see `core.ports.Client`."""
        return self._call(list[int], lambda number: Tokenize(number, text, add_special_tokens))

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; see `core.ports.Client`."""
        ids = tuple(int(token_id) for token_id in token_ids)
        known = (ids, skip_special_tokens)
        if known in self._texts:
            return self._texts[known]
        text = self._call(str, lambda number: Detokenize(number, ids, skip_special_tokens))
        if len(ids) == 1 and len(self._texts) < _MOST_TEXTS:
            self._texts[known] = text
        return text

    def flush_cache(self, timeout_s: float = 0.0) -> bool:
        """Forget cached KV, features and hints; see `core.ports.Client`."""
        return self._call(bool, lambda number: FlushCache(number, timeout_s))

    def counters(self) -> dict[str, float]:
        """The engine's counters, and whether it is up; that alone while it does not answer.

        Waits five seconds at most. Never raises because the engine is down: who watches it
        wants to know just that.
        """
        restarts = float(max(0, self._num_starts - 1))
        own = {"engine_up": 0.0, "engine_restarts_total": restarts}
        try:
            counted = self._call(dict[str, float], Counters, _COUNTING_S)
        except (EngineDown, TimeoutError):
            return own
        return counted | own | {"engine_up": 1.0}

    def drawing(self, room: str, form: Literal["text", "svg", "json"] = "text") -> str:
        """A room's state for people to look at; see `core.ports.Client`."""
        return self._call(str, lambda number: Draw(number, room, form))

    # --- inside ------------------------------------------------------------------------------

    def _call(
        self, _kind: type[T], message: Callable[[int], Message], timeout_s: float | None = None
    ) -> T:
        """Ask the engine and wait. Raises as the call does, EngineDown or TimeoutError."""
        number = next(self._numbers)
        future: Future[T] = Future()
        with self._lock:
            send, why = self._send, self._why
            if send is not None:
                self._calls[number] = future
        if send is None:
            raise why
        send(message(number))
        try:
            return future.result(timeout_s)
        finally:
            with self._lock:
                self._calls.pop(number, None)

    def _cancel(self, number: int, _ticket: EngineTicket) -> None:
        send = self._send
        if send is not None and number in self._open:
            send(Cancel(number))

    def _take_news(self, request: _OpenRequest, message: Told | Failed) -> None:
        match message:
            case Told(_, PromptReport() as report):
                request.accept(report)
            case Told(_, Output() as output):
                request.put(output)
            case Failed(_, error):
                request.ticket.refuse(error)
        if request.ticket.is_settled:
            with self._lock:
                self._open.pop(message.number, None)

    def _take_answer(self, message: Told | Failed) -> None:
        with self._lock:
            future = self._calls.pop(message.number, None)
        if future is None:
            return
        if isinstance(message, Told):
            future.set_result(message.value)
        else:
            future.set_exception(message.error)


class _OpenRequest:
    """A request under way, and what its sequences have used so far. Mutable."""

    def __init__(self, ticket: EngineTicket, num_sequences: int) -> None:
        self.ticket = ticket
        self._is_accepted = False
        self._usages = [Usage(0)] * num_sequences

    def accept(self, report: PromptReport) -> None:
        """Say that it will be answered. Changes: the ticket."""
        self._is_accepted = True
        self.ticket.accept(report)

    def put(self, output: Output) -> None:
        """Hand news on. Changes: the ticket."""
        self._usages[output.index] = output.usage
        self.ticket.put(output)

    def fail(self, error: MmserveError) -> None:
        """End what has not ended. Changes: the ticket; sequences that have ended stay so."""
        if not self._is_accepted:
            self.ticket.refuse(error)
            return
        total_ms = (time.monotonic() - self.ticket.created_at) * 1e3
        for index, usage in enumerate(self._usages):
            self.ticket.put(
                Output(
                    request_id=self.ticket.request_id,
                    index=index,
                    text="",
                    token_ids=(),
                    usage=usage,
                    finish=Finish("error", error=error),
                    timing=Timing(total=total_ms),
                )
            )

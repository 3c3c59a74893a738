"""One or more servers in place of the engine: each question is asked where its media are.

    submit -> a thread takes the group's server -> POST /generate -> answer, refusal
                 ^                                       |
                 +--- server lost: out, ask another -----+      Watch takes it in again

What a lost server had under way is asked elsewhere. A question may then be computed twice; its
ticket tells one answer.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self

from mmserve.batch.remote.addresses import server_urls
from mmserve.batch.remote.affinity import media_key
from mmserve.batch.remote.board import Board, ServerCount
from mmserve.batch.remote.server import Lost, Server
from mmserve.batch.remote.watch import Watch
from mmserve.batch.whole import WholeAnswer, WholeTicket
from mmserve.core import (
    Aborted,
    BackendFailed,
    BadRequest,
    Broken,
    CallTimeout,
    MmserveError,
    Request,
)

__all__ = ["Fleet"]

_MAX_ASKS = 20
_MAX_BROKEN = 3
_SERVER_FAULT = 500
_FIRST_PROBE_S = 0.5


@dataclass(slots=True)
class _Call:
    """A question under way.

    Args:
        request: under an id that no other call has.
        key: of its group.
        server: who is asked at this moment.
        is_cancelled: whether nobody waits for it.
        num_broken: calls that broke though the server is well.
        num_downs: calls after which the server was not well.
    """

    request: Request
    key: bytes
    server: Server | None = None
    is_cancelled: bool = False
    num_broken: int = 0
    num_downs: int = 0


class Fleet:
    """An `Asker` over servers; close it, or use it in a `with`.

    Args:
        urls: `http://host:port` each, or several with commas between them.
        api_key: sent to all of them as a bearer token.
        concurrency: calls open at once, at all servers together.
        on_change: told in a sentence when a server is lost or is back; from any thread.
        first_probe_s: pause before a lost server is looked at; doubled after each look.

    Raises BadRequest for addresses that are none and for servers of different models,
    BackendFailed if no server is ready.
    """

    def __init__(
        self,
        urls: tuple[str, ...],
        api_key: str | None = None,
        *,
        concurrency: int = 32,
        on_change: Callable[[str], None] = lambda _sentence: None,
        first_probe_s: float = _FIRST_PROBE_S,
    ) -> None:
        names = server_urls(urls)
        if not names:
            raise BadRequest("url names no server", field="url", reason="missing")
        self._servers = {url: Server(url, api_key, concurrency) for url in names}
        self._board = Board(names, concurrency)
        self._on_change = on_change
        self._run_id = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="mmserve-batch")
        self._model: str | None = None
        self._watch = Watch(
            self._board,
            self._check_back,
            first_s=first_probe_s,
            on_back=lambda url: on_change(f"{url} answers again"),
        )
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for calls under way, delete what was uploaded, close. Idempotent."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._watch.close()
        out = self._board.out()
        for url, server in self._servers.items():
            server.close(is_up=url not in out)

    def submit(self, request: Request) -> WholeTicket:
        """Hand a question in; a refusal is raised by the ticket."""
        own_id = f"{self._run_id}-{next(self._numbers)}-{request.request_id}"
        call = _Call(replace(request, request_id=own_id), media_key(request))
        answer: Future[WholeAnswer] = self._pool.submit(self._answer, call)
        return WholeTicket(request.request_id, answer, lambda: _abort(call))

    def counts(self) -> tuple[ServerCount, ...]:
        """What each server has done so far, in the order of the addresses. Pure."""
        return tuple(
            replace(
                count,
                uploads=self._servers[count.url].uploads.num_files,
                uploaded_bytes=self._servers[count.url].uploads.num_bytes,
            )
            for count in self._board.counts()
        )

    def _begin(self) -> None:
        """Look at every server at once.

        Raises BackendFailed if none is ready, BadRequest if two serve different models.
        """
        looks = {url: self._pool.submit(self._look, url) for url in self._servers}
        errors: list[MmserveError] = []
        for url, look in looks.items():
            try:
                name = look.result()
            except MmserveError as error:
                errors.append(error)
                self._take_out(url, error)
            else:
                self._check_model(url, name)
        if len(errors) == len(looks):
            raise _none_ready(errors)

    def _look(self, url: str) -> str | None:
        """The model of a server that is ready. Raises BackendFailed if it is not."""
        server = self._servers[url]
        server.check_ready()
        return server.model_name()

    def _check_back(self, url: str) -> None:
        """Raise what keeps a server that was lost from being asked again."""
        self._check_model(url, self._look(url))

    def _check_model(self, url: str, name: str | None) -> None:
        """Raise BadRequest if it is another than the first. Changes: the first is noted."""
        self._model = self._model or name
        if name is not None and name != self._model:
            raise BadRequest(
                f"{url} serves the model {name!r}, the servers before serve {self._model!r}",
                field="url",
                reason="conflict",
                hint="name servers of one model",
            )

    def _answer(self, call: _Call) -> WholeAnswer:
        for _ in range(_MAX_ASKS):
            if call.is_cancelled:
                raise Aborted("the question was cancelled")
            url = self._board.take(call.key)
            answer = self._ask(call, url)
            if answer is not None:
                return answer
        raise BackendFailed(f"the servers were lost {_MAX_ASKS} times", status=None)

    def _ask(self, call: _Call, url: str) -> WholeAnswer | None:
        """The server's answer; None if it was lost and another may be asked.

        Changes: the counts, and which servers are up. Raises what the question is told.
        """
        server = call.server = self._servers[url]
        try:
            answer = server.ask(call.request)
        except Lost as lost:
            self._after_loss(call, url, lost)
            return None
        except MmserveError as error:
            self._after_error(url, error)
            return None
        except BaseException:
            self._board.end_refused(url)
            raise
        finally:
            call.server = None
        self._board.end_answered(url)
        return answer

    def _after_loss(self, call: _Call, url: str, lost: Lost) -> None:
        self._board.end_moved(url)
        is_ready = lost.was_sent and self._is_ready(url)
        if not is_ready:
            self._take_out(url, lost.error)
        if lost.is_silence and is_ready:
            self._servers[url].abort(call.request.request_id)
            raise CallTimeout(lost.error.message, hint="the server is well") from lost
        call.num_broken += is_ready
        call.num_downs += lost.was_sent and not is_ready
        if call.num_downs >= _MAX_BROKEN:
            message = f"{_MAX_BROKEN} servers were lost with this question under way"
            hint = "it may be what brings them down; --retry-errors asks it again"
            raise Broken(message, hint=hint) from lost
        if call.num_broken >= _MAX_BROKEN:
            message = f"{_MAX_BROKEN} calls broke, the last: {lost.error.message}"
            raise BackendFailed(message, status=None) from lost

    def _after_error(self, url: str, error: MmserveError) -> None:
        """Tell the error, unless the server is ill: then another is asked."""
        status = error.fields.get("status")
        is_fault = isinstance(status, int) and status >= _SERVER_FAULT
        if is_fault and not self._is_ready(url):
            self._board.end_moved(url)
            self._take_out(url, error)
            return
        self._board.end_refused(url)
        raise error

    def _is_ready(self, url: str) -> bool:
        if url in self._board.out():
            return False
        try:
            self._servers[url].check_ready()
        except MmserveError:
            return False
        return True

    def _take_out(self, url: str, error: MmserveError) -> None:
        if self._board.take_out(url, error.message):
            self._on_change(f"{url} is not asked any more: {error.message}")
        self._watch.wake()


def _abort(call: _Call) -> None:
    call.is_cancelled = True
    server = call.server
    if server is not None:
        server.abort(call.request.request_id)


def _none_ready(errors: list[MmserveError]) -> MmserveError:
    if len(errors) == 1:
        return errors[0]
    message = f"no server answers, of {len(errors)}: {'; '.join(e.message for e in errors)}"
    return BackendFailed(message, hint="are the servers running?", status=None)

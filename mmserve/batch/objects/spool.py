"""Objects become local files before a question is handed on.

    submit -> no object in it: handed on as it is
           -> a thread: check every address -> hold the files -> ask with PathSource -> release

Whoever answers never sees a store's address. A group's questions share the files.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from mmserve.batch.asker import Asker, AskTicket
from mmserve.batch.objects.disk import DiskLimits, ObjectDisk
from mmserve.batch.objects.permits import ObjectAddress, Permits, is_object
from mmserve.batch.objects.stores import Stores, check_stores
from mmserve.batch.whole import WholeAnswer, WholeTicket
from mmserve.core import (
    Aborted,
    BackendFailed,
    ImagePart,
    MmserveError,
    ModelInfo,
    Part,
    PathSource,
    PromptLook,
    Request,
    Turn,
    UrlSource,
    VideoPart,
)

__all__ = ["Spool", "StoreSettings"]

_MIB = 1 << 20
_NUM_FETCHES = 8
_AnyPart = TypeVar("_AnyPart", bound=Part)
Places = dict[str, ObjectAddress]


def _setting(default: Any, doc: str, low: float | None = None) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc, "low": low})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What may be read from object stores, and how much of it lies on disk.

    `max_object_bytes` is the engine's limit of one clip where it is None.
    """

    allow_store: tuple[str, ...] = _setting(
        (), "object store to read media from, as s3://bucket/folder/; repeatable"
    )
    max_object_bytes: int | None = _setting(
        None, "most bytes of one object; default: max_media_bytes", 1
    )
    store_timeout_s: float = _setting(60.0, "longest fetch of one object in seconds", 0.1)
    spool_files: int = _setting(64, "most objects kept on disk at once", 1)
    spool_bytes: int = _setting(4096 * _MIB, "most bytes of objects kept on disk", 1)


@dataclass(slots=True)
class _Call:
    """A question under way; `ticket` is there once it was handed on."""

    request: Request
    places: Places
    ticket: AskTicket | None = None
    is_cancelled: bool = False


class Spool:
    """An `Asker` in front of another; close it, or use it in a `with`.

    Args:
        asker: who answers; it stays open.
        settings: see there.
        max_media_bytes: most bytes of one object, if the settings do not say.
        concurrency: questions about objects under way at once.

    Raises BadRequest for a prefix that is none, MissingExtra if a store's package is missing.
    """

    def __init__(
        self,
        asker: Asker,
        settings: StoreSettings,
        *,
        max_media_bytes: int,
        concurrency: int = 32,
    ) -> None:
        self._asker = asker
        self._permits = Permits(settings.allow_store)
        check_stores(self._permits.schemes)
        self._stores = Stores()
        self._limit_bytes = settings.max_object_bytes or max_media_bytes
        self._timeout_s = settings.store_timeout_s
        limits = DiskLimits(
            max_files=settings.spool_files,
            max_bytes=settings.spool_bytes,
            num_fetches=_NUM_FETCHES,
            timeout_s=settings.store_timeout_s,
        )
        self._disk = ObjectDisk(self._fetch, limits)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="mmserve-spool")
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def model(self) -> ModelInfo | None:
        """Facts of the model that answers, where they are known. Pure."""
        return getattr(self._asker, "model", None)

    def close(self) -> None:
        """End what is under way and remove every file. Idempotent."""
        self._is_closed = True
        self._disk.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, request: Request) -> AskTicket:
        """Hand a question in; a refusal is raised by the ticket."""
        answer: Future[WholeAnswer]
        try:
            places = {text: self._permits.checked(text) for text in _objects(request.parts)}
        except MmserveError as error:
            answer = Future()
            answer.set_exception(error)
            return WholeTicket(request.request_id, answer, lambda: None)
        if not places:
            return self._asker.submit(request)
        call = _Call(request, places)
        answer = self._pool.submit(self._answer, call)
        return WholeTicket(request.request_id, answer, lambda: _cancel(call))

    def render(self, request: Request) -> PromptLook:
        """See `core.ports.Client`. Raises BackendFailed if who answers cannot show prompts."""
        render = getattr(self._asker, "render", None)
        if render is None:
            raise BackendFailed("prompts cannot be looked at here", status=None)
        places = {text: self._permits.checked(text) for text in _objects(request.parts)}
        addresses = tuple(places.values())
        files = self._disk.hold(addresses)
        try:
            paths = {text: str(files[address]) for text, address in places.items()}
            parts = tuple(_local(part, paths) for part in request.parts)
            found: PromptLook = render(replace(request, parts=parts))
            return found
        except MmserveError as error:
            raise _named(error, places, files) from error
        finally:
            self._disk.release(addresses)

    def prepare(self, part: ImagePart | VideoPart) -> None:
        """Questions will soon be about this: begin to fetch it, or tell who answers.

        A hint; returns at once and never raises for the content.
        """
        prepare = getattr(self._asker, "prepare", lambda _part: None)
        source = part.source
        if not (isinstance(source, UrlSource) and is_object(source.url)):
            prepare(part)
            return
        with contextlib.suppress(MmserveError):  # told when it is asked about
            self._disk.want(
                self._permits.checked(source.url),
                lambda path: prepare(replace(part, source=PathSource(str(path)))),
            )

    def _fetch(self, address: ObjectAddress, target: Path, is_over: Callable[[], bool]) -> int:
        return self._stores.download(
            address,
            target,
            limit_bytes=self._limit_bytes,
            deadline_s=time.monotonic() + self._timeout_s,
            is_over=is_over,
        )

    def _answer(self, call: _Call) -> WholeAnswer:
        addresses = tuple(call.places.values())
        files = self._disk.hold(addresses)
        try:
            paths = {text: str(files[address]) for text, address in call.places.items()}
            parts = tuple(_local(part, paths) for part in call.request.parts)
            call.ticket = self._asker.submit(replace(call.request, parts=parts))
            if call.is_cancelled or self._is_closed:
                call.ticket.cancel()
                raise Aborted("the question was cancelled")
            report = call.ticket.report()
            return WholeAnswer(tuple(call.ticket.outputs()), report)
        except MmserveError as error:
            raise _named(error, call.places, files) from error
        finally:
            self._disk.release(addresses)


def _cancel(call: _Call) -> None:
    call.is_cancelled = True
    if call.ticket is not None:
        call.ticket.cancel()


def _named(
    error: MmserveError, places: Places, files: dict[ObjectAddress, Path]
) -> MmserveError:
    """The error with the store's address where it names the file on disk. Pure."""
    message = error.message
    for text, address in places.items():
        message = message.replace(str(files[address]), text)
    return type(error)(message, hint=error.hint, **error.fields)


def _objects(parts: Sequence[Part]) -> Iterator[str]:
    """The stores' addresses in a prompt."""
    for part in parts:
        match part:
            case Turn():
                yield from _objects(part.parts)
            case ImagePart(UrlSource(url)) | VideoPart(UrlSource(url)) if is_object(url):
                yield url


def _local(part: _AnyPart, paths: dict[str, str]) -> _AnyPart:
    """The part with files in place of objects. Pure."""
    match part:
        case Turn():
            return replace(part, parts=tuple(_local(inner, paths) for inner in part.parts))
        case ImagePart(UrlSource(url)) | VideoPart(UrlSource(url)) if url in paths:
            return replace(part, source=PathSource(paths[url]))
    return part

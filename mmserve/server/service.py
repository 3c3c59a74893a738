"""What every route needs: the client, the settings, the open calls, the counts, and ids."""

from __future__ import annotations

import asyncio
import re
import uuid
from dataclasses import dataclass, field

from fastapi import Request as HttpRequest

from mmserve.core import BadRequest, BytesSource, Client, ModelInfo, NotFound, ServerConfig
from mmserve.server.admin import check_admin
from mmserve.server.body import BodyLimits, read_bytes, read_json
from mmserve.server.calls import Calls
from mmserve.server.clients import Caller, caller_of, key_of
from mmserve.server.conversation_store import ConversationStore
from mmserve.server.counts import Counts
from mmserve.server.fields import Body, shown, text
from mmserve.server.file_store import FileStore
from mmserve.server.forms import FormField, parse_form
from mmserve.server.gate import Gate
from mmserve.server.histograms import Histograms
from mmserve.server.media import FindFile

__all__ = ["ID_HEADER", "Service", "check_model", "shown_id"]

_ID = re.compile(r"[\x21-\x7e]{1,128}")
ID_HEADER = "X-Request-Id"


@dataclass(frozen=True, slots=True)
class Service:
    """One app's belongings, handed to every route."""

    client: Client
    config: ServerConfig
    calls: Calls
    counts: Counts
    started_s: int
    files: FileStore
    conversations: ConversationStore
    gate: Gate
    histograms: Histograms = field(default_factory=Histograms)
    renders: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))

    async def read_body(self, http: HttpRequest) -> Body:
        """The request's JSON object. Raises as `read_json`."""
        return Body(await read_json(http, self._body_limits))

    async def read_form(self, http: HttpRequest) -> dict[str, FormField]:
        """The request's form by field. Raises as `read_bytes`, and BadRequest."""
        raw = await read_bytes(http, self._body_limits)
        content_type = http.headers.get("content-type", "")
        return await asyncio.to_thread(parse_form, raw, content_type)

    @property
    def _body_limits(self) -> BodyLimits:
        return BodyLimits(self.config.max_body_bytes, self.config.body_timeout_s)

    def caller(self, http: HttpRequest) -> Caller:
        """Who sends this request, as far as its headers say. Pure."""
        return caller_of(key_of(http.headers.raw), self.config)

    def check_admin(self, http: HttpRequest) -> None:
        """Raise the 401 or 403 refusal unless the operator sends this request. Pure."""
        check_admin(http, self.config)

    def file_finder(self, http: HttpRequest) -> FindFile:
        """Finds the files of who sends this request; from any thread. Pure."""
        caller = self.caller(http)
        return lambda file_id, name: BytesSource(self.files.find(caller, file_id, name).content)

    def series(self) -> dict[str, float]:
        """What the server itself counts, in the form of `Client.counters`. Pure."""
        kept = self.files.counters() | self.conversations.counters()
        return self.counts.series() | kept | {"open_requests": float(self.gate.num_open)}


def shown_id(http: HttpRequest, body_id: str | None, prefix: str = "") -> str:
    """The id a client sees: the one it gave in body or header, else a new one. Pure."""
    given = body_id or http.headers.get(ID_HEADER)
    if given is None:
        return prefix + uuid.uuid4().hex
    if not _ID.fullmatch(given):
        message = "the request id has spaces or unprintable characters, or more than 128"
        field = "rid" if body_id else ID_HEADER
        raise BadRequest(message, field=field, reason="value")
    return given


def check_model(body: Body, model: ModelInfo) -> None:
    """Refuse a model that is not served: allowed are its name, its path, and `default`.

    Changes: the field counts as known. Raises NotFound.
    """
    asked = body.take("model", text, "default")
    if asked not in (model.name, model.path, "default"):
        message = f"the model {shown(asked)} is not served"
        hint = f"this server has {shown(model.name)}"
        raise NotFound(message, hint=hint, field="model", what="model", name=asked[:100])

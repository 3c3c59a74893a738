"""`/v1/files`: pictures and clips uploaded once, then named by id, in OpenAI's form."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.responses import Response

from mmserve.core import BadRequest
from mmserve.server.fields import shown, word
from mmserve.server.file_store import StoredFile
from mmserve.server.forms import FormField
from mmserve.server.service import Service

__all__ = ["content", "delete", "list_files", "tell", "upload"]

_purpose = word("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
_order = word("asc", "desc")
_anchor = word("created_at")
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_MOST_SECONDS = 2_592_000
_MAX_FILENAME = 255
_MOST_LISTED = 10_000


async def upload(service: Service, http: HttpRequest) -> Response:
    """Keep a file. Whether it is a picture or a clip is seen when a request names it."""
    form = await service.read_form(http)
    file = _file_of(form)
    _check_names(form)
    purpose, ends_after_s = _purpose_of(form), _end_of(form)
    # the digest of a long clip takes a while: not on the event loop
    stored = await asyncio.to_thread(
        service.files.add,
        service.caller(http),
        file.content,
        filename=file.filename or "",
        purpose=purpose,
        ends_after_s=ends_after_s,
    )
    return JSONResponse(_file_object(stored))


async def list_files(service: Service, http: HttpRequest) -> Response:
    """The caller's files, the newest first, after `after` and at most `limit`."""
    query = http.query_params
    files = await asyncio.to_thread(service.files.files, service.caller(http))
    if "purpose" in query:
        wanted = _purpose(query["purpose"], "purpose")
        files = [file for file in files if file.purpose == wanted]
    if _order(query.get("order", "desc"), "order") == "desc":
        files.reverse()
    if "after" in query:
        place = [file.id for file in files]
        start = place.index(query["after"]) + 1 if query["after"] in place else len(files)
        files = files[start:]
    limit = _limit(query.get("limit"))
    page = [_file_object(file) for file in files[:limit]]
    listing: dict[str, Any] = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(files) > limit,
    }
    return JSONResponse(listing)


async def tell(service: Service, http: HttpRequest) -> Response:
    """One file's facts. Raises NotFound."""
    return JSONResponse(_file_object(service.files.look(service.caller(http), _id(http))))


async def content(service: Service, http: HttpRequest) -> Response:
    """One file's bytes as they came; counts as a use. Raises NotFound."""
    file = service.files.find(service.caller(http), _id(http))
    headers = {"X-Content-Type-Options": "nosniff"}  # a browser must not run what was uploaded
    return Response(file.content, media_type="application/octet-stream", headers=headers)


async def delete(service: Service, http: HttpRequest) -> Response:
    """Forget one file; requests that were read keep its content. Raises NotFound."""
    service.files.remove(service.caller(http), _id(http))
    return JSONResponse({"id": _id(http), "object": "file", "deleted": True})


def _file_object(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": len(file.content),
        "created_at": int(file.created_s),
        "expires_at": int(file.expires_s),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def _id(http: HttpRequest) -> str:
    file_id: str = http.path_params["id"]
    return file_id


def _file_of(form: dict[str, FormField]) -> FormField:
    file = form.get("file")
    if file is None or file.filename is None:
        message = "the form has no file" if file is None else "file has no filename"
        raise BadRequest(message, field="file", reason="missing")
    if len(file.filename) > _MAX_FILENAME:
        message = (
            f"the filename has {len(file.filename)} characters, the most is {_MAX_FILENAME}"
        )
        raise BadRequest(message, field="file", reason="value")
    if not file.content:
        raise BadRequest("the file is empty", field="file", reason="empty")
    return file


def _check_names(form: dict[str, FormField]) -> None:
    for name in form:
        if name not in ("file", "purpose", _ANCHOR, _SECONDS):
            raise BadRequest(f"unknown field {name}", field=name, reason="unknown")


def _purpose_of(form: dict[str, FormField]) -> str:
    return _purpose(_words(form, "purpose"), "purpose")


def _end_of(form: dict[str, FormField]) -> float:
    """Seconds after which the upload wants its file to expire, used or not."""
    if _ANCHOR not in form and _SECONDS not in form:
        return inf
    _anchor(_words(form, _ANCHOR), _ANCHOR)
    return _whole(_words(form, _SECONDS), _SECONDS, _MOST_SECONDS)


def _words(form: dict[str, FormField], name: str) -> str:
    if name not in form:
        raise BadRequest(f"{name} is missing", field=name, reason="missing")
    return form[name].content.decode(errors="replace")


def _limit(words: str | None) -> int:
    return _MOST_LISTED if words is None else _whole(words, "limit", _MOST_LISTED)


def _whole(words: str, name: str, most: int) -> int:
    if not (words.isascii() and words.isdigit() and 1 <= int(words[:9]) <= most):
        message = f"{name} is {shown(words)}, allowed is 1 to {most}"
        raise BadRequest(message, field=name, reason="value")
    return int(words[:9])

"""`/v1/responses/{id}`: responses that were kept, in OpenAI's form."""

from __future__ import annotations

from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.responses import Response

from mmserve.core import BadRequest, NotFound
from mmserve.server.conversation_store import Item, Kept
from mmserve.server.fields import shown, word
from mmserve.server.openai.responses_request import INCLUDABLE
from mmserve.server.service import Service

__all__ = ["delete", "input_items", "tell"]

_MOST_LISTED = 100
_DEFAULT_LISTED = 20
_order = word("asc", "desc")
_included = word(*INCLUDABLE)
_INCLUDE = ("include", "include[]")


async def tell(service: Service, http: HttpRequest) -> Response:
    """A response as it was answered. Raises NotFound."""
    _check_query(http, "stream", "starting_after", "include_obfuscation", *_INCLUDE)
    for name in ("stream", "include_obfuscation"):
        if http.query_params.get(name, "false") != "false":
            message = f"{name} is {shown(http.query_params[name])}; what is kept is told whole"
            raise BadRequest(message, field=name, reason="unsupported", hint="leave it out")
    if "starting_after" in http.query_params:
        message = "starting_after is given, and what is kept is told whole"
        raise BadRequest(message, field="starting_after", reason="unsupported")
    return JSONResponse(dict(_find(service, http).body))


async def delete(service: Service, http: HttpRequest) -> Response:
    """Forget a response; later ones keep what they continue. Raises NotFound."""
    service.conversations.remove(service.caller(http), _id(http))
    return JSONResponse({"id": _id(http), "object": "response", "deleted": True})


async def input_items(service: Service, http: HttpRequest) -> Response:
    """What a response answers to, the latest first; with what it continues. Raises NotFound."""
    _check_query(http, "after", "limit", "order", *_INCLUDE)
    query = http.query_params
    is_descending = _order(query.get("order", "desc"), "order") == "desc"
    limit = _limit(query.get("limit", str(_DEFAULT_LISTED)))
    items = _items(_find(service, http))
    if is_descending:
        items.reverse()
    if "after" in query:
        items = items[_place(items, query["after"]) + 1 :]
    page = items[:limit]
    listing: dict[str, Any] = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }
    return JSONResponse(listing)


def _items(kept: Kept) -> list[Item]:
    """Everything that the model was shown before it answered, the first first."""
    stretches = kept.conversation.from_the_start()
    earlier = [item for one in stretches[:-1] for item in (*one.said, *one.answered)]
    return [*earlier, *kept.conversation.said]


def _place(items: list[Item], item_id: str) -> int:
    for place, item in enumerate(items):
        if item["id"] == item_id:
            return place
    message = f"after is {shown(item_id)}, which is none of the items"
    raise NotFound(message, field="after", what="item", name=item_id[:80])


def _find(service: Service, http: HttpRequest) -> Kept:
    return service.conversations.find(service.caller(http), _id(http))


def _id(http: HttpRequest) -> str:
    response_id: str = http.path_params["id"]
    return response_id


def _limit(words: str) -> int:
    if not (words.isascii() and words.isdigit() and 1 <= int(words[:9]) <= _MOST_LISTED):
        message = f"limit is {shown(words)}, allowed is 1 to {_MOST_LISTED}"
        raise BadRequest(message, field="limit", reason="value")
    return int(words[:9])


def _check_query(http: HttpRequest, *known: str) -> None:
    for name, value in http.query_params.multi_items():
        if name not in known:
            raise BadRequest(
                f"unknown parameter {name[:40]}", field=name[:40], reason="unknown"
            )
        if name in _INCLUDE:
            _included(value, "include")

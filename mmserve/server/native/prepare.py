"""A hint over HTTP: media that requests will soon ask about, named before they do.

POST /prepare {"media": [{"image": item}, {"video": item}], "cache_salt": ..}
  ->  200 {"accepted": 2}, at once; the work goes on behind
"""

from __future__ import annotations

import asyncio

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.responses import Response

from mmserve.core import BadRequest, ImagePart, VideoPart
from mmserve.server.clients import client_of, scoped_salt
from mmserve.server.fields import Body, list_of, short_text
from mmserve.server.media import MediaDefaults, clip_item, picture_item
from mmserve.server.service import Service

__all__ = ["prepare"]

_MAX_MEDIA = 64
_KINDS = {"image": picture_item, "video": clip_item}


async def prepare(service: Service, http: HttpRequest) -> Response:
    """Begin to fetch, decode and encode media; items are those of `parts` in `/generate`."""
    body = await service.read_body(http)
    find = service.file_finder(http)
    media = await asyncio.to_thread(_take_media, body, MediaDefaults.take(body, find))
    user = body.take("user", short_text, "")
    cache_salt = body.take("cache_salt", short_text, "")
    body.finish()
    caller = service.caller(http)
    client = client_of(caller, user=user, cache_salt=cache_salt)
    for part in media:
        service.client.prepare(part, cache_salt=scoped_salt(caller, cache_salt), client=client)
    return JSONResponse({"accepted": len(media)})


def _take_media(body: Body, defaults: MediaDefaults) -> tuple[ImagePart | VideoPart, ...]:
    def item(value: object, name: str) -> ImagePart | VideoPart:
        inner = Body(value, name)
        given = [kind for kind in _KINDS if inner.has(kind)]
        if len(given) != 1:
            message = f"{name} needs exactly one of {', '.join(_KINDS)}"
            raise BadRequest(message, field=name, reason="value")
        read = _KINDS[given[0]]
        part: ImagePart | VideoPart = inner.need(given[0], lambda v, n: read(v, n, defaults))
        inner.finish()
        return part

    return body.need("media", list_of(item, most=_MAX_MEDIA))

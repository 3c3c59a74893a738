"""`/v1/render`: the prompt that a chat request would have, piece by piece, not answered.

text      what the template writes around, token by token
picture   its tokens' place, its size, a small copy of it
frame     the same, with its times in the clip
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.responses import Response

from mmserve.core import Client, ConstraintRefused, PromptLook, SpanLook
from mmserve.server.chat.request import chat_call
from mmserve.server.clients import scoped_salt
from mmserve.server.service import Service

__all__ = ["render"]

_MAX_SPELLED_TOKENS = 8192
"""Tokens of which each has its text told; of later ones the piece's text is."""
_KINDS = {"image": "picture", "video": "frame"}


async def render(service: Service, http: HttpRequest) -> Response:
    """Token ids, pieces and template text of a chat body. Refuses what chat refuses.

    Few run at once, since each decodes its pictures anew.
    """
    body = await service.read_body(http)
    client, caller = service.client, service.caller(http)
    chat = chat_call(body, caller, client.model, service.file_finder(http))
    salt = scoped_salt(caller, chat.request.cache_salt)
    request = replace(chat.request, cache_salt=salt)
    try:
        async with service.renders:
            look = await asyncio.to_thread(client.render, request)
            return JSONResponse(await asyncio.to_thread(_prompt_object, client, look))
    except ConstraintRefused as error:
        raise await asyncio.to_thread(chat.refusal, error) from None


def _prompt_object(client: Client, look: PromptLook) -> dict[str, Any]:
    speller = _Speller(client)
    pieces = list(_pieces(speller, look))
    num_media = {
        kind: sum(span.num_tokens for span in look.spans if span.kind == kind)
        for kind in _KINDS
    }
    return {
        "object": "prompt",
        "model": client.model.name,
        "token_ids": list(look.token_ids),
        "text": client.detokenize(_folded(look), skip_special_tokens=False),
        "pieces": pieces,
        "clips": [
            {"timestamps_s": list(clip.timestamps_s), "note": clip.note} for clip in look.clips
        ],
        "usage": {
            "prompt_tokens": len(look.token_ids),
            "image_tokens": num_media["image"],
            "video_tokens": num_media["video"],
        },
    }


class _Speller:
    """Texts of single tokens, each asked for once. Mutable: what was asked."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[int, str] = {}
        self._num_left = _MAX_SPELLED_TOKENS

    def text(self, token_ids: Sequence[int]) -> str:
        """Text of tokens together. Pure."""
        return self._client.detokenize(token_ids, skip_special_tokens=False)

    def each(self, token_ids: Sequence[int]) -> list[str]:
        """Text of each token, of as many as may still be told. Changes: how many may."""
        token_ids = token_ids[: self._num_left]
        self._num_left -= len(token_ids)
        for token_id in token_ids:
            if token_id not in self._known:
                self._known[token_id] = self.text([token_id])
        return [self._known[token_id] for token_id in token_ids]


def _pieces(speller: _Speller, look: PromptLook) -> Iterator[dict[str, Any]]:
    """Stretches of text and spans, in order and without a gap."""
    for stretch, span in _in_order(look):
        if stretch[0] < stretch[1]:
            ids = look.token_ids[slice(*stretch)]
            yield {
                "kind": "text",
                "start": stretch[0],
                "num_tokens": len(ids),
                "text": speller.text(ids),
                "tokens": speller.each(ids),
            }
        if span is not None:
            yield _span_object(span)


def _in_order(look: PromptLook) -> Iterator[tuple[tuple[int, int], SpanLook | None]]:
    """Bounds of the text before each span and after the last one, and the span."""
    starts = [0, *(span.start + span.num_tokens for span in look.spans)]
    ends = [*(span.start for span in look.spans), len(look.token_ids)]
    yield from zip(zip(starts, ends, strict=True), [*look.spans, None], strict=True)


def _span_object(span: SpanLook) -> dict[str, Any]:
    return {
        "kind": _KINDS[span.kind],
        "start": span.start,
        "num_tokens": span.num_tokens,
        "identity": span.identity,
        "width": span.width,
        "height": span.height,
        "timestamps_s": list(span.timestamps_s),
        "pictures": [
            f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}"
            for picture in span.pictures
        ],
    }


def _folded(look: PromptLook) -> list[int]:
    """The prompt's tokens with one placeholder for each span, as the template writes it."""
    runs = (
        [*look.token_ids[start:end], *([] if span is None else [look.token_ids[end]])]
        for (start, end), span in _in_order(look)
    )
    return list(itertools.chain.from_iterable(runs))

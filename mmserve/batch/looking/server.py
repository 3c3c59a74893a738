"""A server's `/v1/render` in place of the engine's `render`.

    Request -> {"messages": [{"role", "content": [{"type": "video_url", ...}, ...]}]}
            -> POST /v1/render -> {"token_ids", "pieces", "clips"} -> PromptLook

Local files travel as data: addresses, for a server reads no paths of others.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Self

from mmserve.batch.remote import data_address
from mmserve.batch.remote.calling import called, check
from mmserve.batch.values import SAMPLING
from mmserve.core import (
    BackendFailed,
    FrameReport,
    ImagePart,
    MediaSource,
    PathSource,
    PromptLook,
    Request,
    SpanLook,
    TextPart,
    Turn,
    UnsupportedByBackend,
    UrlSource,
    VideoPart,
)

__all__ = ["ServerRenderer"]

_RENDER_S = 120.0
_OTHER_FORM = (ValueError, TypeError, KeyError, AttributeError)


class ServerRenderer:
    """Prompts as a server has them; close it, or use it in a `with`.

    Args:
        url: `http://host:port`.
        api_key: for that server.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        import httpx  # noqa: PLC0415 - takes 0.1 s, and runs without a server do without

        self._url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(
            base_url=self._url, headers=headers, timeout=_RENDER_S, trust_env=False
        )
        self._errors: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.InvalidURL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._http.close()

    def render(self, request: Request) -> PromptLook:
        """The prompt. Raises its refusal, or BackendFailed if the server has no route."""
        body = {"messages": [self._message(part) for part in request.parts if _is_said(part)]}
        response = called(
            self._url, self._errors, lambda: self._http.post("/v1/render", json=body)
        )
        check(response)
        try:
            return _look(response.json())
        except _OTHER_FORM as error:
            message = f"{self._url} rendered in another form: {type(error).__name__}"
            raise BackendFailed(message, status=response.status_code) from error

    def _message(self, part: object) -> dict[str, Any]:
        if not isinstance(part, Turn):
            raise self._unsupported(part)
        return {"role": part.role, "content": [self._content(piece) for piece in part.parts]}

    def _content(self, part: object) -> dict[str, Any]:
        match part:
            case TextPart(text):
                return {"type": "text", "text": text}
            case ImagePart(source):
                return {"type": "image_url", "image_url": {"url": self._address(source)}}
            case VideoPart(source):
                given = {name: getattr(part, name) for name in SAMPLING}
                options = {k: v for k, v in given.items() if v not in (None, False)}
                clip = {"url": self._address(source), **options}
                return {"type": "video_url", "video_url": clip}
        raise self._unsupported(part)

    def _address(self, source: MediaSource) -> str:
        match source:
            case UrlSource(url):
                return url
            case PathSource(path):
                return data_address(path)
        raise self._unsupported(source)

    def _unsupported(self, part: object) -> UnsupportedByBackend:
        kind = type(part).__name__
        return UnsupportedByBackend(f"{kind} over HTTP", parameter=kind, backend=self._url)


def _is_said(part: object) -> bool:
    """Whether a turn is more than the place where the answer goes. Pure."""
    return not (isinstance(part, Turn) and part.is_open and not part.parts)


def _look(reply: Mapping[str, Any]) -> PromptLook:
    spans = tuple(_span(piece) for piece in reply["pieces"] if piece["kind"] != "text")
    clips = tuple(
        FrameReport(tuple(clip["timestamps_s"]), clip.get("note")) for clip in reply["clips"]
    )
    return PromptLook(token_ids=tuple(reply["token_ids"]), spans=spans, clips=clips)


def _span(piece: Mapping[str, Any]) -> SpanLook:
    return SpanLook(
        identity=str(piece["identity"]),
        kind="image" if piece["kind"] == "picture" else "video",
        start=int(piece["start"]),
        num_tokens=int(piece["num_tokens"]),
        width=int(piece["width"]),
        height=int(piece["height"]),
        timestamps_s=tuple(piece["timestamps_s"]),
        pictures=tuple(
            base64.b64decode(picture.partition(",")[2]) for picture in piece["pictures"]
        ),
    )

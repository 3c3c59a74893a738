"""Comparing answers of one server: SAME, DIFF, refusals, and pictures as data URIs."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import httpx
from PIL import Image

__all__ = ["Asker", "Reply", "data_uri", "differ", "image_part", "png", "refused", "same"]

TOLERANCE = 1e-3
TIE = 1e-2
NUM_TOKENS = 8


def png(picture: Image.Image, **options: Any) -> bytes:
    """A picture as PNG bytes."""
    return encoded(picture, "PNG", **options)


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    """A picture as a file's bytes."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def data_uri(content: bytes, media_type: str = "image/png") -> str:
    """Bytes as a data URI."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def image_part(source: bytes | str) -> dict[str, Any]:
    """A picture as a content part, from bytes or an address."""
    url = data_uri(source) if isinstance(source, bytes) else source
    return {"type": "image_url", "image_url": {"url": url}}


@dataclass(frozen=True)
class Reply:
    """A response of the chat route."""

    status: int
    body: dict[str, Any]

    @property
    def usage(self) -> dict[str, Any]:
        """Token counts."""
        return self.body["usage"]

    @property
    def prompt_tokens(self) -> int:
        """All prompt tokens."""
        return self.usage["prompt_tokens"]

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from cache."""
        return self.usage["prompt_tokens_details"]["cached_tokens"]

    @property
    def image_tokens(self) -> int:
        """Prompt tokens of pictures."""
        return self.usage["prompt_tokens_details"]["image_tokens"]

    @property
    def text(self) -> str:
        """The answer."""
        return self.body["choices"][0]["message"]["content"]

    @property
    def scores(self) -> list[dict[str, Any]]:
        """Tokens with log-probabilities and the likeliest five."""
        return self.body["choices"][0]["logprobs"]["content"]

    @property
    def error(self) -> dict[str, Any]:
        """The error object."""
        return self.body["error"]


class Asker:
    """Asks a server at temperature 0, 8 tokens, with log-probabilities."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=30.0)

    def chat(self, *content: bytes | str | dict[str, Any], **fields: Any) -> Reply:
        """One user turn: bytes are pictures, text is text, other parts stand as they are."""
        parts = [_part(item) for item in content]
        return self.messages([{"role": "user", "content": parts}], **fields)

    def messages(self, messages: list[dict[str, Any]], **fields: Any) -> Reply:
        """A whole conversation."""
        body = {
            "model": "tiny",
            "messages": messages,
            "temperature": 0,
            "max_tokens": NUM_TOKENS,
            "logprobs": True,
            "top_logprobs": 5,
            **fields,
        }
        return self.post("/v1/chat/completions", body)

    def post(self, route: str, body: Any) -> Reply:
        """Any route."""
        response = self._http.post(route, json=body)
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return Reply(
            response.status_code, response.json() if is_json else {"text": response.text}
        )

    def get(self, route: str) -> httpx.Response:
        """Any route."""
        return self._http.get(route)

    def flush(self) -> None:
        """Make the next answer cold."""
        assert self._http.post("/flush_cache", params={"timeout": 10}).status_code == 200

    def cold(self, *content: bytes | str | dict[str, Any], **fields: Any) -> Reply:
        """Like `chat`, after a cache flush."""
        self.flush()
        return self.chat(*content, **fields)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _part(item: bytes | str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(item, bytes):
        return image_part(item)
    if isinstance(item, str):
        return {"type": "text", "text": item}
    return item


def same(a: Reply, b: Reply) -> None:
    """Assert equal prompt tokens, equal answer tokens, log-probabilities within 1e-3."""
    assert (a.status, b.status) == (200, 200), (a.body, b.body)
    assert a.prompt_tokens == b.prompt_tokens
    assert len(a.scores) == len(b.scores)
    for left, right in zip(a.scores, b.scores, strict=True):
        if left["bytes"] != right["bytes"]:
            assert _gap(left) < TIE, (left, right)
            return
        assert abs(left["logprob"] - right["logprob"]) <= TOLERANCE


def _gap(entry: dict[str, Any]) -> float:
    first, second = entry["top_logprobs"][:2]
    return first["logprob"] - second["logprob"]


def differ(a: Reply, b: Reply) -> None:
    """Assert that the first token's likeliest five differ by more than 0.01 somewhere."""
    assert (a.status, b.status) == (200, 200), (a.body, b.body)
    left, right = (
        {tuple(e["bytes"]): e["logprob"] for e in reply.scores[0]["top_logprobs"]}
        for reply in (a, b)
    )
    assert left.keys() != right.keys() or max(abs(left[k] - right[k]) for k in left) > TIE


def refused(asker: Asker, *content: bytes | str | dict[str, Any], **fields: Any) -> str:
    """Assert a clear 4xx, the same for a stream; give its message."""
    plain = asker.chat(*content, **fields)
    streamed = asker.chat(*content, **fields, stream=True)
    assert 400 <= plain.status < 500, plain.body
    assert streamed.status == plain.status
    assert streamed.body == plain.body
    message = plain.error["message"]
    assert plain.error.keys() == {"message", "type", "param", "code"}
    assert "Traceback" not in message
    assert len(message) < 500
    return message

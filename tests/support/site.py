"""Asking a running server in tests: bodies by field, refusals by form, streams by event."""

from __future__ import annotations

import json
from typing import Any

import httpx

from support.echo_client import EchoClient

__all__ = ["Site", "events_of"]


class Site:
    """A running server, the client behind it, and ways to ask it."""

    def __init__(self, url: str, client: EchoClient, http: httpx.Client) -> None:
        self.url, self.client, self.http = url, client, http

    def post(self, path: str, **fields: Any) -> httpx.Response:
        """A JSON body of these fields."""
        return self.http.post(path, json=fields)

    def chat(self, text: str = "hello", **fields: Any) -> httpx.Response:
        """A conversation of one turn."""
        messages = [{"role": "user", "content": text}]
        return self.post("/v1/chat/completions", **{"messages": messages, **fields})

    def refused(self, response: httpx.Response, status: int = 400) -> dict[str, Any]:
        """The error object of a refusal, checked for its form."""
        error = response.json()["error"]
        assert response.status_code == status
        assert set(error) == {"message", "type", "param", "code"}
        assert len(error["message"]) <= 300
        assert "Traceback" not in response.text
        return error


def events_of(response: httpx.Response) -> list[Any]:
    """The JSON values of a stream; its end as the word it is."""
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    words = [line.removeprefix("data: ") for line in lines]
    return [word if word == "[DONE]" else json.loads(word) for word in words]

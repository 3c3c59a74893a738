"""Requests of programs as JSON bodies of `/generate`."""

from __future__ import annotations

from mmserve.core import Request
from mmserve.core.wire import UrlOf, generate_body
from mmserve.lang.conversation import source_url

__all__ = ["request_body"]


def request_body(request: Request, url_of: UrlOf = source_url) -> dict[str, object]:
    """The JSON object to post; calls that generate are streamed. As `generate_body`."""
    return generate_body(request, url_of, is_streamed=True)

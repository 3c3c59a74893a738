"""The part of `core.ports.Client` that shows a prompt."""

from __future__ import annotations

from typing import Protocol

from mmserve.core import PromptLook, Request

__all__ = ["Renderer"]


class Renderer(Protocol):
    """An engine (every `core.ports.Client` is one) or a `ServerRenderer`."""

    def render(self, request: Request) -> PromptLook:
        """See `core.ports.Client`. Raises what the request is refused with."""
        ...

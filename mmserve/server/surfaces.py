"""Every surface as `/openapi.json` tells of it; a new one adds its dict here."""

from __future__ import annotations

from mmserve.core import ServerConfig
from mmserve.server.anthropic import schema as anthropic
from mmserve.server.describe.schema import Surface
from mmserve.server.native import schema as native
from mmserve.server.openai import schema as openai
from mmserve.server.openai import schema_responses as responses
from mmserve.server.page import schema as page
from mmserve.server.systemone import schema as systemone
from mmserve.server.watch import schema as watch

__all__ = ["surfaces_of"]

_SURFACES: tuple[Surface, ...] = (
    openai.SURFACE,
    responses.SURFACE,
    anthropic.SURFACE,
    systemone.SURFACE,
    native.SURFACE,
    page.SURFACE,
    watch.SURFACE,
)


def surfaces_of(config: ServerConfig) -> tuple[Surface, ...]:
    """What a server of this config serves. Pure."""
    return (*_SURFACES, page.FILES) if config.is_page_served else _SURFACES

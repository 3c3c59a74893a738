"""Every surface as `/openapi.json` tells of it; a new one adds its dict here."""

from __future__ import annotations

from mmserve.server.describe.schema import Surface
from mmserve.server.native import schema as native
from mmserve.server.openai import schema as openai
from mmserve.server.watch import schema as watch

__all__ = ["SURFACES"]

SURFACES: tuple[Surface, ...] = (
    openai.SURFACE,
    native.SURFACE,
    watch.SURFACE,
)

"""JSON schemas for the compiler: read whole and written plainly by `schemas`."""

from __future__ import annotations

from mmserve.constrained.schemas import JSON_OPTIONS, read_schema

__all__ = ["JSON_OPTIONS", "read_schema"]

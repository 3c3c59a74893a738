"""Refusing a model at load, by name."""

from __future__ import annotations

from typing import NoReturn

from mmserve.core import UnsupportedModel

__all__ = ["refuse"]


def refuse(architecture: str, reason: str) -> NoReturn:
    """Raise UnsupportedModel that names what is not supported."""
    message = f"model of type {architecture!r} cannot be served: {reason}"
    raise UnsupportedModel(message, architecture=architecture, reason=reason)

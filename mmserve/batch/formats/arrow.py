"""The optional package for Parquet, and its absence told."""

from __future__ import annotations

import importlib
from types import ModuleType

from mmserve.core import BadRequest

__all__ = ["arrow", "parquet"]


def arrow() -> ModuleType:
    """The package pyarrow. Raises BadRequest that says what to install."""
    return _module("pyarrow")


def parquet() -> ModuleType:
    """What pyarrow has for Parquet files. Raises BadRequest that says what to install."""
    return _module("pyarrow.parquet")


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadRequest(
            f"Parquet files need a package that is not here: {error}",
            field="format",
            reason="missing_package",
            hint='pip install "mmserve[parquet]", or use CSV or JSON lines',
        ) from None

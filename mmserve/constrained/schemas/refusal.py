"""How a schema is refused: by keyword, place and reason."""

from __future__ import annotations

from typing import NoReturn

from mmserve.core import ConstraintRefused

__all__ = ["refuse"]


def refuse(keyword: str, path: str, what: str, reason: str) -> NoReturn:
    """Raises ConstraintRefused; fields: field, reason, keyword, path (a JSON pointer)."""
    where = f" at {path}" if path else ""
    raise ConstraintRefused(
        f"JSON schema: {keyword[:60]!r}{where[:120]} {what}",
        field="json_schema",
        reason=reason,
        keyword=keyword,
        path=path,
    )

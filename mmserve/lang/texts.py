"""Texts of a program are whole: no halves of surrogate pairs, which no model can be asked."""

from __future__ import annotations

from mmserve.core import BadRequest

__all__ = ["whole_text"]


def whole_text(text: str, field: str) -> str:
    """The text itself. Raises BadRequest if it holds half of a surrogate pair. Pure."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{field} holds half of a surrogate pair at character {error.start}"
        hint = "write the whole character, both halves together"
        raise BadRequest(message, field=field, reason="surrogate", hint=hint) from error
    return text

"""Sets of characters and texts in words, for drawings."""

from __future__ import annotations

from mmserve.constrained.charsets import Ranges, category, complement

__all__ = ["label", "quoted"]

_MAX_RANGES = 6
_NAMES = ("d", "s", "w", "D", "S", "W")


def label(ranges: Ranges) -> str:
    r"""A set as one would write it: `a`, `[0-9a-f]`, `\w`, `.`, `[^"\]`. Pure."""
    others = complement(ranges)
    if others in ((), ((10, 10),)):
        return "." if others else "any"
    for letter in _NAMES:
        if ranges == category(letter, is_ascii=False):
            return rf"\{letter}"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return quoted(chr(ranges[0][0]))
    if len(others) < len(ranges):
        return f"[^{_inside(others)}]"
    return f"[{_inside(ranges)}]"


def quoted(text: str) -> str:
    """A text in quotes, with escapes for what cannot be seen. Pure."""
    return '"' + "".join(map(_shown, text)) + '"'


def _inside(ranges: Ranges) -> str:
    shown = []
    for low, high in ranges[:_MAX_RANGES]:
        dash = "-" if high > low + 1 else ""
        shown.append(_shown(chr(low)) + dash + (_shown(chr(high)) if high > low else ""))
    num_more = len(ranges) - len(shown)
    return "".join(shown) + (f" and {num_more} more" if num_more else "")


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()

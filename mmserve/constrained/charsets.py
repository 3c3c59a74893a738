"""Sets of characters as sorted ranges, with Python's meaning of the classes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

__all__ = [
    "Ranges",
    "as_class",
    "case_variants",
    "category",
    "complement",
    "find_ranges",
    "merge",
]

Ranges = tuple[tuple[int, int], ...]
"""Inclusive code point ranges, sorted, apart from each other."""

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_ODD_CASES = [
    chr(int(code, 16))
    for code in [
        "4b",
        "74",
        "c5",
        "130",
        "131",
        "17f",
        "345",
        "390",
        "3b0",
        "3b2",
        "3b5",
        "3b8",
        "3b9",
        "3ba",
        "3c0",
        "3c1",
        "3c2",
        "3c3",
        "3c6",
        "3d0",
        "3d1",
        "3d5",
        "3d6",
        "3f0",
        "3f1",
        "3f5",
        "1e61",
        "1e9b",
        "1fb3",
        "fb05",
        "fb06",
    ]
]
"""Characters that share a case with others beyond their own upper and lower forms."""


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The union, without surrogates. Pure."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    first, last = _SURROGATES
    kept: list[tuple[int, int]] = []
    for low, high in merged:
        pieces = [(low, min(high, first - 1)), (max(low, last + 1), high)]
        kept += [(start, end) for start, end in pieces if start <= end]
    return tuple(kept)


def complement(ranges: Ranges) -> Ranges:
    """Every other character, without surrogates. Pure."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), _LAST]
    return merge((low, high) for low, high in zip(starts, ends, strict=True) if low <= high)


@functools.cache
def _everything() -> str:
    return "".join(map(chr, range(_LAST + 1)))


@functools.lru_cache(256)
def find_ranges(class_text: str, flags: int) -> Ranges:
    """The characters that Python's `re` puts into a class, by asking it about each.

    Pure. Cost: tens of milliseconds for a class not asked before.
    """
    found = re.finditer(f"{class_text}+", _everything(), flags)
    return merge((match.start(), match.end() - 1) for match in found)


def category(letter: str, *, is_ascii: bool) -> Ranges:
    r"""The characters of `\d`, `\D`, `\s`, `\S`, `\w` or `\W`. Pure."""
    return find_ranges(rf"[\{letter}]", re.ASCII if is_ascii else 0)


@functools.lru_cache(1024)
def case_variants(character: str, flags: int) -> Ranges:
    """Characters that match this one if case is ignored; perhaps not all exotic ones. Pure."""
    near = {character, character.lower(), character.upper()}
    near |= {form for one in near for form in (one.lower(), one.upper(), one.title())}
    candidates = {one for one in [*near, *_ODD_CASES] if len(one) == 1}
    pattern = re.compile(re.escape(character), flags | re.IGNORECASE)
    return merge((ord(one), ord(one)) for one in candidates if pattern.fullmatch(one))


def as_class(ranges: Ranges) -> str:
    """The set in the syntax of Rust's regex crate; for one character just that. Pure."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return rf"\x{{{ranges[0][0]:x}}}"
    inside = "".join(
        rf"\x{{{low:x}}}" if low == high else rf"\x{{{low:x}}}-\x{{{high:x}}}"
        for low, high in ranges
    )
    return f"[{inside}]"

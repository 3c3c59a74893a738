"""Sets of characters as sorted ranges, with Python's meaning of the classes."""

from __future__ import annotations

import functools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import numpy as np

__all__ = [
    "Ranges",
    "as_class",
    "category",
    "complement",
    "has_case",
    "ignoring_case",
    "merge",
]

Ranges = tuple[tuple[int, int], ...]
"""Inclusive code point ranges, sorted, apart from each other."""

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_BLOCK = 256


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
        if high < first or low > last:
            kept.append((low, high))
        else:
            pieces = [(low, first - 1), (last + 1, high)]
            kept += [(start, end) for start, end in pieces if start <= end]
    return tuple(kept)


def complement(ranges: Ranges) -> Ranges:
    """Every other character, without surrogates. Pure."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), _LAST]
    return merge((low, high) for low, high in zip(starts, ends, strict=True) if low <= high)


def category(letter: str, *, is_ascii: bool) -> Ranges:
    r"""The characters of `\d`, `\D`, `\s`, `\S`, `\w` or `\W`. Pure.

    Cost: tens of milliseconds for the first of its kind.
    """
    if letter.isupper():
        return _opposite(letter, is_ascii)
    return _found(letter, is_ascii)


def has_case(code: int) -> bool:
    """Whether a character may match others than itself when case is ignored. Pure."""
    return chr(code) in _cased()


@functools.lru_cache(1024)
def ignoring_case(items: tuple[tuple[int, int | None], ...], *, is_ascii: bool) -> Ranges:
    r"""The characters that a class matches under `re.IGNORECASE`.

    Python itself is asked about each character that has a case, since its rules have corners:
    `[\U00010400x]` does not match U+10400, `[\U00010400-\U00010400x]` does.

    Args:
        items: code points with None, and inclusive ranges of them, as the pattern has them.
        is_ascii: whether only ASCII letters have cases.

    Pure. Cost: 0.1 ms for a class not asked before, and 0.1 ms for each 1,500 characters.
    """
    inside = "".join(
        rf"\U{low:08x}" if high is None else rf"\U{low:08x}-\U{high:08x}" for low, high in items
    )
    flags = re.IGNORECASE | (re.ASCII if is_ascii else 0)
    cased = _cased()
    found = re.findall(f"[{inside}]", cased, flags)
    ranges = merge((low, low if high is None else high) for low, high in items)
    lost: set[str] = set()
    for low, high in ranges:
        lost.update(cased[bisect_left(cased, chr(low)) : bisect_right(cased, chr(high))])
    lost.difference_update(found)
    added = merge([*ranges, *((ord(one), ord(one)) for one in found)])
    if lost:
        added = complement(merge([*complement(added), *((ord(one), ord(one)) for one in lost)]))
    return added


def as_class(ranges: Ranges) -> str:
    """The set in the syntax of Rust's regex crate; for one character just that. Pure."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return rf"\x{{{ranges[0][0]:x}}}"
    inside = "".join(
        rf"\x{{{low:x}}}" if low == high else rf"\x{{{low:x}}}-\x{{{high:x}}}"
        for low, high in ranges
    )
    return f"[{inside}]"


@functools.cache
def _opposite(letter: str, is_ascii: bool) -> Ranges:  # noqa: FBT001  a key of the cache
    return complement(_found(letter.lower(), is_ascii))


@functools.cache
def _found(letter: str, is_ascii: bool) -> Ranges:  # noqa: FBT001  a key of the cache
    flags = re.ASCII if is_ascii else 0
    text = _everything(0x80 if is_ascii else _LAST + 1)
    found = re.finditer(rf"\{letter}+", text, flags)
    return merge((match.start(), match.end() - 1) for match in found)


@functools.cache
def _cased() -> str:
    """All characters with another upper, lower or title form, and these forms; about 2,900."""
    text = _everything(_LAST + 1)
    found: set[str] = set()
    for start in range(0, len(text), _BLOCK):
        block = text[start : start + _BLOCK]
        if {block.lower(), block.upper(), block.title()} == {block}:
            continue
        for one in block:
            forms = {one, one.lower(), one.upper(), one.title()}
            if len(forms) > 1:
                found |= {form for form in forms if len(form) == 1}
    return "".join(sorted(found))


def _everything(num_characters: int) -> str:
    codes = np.arange(num_characters, dtype="<u4")
    return codes.tobytes().decode("utf-32-le", "surrogatepass")

"""Whether a text matches a pattern of the schema, by every reading a validator may take."""

from __future__ import annotations

import functools
import re
import warnings

__all__ = ["holds", "is_unsure", "may_hold"]

_UNSURE = re.compile(r"\\[dDwWsSbB]|(?<!\\)\.|\(\?")


@functools.lru_cache(maxsize=512)
def _compiled(pattern: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return re.compile(pattern), re.compile(pattern, re.ASCII)


def holds(pattern: str, text: str) -> bool:
    r"""Whether it matches somewhere, whatever `\d` and `\w` mean outside of ASCII. Pure."""
    return all(one.search(text) for one in _compiled(pattern))


def is_unsure(pattern: str) -> bool:
    """Whether validators may read it differently beyond a line break at the end. Pure."""
    return _UNSURE.search(pattern) is not None


def may_hold(pattern: str, text: str) -> bool:
    r"""Whether it matches somewhere by one of the readings. Pure."""
    return any(one.search(text) for one in _compiled(pattern))

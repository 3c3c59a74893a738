"""Stops by regular expression, watched for while an answer comes."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["StopWatch"]


class StopWatch:
    """Ends an answer before the match that is complete first; of several, the leftmost.

    Text is held back until the end, since a pattern may begin anywhere. Empty matches do not
    count. Mutable; one per answer.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._held = ""
        self.matched: str | None = None

    def feed(self, piece: str) -> str:
        """Text that counts now that `piece` has come. Changes: the watch.

        Cost: a search of the whole answer for each character, if there are patterns.
        """
        if not self._patterns:
            return piece
        for character in piece if self.matched is None else "":
            self._held += character
            matches = [pattern.search(self._held) for pattern in self._patterns]
            found = [match for match in matches if match is not None and match.group()]
            if found:
                first = min(found, key=lambda match: match.start())
                self.matched = first.group()
                self._held = self._held[: first.start()]
                return self.close()
        return ""

    def close(self) -> str:
        """Text still held back, when no more will come. Changes: the watch."""
        released, self._held = self._held, ""
        return released

"""What an API leaves to us about an answer's text: stops it does not take, space it repeats."""

from __future__ import annotations

from collections.abc import Sequence

from mmserve.core import RawPart, TextPart, Turn

__all__ = ["HeldStops", "OwedSpace", "space_at_end"]


def space_at_end(turn: Turn) -> str:
    """White space at the end of an open turn; empty for others. Pure."""
    end = ""
    for piece in reversed(turn.parts if turn.is_open else ()):
        if not isinstance(piece, TextPart | RawPart):
            break
        end = piece.text + end
    return end[len(end.rstrip()) :]


class OwedSpace:
    """Leaves out white space that an answer repeats from the turn it continues.

    turn "So: " sent as "So:"   owed " "    answer " 4"  ->  "4"

    APIs take no white space at the end of a turn to continue. Mutable; one per answer.
    """

    def __init__(self, owed: str) -> None:
        self._owed = owed

    def feed(self, piece: str) -> str:
        """Text that counts now that `piece` has come. Changes: what is still owed."""
        while self._owed and piece:
            if piece[0] != self._owed[0]:
                self._owed = ""
                break
            self._owed, piece = self._owed[1:], piece[1:]
        return piece


class HeldStops:
    """Ends an answer before the stop text that is complete first; of several, the leftmost.

    Only text that may still become a stop is held back, so how an answer comes in pieces never
    shows. Mutable; one per answer.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, piece: str) -> str:
        """Text that counts now that `piece` has come. Changes: the watch."""
        if self.matched is not None:
            return ""
        self._held += piece
        places = [(self._held.find(stop), stop) for stop in self._stops]
        found = [(start + len(stop), start, stop) for start, stop in places if start >= 0]
        if found:
            _, start, self.matched = min(found)
            released, self._held = self._held[:start], ""
            return released
        num_kept = max((self._num_begun(stop) for stop in self._stops), default=0)
        split = len(self._held) - num_kept
        released, self._held = self._held[:split], self._held[split:]
        return released

    def close(self) -> str:
        """Text still held back, when no more will come. Changes: the watch."""
        released, self._held = self._held, ""
        return released

    def _num_begun(self, stop: str) -> int:
        """How many characters at the end of the held text begin this stop. Pure."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)

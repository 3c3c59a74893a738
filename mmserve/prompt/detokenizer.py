r"""Tokens of an answer to text that can no longer change.

tokens      "He"  "llo\n"  "\nQ"  ":..."      stop text "\n\nQ:"
released    "He"  "llo"     ""      ""          held back: "\n", "\n\nQ"; match
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from mmserve.constrained import TextSearch
from mmserve.prompt.tokenizer import Tokenizer

__all__ = ["Detokenizer"]


class Detokenizer:
    """Text of one answer as it grows.

    Joined, the released pieces are the text of all tokens, cut at the first stop text or match
    of a stop pattern: the one that is complete first, and of those complete at the same
    character the longest. So the answer's end does not depend on how its text was cut into
    tokens.

    Args:
        tokenizer: gives each token's exact bytes.
        stop: texts that end the answer.
        skip_special_tokens: leave control tokens out of the text.
        no_stop_trim: keep the stop text in the answer.
        search: finds patterns that end the answer; used up.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        skip_special_tokens: bool = True,
        no_stop_trim: bool = False,
        search: TextSearch | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._no_stop_trim = no_stop_trim
        self._search = search
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._num_released = 0
        self._num_exempt = 0
        self._match: str | None = None

    @property
    def match(self) -> str | None:
        """The stop text, or the pattern, that ended the answer, or None so far."""
        return self._match

    def push(self, token_id: int, *, may_stop: bool = True) -> str:
        """Text that became certain with this token; empty after a match.

        With `may_stop` False (before `min_new_tokens`) a stop text complete now does not count.
        Changes: the state.
        """
        if token_id in self._hidden:
            return ""
        return self.push_bytes(self._tokenizer.piece(token_id), may_stop=may_stop)

    def push_bytes(self, piece: bytes, *, may_stop: bool = True) -> str:
        """Like `push`, for text in other portions than tokens. Changes: the state."""
        if self._match is not None:
            return ""
        return self._release(self._decoder.decode(piece), may_stop=may_stop)

    def flush(self) -> str:
        """What was held back, at the end of the answer; half a character becomes U+FFFD.

        Changes: the state.
        """
        if self._match is not None:
            return ""
        released = self._release(self._decoder.decode(b"", final=True), may_stop=True)
        rest, self._held = self._held, ""
        return released + rest

    def _release(self, text: str, *, may_stop: bool) -> str:
        num_old = len(self._held)
        self._held += text
        if not may_stop:
            self._num_exempt = len(self._held)
        first = max(num_old, self._num_exempt)
        found = min(
            filter(None, (self._find(first), self._find_pattern(text, first))), default=None
        )
        if found is not None:
            end, start, self._match = found
            released, self._held = self._held[: end if self._no_stop_trim else start], ""
            return released
        cut = len(self._held) - self._num_kept()
        released, self._held = self._held[:cut], self._held[cut:]
        self._num_released += len(released)
        self._num_exempt = max(self._num_exempt - len(released), 0)
        return released

    def _find(self, num_old: int) -> tuple[int, int, str] | None:
        """The first stop text complete after `num_old` characters, as (end, start, text)."""
        best: tuple[int, int, str] | None = None
        for text in self._stop:
            start = self._held.find(text, max(num_old - len(text) + 1, 0))
            if start >= 0:
                found = (start + len(text), start, text)
                best = found if best is None else min(best, found)
        return best

    def _find_pattern(self, new: str, num_old: int) -> tuple[int, int, str] | None:
        """The first match in the held text, which ends with `new`; as (end, start, pattern).

        Changes: the search.
        """
        if self._search is None:
            return None
        for end, character in enumerate(new, len(self._held) - len(new) + 1):
            found = self._search.feed(character)
            if found is not None and end > num_old:
                return end, found[0] - self._num_released, found[1]
        return None

    def _num_kept(self) -> int:
        """Length of the longest ending that a stop text or match may begin with."""
        start = None if self._search is None else self._search.start
        num_kept = 0 if start is None else len(self._held) + self._num_released - start
        longest = max((len(text) - 1 for text in self._stop), default=0)
        for size in range(min(longest, len(self._held)), num_kept, -1):
            if any(text.startswith(self._held[-size:]) for text in self._stop):
                return size
        return num_kept

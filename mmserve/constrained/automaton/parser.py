"""One answer's place in an automaton."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.automaton.automaton import Automaton
from mmserve.core import Broken

__all__ = ["AutomatonParser"]


class AutomatonParser:
    """A `Parser` over an automaton: the states after each token so far. Mutable."""

    def __init__(self, automaton: Automaton, states: Sequence[int] = ()) -> None:
        self._automaton = automaton
        self._pieces = automaton.vocabulary.text_pieces
        self._states = list(states) or [automaton.start]

    def allowed(self) -> NDArray[np.uint32]:
        """See `Parser`. Pure."""
        return self._automaton.allowed(self._states[-1])

    def consume(self, token_id: int) -> bool:
        """See `Parser`. Changes: the state."""
        if not 0 <= token_id < len(self._pieces):
            return False
        piece = self._pieces[token_id]
        state = self._automaton.after(self._states[-1], piece) if piece else None
        if state is None:
            return False
        self._states.append(state)
        return True

    def rollback(self, num_tokens: int) -> None:
        """See `Parser`. Raises Broken if there are fewer. Changes: the state."""
        if not 0 <= num_tokens < len(self._states):
            held = len(self._states) - 1
            raise Broken(f"{num_tokens} tokens cannot be taken back of {held}")
        if num_tokens:
            del self._states[-num_tokens:]

    def forced(self) -> bytes:
        """See `Parser`. Pure."""
        return self._automaton.forced(self._states[-1])

    def follow(self) -> bytes:
        """See `Parser`. Pure."""
        return self._automaton.next_bytes(self._states[-1])

    def fork(self) -> AutomatonParser:
        """See `Parser`. Pure."""
        return AutomatonParser(self._automaton, self._states)

    @property
    def is_accepting(self) -> bool:
        """See `Parser`."""
        return self._automaton.is_accepting(self._states[-1])

    @property
    def is_final(self) -> bool:
        """See `Parser`."""
        return self._automaton.is_final(self._states[-1])

    @property
    def state(self) -> int:
        """The automaton's state now, for drawings."""
        return self._states[-1]

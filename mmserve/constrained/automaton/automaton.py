"""An automaton as answers use it: shared by all of them, with masks that are remembered."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.automaton.machine import Edge, Machine
from mmserve.constrained.automaton.memo import MaskMemo
from mmserve.constrained.vocabulary import Vocabulary

__all__ = ["Automaton"]


class Automaton:
    """The texts of a constraint over the bytes and tokens of a vocabulary.

    States are whole numbers; they mean nothing outside of their automaton. Safe from any
    thread; never changes but for the masks that it remembers.

    Args:
        machine: states and where they lead.
        vocabulary: the model's tokens.
        mask_bytes: most bytes of masks that are remembered.
    """

    def __init__(self, machine: Machine, vocabulary: Vocabulary, mask_bytes: int) -> None:
        self.machine = machine
        self.vocabulary = vocabulary
        self.start = machine.start
        self._masks = MaskMemo(machine.mask, mask_bytes)

    def after(self, state: int, piece: bytes) -> int | None:
        """The state after more bytes; None if they do not fit. Pure."""
        return self.machine.after(state, piece)

    def allowed(self, state: int) -> NDArray[np.uint32]:
        """Bitmask uint32 [W] of text tokens that may come next; not to be written.

        Changes: the masks remembered.
        """
        return self._masks.get(state)

    def forced(self, state: int) -> bytes:
        """Bytes that must come, up to a branching, where a text may end, or 1,024 bytes.

        May end inside of a character. Pure.
        """
        return self.machine.forced(state)

    def next_bytes(self, state: int) -> bytes:
        """Bytes that may come next, sorted. Pure."""
        return self.machine.next_bytes(state)

    def is_accepting(self, state: int) -> bool:
        """Whether a text may end there. Pure."""
        return self.machine.is_accepting(state)

    def is_final(self, state: int) -> bool:
        """Whether a text may end there, and nothing may follow. Pure."""
        return self.machine.is_final(state)

    def edges(self, state: int) -> tuple[Edge, ...]:
        """Ways out of a state for a drawing, chains of states with a single one compressed.

        From a state between characters they lead to such states. Pure.
        """
        return self.machine.edges(state)

    @property
    def num_bytes(self) -> int:
        """Estimate of memory held now, masks included."""
        return self.machine.num_bytes + self._masks.num_bytes

"""What the two kinds of automata have in common, and how their edges are told for drawings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_FORCED", "Edge", "Machine"]

MAX_FORCED = 1024
"""Most bytes that `forced` looks ahead."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A way out of a state.

    Args:
        label: the characters of which one must come, or the text that must, in words.
        target: the state after it.
        num_characters: how many characters are read on the way; more than one if states with a
            single way out were compressed.
    """

    label: str
    target: int
    num_characters: int = 1


class Machine(Protocol):
    """States and where they lead. Never changes but for what is remembered."""

    @property
    def start(self) -> int:
        """The state at the start of a text."""
        ...

    @property
    def num_bytes(self) -> int:
        """Estimate of memory held, without masks."""
        ...

    def after(self, state: int, piece: bytes) -> int | None:
        """The state after more bytes; None if they do not fit. Pure."""
        ...

    def next_bytes(self, state: int) -> bytes:
        """Bytes that may come next, sorted. Pure."""
        ...

    def forced(self, state: int) -> bytes:
        """Bytes that must come, as many as `MAX_FORCED`. Pure."""
        ...

    def is_accepting(self, state: int) -> bool:
        """Whether a text may end there."""
        ...

    def is_final(self, state: int) -> bool:
        """Whether it may, and nothing may follow."""
        ...

    def mask(self, state: int) -> NDArray[np.uint32]:
        """Bitmask uint32 [W] of text tokens that may come next. Pure."""
        ...

    def edges(self, state: int) -> tuple[Edge, ...]:
        """Ways out of a state, chains of states with a single one compressed. Pure."""
        ...

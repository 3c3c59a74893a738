"""The automaton of choices: a trie that is never built, since sorted options are one already.

    options  0 "car"  1 "cart"  2 "dog"        after "ca": options [0, 2), 2 bytes read

A state is the first option that begins with what was read, and how many bytes that are; the
others stand behind it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.automaton.bytes_trie import bytes_trie
from mmserve.constrained.automaton.labels import quoted
from mmserve.constrained.automaton.machine import MAX_FORCED, Edge
from mmserve.constrained.vocabulary import Vocabulary

__all__ = ["OptionMachine"]

_PAST = b"\xff"  # sorts behind every byte of a text


class OptionMachine:
    """A `Machine` over choices; state = first option * stride + bytes read. Never changes.

    Args:
        options: texts, at least one.
        vocabulary: the model's tokens.
    """

    def __init__(self, options: Sequence[str], vocabulary: Vocabulary) -> None:
        self._options = sorted({one.encode() for one in options})
        self._stride = max(map(len, self._options)) + 1
        self._content = np.frombuffer(b"".join(self._options), dtype=np.uint8)
        self._lengths = np.array([len(one) for one in self._options], dtype=np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._trie = bytes_trie(vocabulary)

    @property
    def start(self) -> int:
        """See `Machine`."""
        return 0

    @property
    def num_bytes(self) -> int:
        """See `Machine`."""
        return 2 * len(self._content) + 64 * len(self._options)

    def after(self, state: int, piece: bytes) -> int | None:
        """See `Machine`. Pure."""
        first, num_read = divmod(state, self._stride)
        wanted = self._options[first][:num_read] + piece
        found = bisect_left(self._options, wanted, first)
        if found == len(self._options) or not self._options[found].startswith(wanted):
            return None
        return found * self._stride + len(wanted)

    def next_bytes(self, state: int) -> bytes:
        """See `Machine`. Pure."""
        first, past, read = self._range(state)
        found = bytearray()
        first += len(self._options[first]) == len(read)
        while first < past:
            found.append(self._options[first][len(read)])
            first = bisect_left(self._options, read + found[-1:] + _PAST, first, past)
        return bytes(found)

    def forced(self, state: int) -> bytes:
        """See `Machine`. Pure."""
        first, past, read = self._range(state)
        one, other = self._options[first], self._options[past - 1]
        most = min(len(one), len(other), len(read) + MAX_FORCED)
        num_same = len(read)
        while num_same < most and one[num_same] == other[num_same]:
            num_same += 1
        return one[len(read) : num_same]

    def is_accepting(self, state: int) -> bool:
        """See `Machine`."""
        first, num_read = divmod(state, self._stride)
        return len(self._options[first]) == num_read

    def is_final(self, state: int) -> bool:
        """See `Machine`."""
        return self.is_accepting(state) and self._past(state) == state // self._stride + 1

    def mask(self, state: int) -> NDArray[np.uint32]:
        """See `Machine`. Pure."""
        first, past, read = self._range(state)
        trie, offset = self._trie, len(read)
        fits = np.zeros(trie.num_nodes + 1, dtype=np.bool_)
        going = np.arange(first, past)
        node = np.zeros(past - first, dtype=np.int64)
        while len(going):
            longer = self._lengths[going] > offset
            going, node = going[longer], node[longer]
            node = trie.below(node, self._content[self._starts[going] + offset])
            fits[node] = True
            known = node != trie.num_nodes
            going, node = going[known], node[known]
            offset += 1
        fits[trie.num_nodes] = False
        return np.packbits(fits[trie.node], bitorder="little").view("<u4")

    def edges(self, state: int) -> tuple[Edge, ...]:
        """See `Machine`. Pure."""
        found = []
        for byte in self.next_bytes(state):
            piece = bytes((byte,))
            goal = self.after(state, piece)
            if goal is not None:
                piece += self.forced(goal)
                target = self.after(state, piece)
                text = piece.decode(errors="backslashreplace")
                found.append(Edge(quoted(text), goal if target is None else target, len(text)))
        return tuple(found)

    def _past(self, state: int) -> int:
        return self._range(state)[1]

    def _range(self, state: int) -> tuple[int, int, bytes]:
        """The options `[first, past)` that begin with what was read, and that."""
        first, num_read = divmod(state, self._stride)
        read = self._options[first][:num_read]
        return first, bisect_left(self._options, read + _PAST, first), read

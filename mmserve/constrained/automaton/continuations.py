r"""A pattern as what may still come: the classes that may be read next, and what comes then.

Built from the right, so each class knows at once what may come after it:

    a(b|c)*d    start: a -> 1    1: b -> 1, c -> 1, d -> 2    2: the end

A turn of an endless repeat is followed by the repeat itself, which is not known before the turn
is; a marker stands for it until all is built. Turns never match the empty text: a body that may
be empty gives way to its other texts, which makes the number of links linear in `(a?){500}`.

Source: Antimirov, "Partial derivatives of regular expressions and finite automaton
constructions", 1996; we build the derivatives without rewriting the expression.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.constrained.automaton.limits import Work
from mmserve.constrained.charsets import Ranges
from mmserve.constrained.regex_tree import Chars, Concat, Either, Node, Repeat

__all__ = ["Continuations", "continuations"]

_MAX_LINKS = 300_000
_END = -1
_Members = frozenset[int]
"""Positions from 0; `_END`; markers of repeats, below `_END`."""


@dataclass(frozen=True, slots=True)
class Continuations:
    """What may still come, by continuation.

    Args:
        classes: the sets of characters of the pattern, each once.
        nexts: for each continuation, the pairs of a class that may be read next (its number)
            and the continuation after it.
        is_end: for each, whether the text may end there.
        start: the continuation at the start of the text.
    """

    classes: tuple[Ranges, ...]
    nexts: tuple[tuple[tuple[int, int], ...], ...]
    is_end: tuple[bool, ...]
    start: int


def continuations(tree: Node) -> Continuations:
    """The continuations of a pattern. Raises ConstraintRefused if they are too many. Pure."""
    return _Builder().build(tree)


class _Builder:
    def __init__(self) -> None:
        self._work = Work("links between its characters", _MAX_LINKS)
        self._classes: dict[Ranges, int] = {}
        self._known_classes: dict[int, int] = {}  # hashing a large class each time is slow
        self._positions: list[tuple[int, int]] = []
        self._continuations: dict[_Members, int] = {}
        self._repeats: list[_Members] = []

    def build(self, tree: Node) -> Continuations:
        start = self._number(self._before(tree, frozenset((_END,))))
        nexts: list[tuple[tuple[int, int], ...]] = []
        is_end: list[bool] = []
        for members in self._resolved():
            is_end.append(_END in members)
            places = {self._positions[one] for one in members if one >= 0}
            nexts.append(tuple(sorted(places)))
        return Continuations(tuple(self._classes), tuple(nexts), tuple(is_end), start)

    def _before(self, node: Node, after: _Members) -> _Members:
        """What may come where the node comes and then `after`."""
        if isinstance(node, Chars):
            self._positions.append((self._class(node), self._number(after)))
            return frozenset((len(self._positions) - 1,))
        if isinstance(node, Concat):
            for part in reversed(node.parts):
                after = self._before(part, after)
            return after
        if isinstance(node, Either):
            found: set[int] = set()
            for option in node.options:
                found |= self._before(option, after)
            return self._counted(frozenset(found))
        if isinstance(node, Repeat):
            return self._before_repeat(node, after)
        raise TypeError(node)

    def _before_repeat(self, node: Repeat, after: _Members) -> _Members:
        if node.high is None:
            marker = _END - 1 - len(self._repeats)
            self._repeats.append(frozenset())
            turn = self._before(node.body, frozenset((marker,)))
            may_be_empty = node.low == 0 or marker in turn
            turn -= {marker}
            loop = self._counted(turn | after)
            self._repeats[_END - 1 - marker] = loop
            found, num_more = (loop, 0) if may_be_empty else (turn, node.low - 1)
        else:
            found, num_more = after, node.low
            for _ in range(node.high - node.low):
                turn = self._before(node.body, found)
                found = self._counted((turn - found if found <= turn else turn) | after)
        for _ in range(num_more):
            turn = self._before(node.body, found)
            found = self._counted((turn - found) | after if found <= turn else turn)
        return found

    def _class(self, node: Chars) -> int:
        number = self._known_classes.get(id(node))
        if number is None:
            number = self._classes.setdefault(node.ranges, len(self._classes))
            self._known_classes[id(node)] = number
        return number

    def _number(self, members: _Members) -> int:
        number = self._continuations.get(members)
        if number is None:
            self._counted(members)
            number = self._continuations[members] = len(self._continuations)
        return number

    def _counted(self, members: _Members) -> _Members:
        self._work.add(len(members))
        return members

    def _resolved(self) -> list[_Members]:
        """All continuations with what the markers stand for; outer repeats come first."""
        for number, members in enumerate(self._repeats):
            self._repeats[number] = self._without_markers(members)
        return [self._without_markers(members) for members in self._continuations]

    def _without_markers(self, members: _Members) -> _Members:
        markers = [one for one in members if one < _END]
        for marker in markers:
            members = members - {marker} | self._repeats[_END - 1 - marker]
        return self._counted(members) if markers else members

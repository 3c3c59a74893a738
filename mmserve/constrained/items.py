"""Reads JSON while it is written, and tells the items of unique arrays apart.

{"tags":["a","b"     frames: object, unique array that has seen a and b
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmserve.constrained.schemas import NOWHERE, Position, key_of

__all__ = ["NO_ITEM", "Frame", "State", "TextReader"]

_OPEN = {0x5B: True, 0x7B: False}
_CLOSE = b"]}"
_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
NO_ITEM = -1


@dataclass(frozen=True, slots=True)
class Frame:
    """An array or object that is open."""

    is_array: bool
    position: int
    is_unique: bool = False
    seen: frozenset[Any] = frozenset()
    texts: tuple[bytes, ...] = ()
    """The items that are strings, as they are written."""
    begin: int = NO_ITEM
    """Where the item began in the text, until it is counted."""
    order: int = 0
    is_key: bool = False
    below: int = NOWHERE
    """The position of the value of the last key."""


@dataclass(frozen=True, slots=True)
class State:
    """How far the text is read."""

    frames: tuple[Frame, ...] = ()
    num_read: int = 0
    string_begin: int = NO_ITEM
    is_escaped: bool = False

    @property
    def is_watching(self) -> bool:
        """Whether an item may repeat one that stands in its array."""
        return any(frame.seen for frame in self.frames)


class TextReader:
    """Reads text by a map of positions. Never changes."""

    def __init__(self, positions: Sequence[Position]) -> None:
        self._positions = positions

    def read(self, state: State, text: bytes) -> State | None:
        """The state after a text that goes on where the state stands; None: an item repeats."""
        for at in range(state.num_read, len(text)):
            found = self._step(state, text, at)
            if found is None:
                return None
            state = replace(found, num_read=at + 1)
        return state

    def _step(self, state: State, text: bytes, at: int) -> State | None:
        byte = text[at]
        if state.string_begin != NO_ITEM:
            return self._in_string(state, text, at)
        found: State | None = state
        if byte == _QUOTE:
            found = replace(state, string_begin=at)
        elif byte in _OPEN:
            found = self._opened(state, at, is_array=_OPEN[byte])
        elif byte in _CLOSE or byte == _COMMA:
            found = self._next(state, text, at)
        elif byte == _COLON:
            found = _with_top(state, is_key=False)
        return found

    def _in_string(self, state: State, text: bytes, at: int) -> State | None:
        if state.is_escaped:
            return replace(state, is_escaped=False)
        if text[at] == _BACKSLASH:
            return replace(state, is_escaped=True)
        if text[at] != _QUOTE:
            return state
        ended = replace(state, string_begin=NO_ITEM)
        top = state.frames[-1] if state.frames else None
        if top is None or not top.is_key:
            return _counted(ended, text, at + 1)
        below = NOWHERE
        if top.position != NOWHERE:
            position = self._positions[top.position]
            name = json.loads(text[state.string_begin : at + 1])
            below = position.names.get(name, position.other_names)
        return _with_top(ended, below=below)

    def _opened(self, state: State, at: int, *, is_array: bool) -> State:
        number = self._below(state.frames[-1]) if state.frames else 0
        is_unique = is_array and number != NOWHERE and self._positions[number].is_unique
        frame = Frame(
            is_array,
            number,
            is_unique,
            begin=at + 1 if is_array else NO_ITEM,
            is_key=not is_array,
        )
        return replace(state, frames=(*state.frames, frame))

    def _below(self, frame: Frame) -> int:
        if frame.position == NOWHERE or not frame.is_array:
            return frame.below
        position = self._positions[frame.position]
        is_listed = frame.order < len(position.items)
        return position.items[frame.order] if is_listed else position.other_items

    def _next(self, state: State, text: bytes, at: int) -> State | None:
        """After an item or property: the next one, or the end of the array or object."""
        counted = _counted(state, text, at)
        if counted is None or not counted.frames:
            return counted
        top = counted.frames[-1]
        if text[at] == _COMMA:
            if top.is_array:
                return _with_top(counted, begin=at + 1, order=top.order + 1)
            return _with_top(counted, is_key=True)
        closed = replace(counted, frames=counted.frames[:-1])
        return _counted(closed, text, at + 1)


def _with_top(state: State, **changes: Any) -> State:  # noqa: ANN401 - fields of a frame
    if not state.frames:
        return state
    return replace(state, frames=(*state.frames[:-1], replace(state.frames[-1], **changes)))


def _counted(state: State, text: bytes, end: int) -> State | None:
    """With the item that ends here among those that were seen; None if it was seen before."""
    top = state.frames[-1] if state.frames else None
    if top is None or not top.is_unique or not NO_ITEM < top.begin < end:
        return state
    key = key_of(json.loads(text[top.begin : end]))
    if key in top.seen:
        return None
    texts = (*top.texts, text[top.begin : end]) if isinstance(key, str) else top.texts
    return _with_top(state, seen=top.seen | {key}, texts=texts, begin=NO_ITEM)

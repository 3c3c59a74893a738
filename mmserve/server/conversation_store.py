"""Answered conversations in memory: each belongs to who asked, the least recently used leave.

    response A -- hi, hello --+-- and then? -- this   response B, continues A
                              `-- or else?  -- that   response C, continues A

A response holds its conversation to the beginning; what several have in common is held once,
and stays until the last of them has left. So B can be continued when A was deleted.

    num_bytes = what all kept responses say + each stretch of conversation once <= max_bytes

Who asks for a response of somebody else hears what is said of one that never was.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any

from mmserve.core import NotFound, Turn
from mmserve.server.clients import Caller
from mmserve.server.fields import shown

__all__ = ["Conversation", "ConversationStore", "Item", "Kept", "held_bytes"]

Item = Mapping[str, Any]
"""A message, call or result as the Responses API lists it."""

_Owner = tuple[str, str]
_MOST_RESPONSES = 100_000
_MAX_NAME = 80


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """What was said from one request to its answer, behind what was said before.

    `turns` are what the model is shown of `said` and `answered`, the answer's turn last; the
    ids in `answered` are nobody else's;
    `num_bytes` is for these, `total_bytes` for everything before, too.
    """

    before: Conversation | None
    turns: tuple[Turn, ...]
    said: tuple[Item, ...]
    answered: tuple[Item, ...]
    num_bytes: int
    total_bytes: int

    @classmethod
    def new(
        cls,
        before: Conversation | None,
        turns: tuple[Turn, ...],
        said: tuple[Item, ...],
        answered: tuple[Item, ...] = (),
    ) -> Conversation:
        """One stretch more, measured. Pure. Cost: a walk through the values."""
        num_bytes = held_bytes(turns, said, answered)
        total_bytes = num_bytes + (before.total_bytes if before else 0)
        return cls(before, turns, said, answered, num_bytes, total_bytes)

    def from_the_start(self) -> list[Conversation]:
        """All stretches, the first one first. Pure."""
        found = [self]
        while found[-1].before is not None:
            found.append(found[-1].before)
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Kept:
    """A response as it was answered, and its conversation."""

    body: Mapping[str, Any]
    conversation: Conversation


@dataclass(frozen=True, slots=True)
class _Entry:
    kept: Kept
    owner: _Owner
    num_bytes: int
    expires_s: float


class ConversationStore:
    """The responses of all callers. Mutable; touched by the event loop only.

    Args:
        max_bytes: most bytes of all responses and conversations together.
        expiry_s: seconds that a response is kept after its last use.
        clock: seconds since 1970; the system's if not given.
    """

    def __init__(
        self, max_bytes: int, expiry_s: float, clock: Callable[[], float] | None = None
    ) -> None:
        self.max_bytes = max_bytes
        self.expiry_s = expiry_s
        self._clock = clock or (lambda: datetime.now(UTC).timestamp())
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first
        self._holders: dict[Conversation, int] = {}  # entries and later stretches of each
        self._answered: dict[str, tuple[_Owner, Item]] = {}  # of all stretches, by item's id
        self._num_bytes = 0
        self._num_evicted = 0
        self._num_expired = 0

    def add(self, caller: Caller, body: Mapping[str, Any], conversation: Conversation) -> bool:
        """Keep a response of this caller by its id; whether it was kept.

        It is not if it alone is more than the store may hold. Changes: the store; others may
        leave. `body` must not change afterwards.
        """
        now_s = self.sweep()
        both = held_bytes(body, conversation.turns, conversation.said, conversation.answered)
        num_bytes = both - conversation.num_bytes
        if num_bytes + conversation.total_bytes > self.max_bytes:
            return False
        kept, owner = Kept(body, conversation), _owner(caller)
        self._entries[body["id"]] = _Entry(kept, owner, num_bytes, now_s + self.expiry_s)
        self._num_bytes += num_bytes
        self._hold(conversation, owner)
        while self._num_bytes > self.max_bytes or len(self._entries) > _MOST_RESPONSES:
            self._drop(next(iter(self._entries)))
            self._num_evicted += 1
        return True

    def find(self, caller: Caller, response_id: str, name: str | None = None) -> Kept:
        """A response of this caller; `name` is the request's field that names it.

        Changes: the response counts as used now. Raises NotFound.
        """
        now_s = self.sweep()
        entry = self._entry(caller, response_id, name)
        expires_s = now_s + self.expiry_s
        used = _Entry(entry.kept, entry.owner, entry.num_bytes, expires_s)
        self._entries[response_id] = used
        self._entries.move_to_end(response_id)
        return entry.kept

    def find_item(self, caller: Caller, item_id: str, name: str) -> Item:
        """An item that this caller was answered with; `name` is the field that names it.

        Changes: what has expired is gone. Raises NotFound.
        """
        self.sweep()
        owner, item = self._answered.get(item_id, (None, {}))
        if owner != _owner(caller):
            message = f"there is no item {shown(item_id)}, or no more"
            hint = "answers of kept responses can be named; send the item itself"
            raise NotFound(
                message, hint=hint, field=name, what="item", name=item_id[:_MAX_NAME]
            )
        return item

    def remove(self, caller: Caller, response_id: str) -> None:
        """Forget a response; later ones keep what they continue.

        Changes: the store. Raises NotFound.
        """
        self.sweep()
        self._entry(caller, response_id, None)
        self._drop(response_id)

    def sweep(self) -> float:
        """The time now. Changes: what has expired is gone. Cost: little if nothing has."""
        now_s = self._clock()
        while self._entries:
            response_id, entry = next(iter(self._entries.items()))  # uses keep them in order
            if entry.expires_s > now_s:
                break
            self._drop(response_id)
            self._num_expired += 1
        return now_s

    def counters(self) -> dict[str, float]:
        """Gauges and counters in the form of `Client.counters`.

        Changes: what has expired is gone.
        """
        self.sweep()
        return {
            "responses": float(len(self._entries)),
            "response_bytes": float(self._num_bytes),
            "response_evictions_total": float(self._num_evicted),
            "response_expirations_total": float(self._num_expired),
        }

    def _entry(self, caller: Caller, response_id: str, name: str | None) -> _Entry:
        entry = self._entries.get(response_id)
        if entry is None or entry.owner != _owner(caller):
            message = f"there is no response {shown(response_id)}, or no more"
            hint = (
                f"with store: true one is kept for {self.expiry_s:g} s after its last use, as"
                " long as there is room; input takes a whole conversation"
            )
            raise NotFound(
                message, hint=hint, field=name, what="response", name=response_id[:_MAX_NAME]
            )
        return entry

    def _drop(self, response_id: str) -> None:
        entry = self._entries.pop(response_id)
        self._num_bytes -= entry.num_bytes
        self._let_go(entry.kept.conversation)

    def _hold(self, stretch: Conversation | None, owner: _Owner) -> None:
        while stretch is not None:
            num_holders = self._holders.get(stretch, 0)
            self._holders[stretch] = num_holders + 1
            if num_holders:
                return  # it holds what is before it already
            self._num_bytes += stretch.num_bytes
            self._answered |= {item["id"]: (owner, item) for item in stretch.answered}
            stretch = stretch.before

    def _let_go(self, stretch: Conversation | None) -> None:
        while stretch is not None:
            self._holders[stretch] -= 1
            if self._holders[stretch]:
                return
            del self._holders[stretch]
            self._num_bytes -= stretch.num_bytes
            for item in stretch.answered:
                del self._answered[item["id"]]
            stretch = stretch.before


def _owner(caller: Caller) -> _Owner:
    """Whose responses a caller sees; callers who sent no key of their own are one."""
    return caller.owner, caller.key


def held_bytes(*values: object) -> int:
    """Memory of JSON values and turns with all they hold, what they share once. Pure."""
    num_bytes, seen, todo = 0, set(), list(values)
    while todo:
        value = todo.pop()
        if value is not None and id(value) not in seen:
            seen.add(id(value))
            num_bytes += sys.getsizeof(value)
            todo += _inside(value)
    return num_bytes


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from value
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, spec.name) for spec in fields(value))

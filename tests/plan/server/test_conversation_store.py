"""The store of conversations: who leaves first, when, and what is counted."""

from __future__ import annotations

import threading
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.server.test_file_store import Clock
from support.echo_client import EchoClient

from mmserve.core import BytesSource, ImagePart, NotFound, ServerConfig, TextPart, Turn
from mmserve.server import RunningServer
from mmserve.server.clients import Caller
from mmserve.server.conversation_store import Conversation, ConversationStore, held_bytes

ANN, BOB = Caller(owner="ann"), Caller(owner="bob")
ROOM = 200_000


_numbers = count()


def said(words: str, before: Conversation | None = None) -> Conversation:
    """A stretch of one text and one answer."""
    item, answer = {"id": "msg_1", "content": words}, {"id": f"msg_a{next(_numbers)}"}
    return Conversation.new(before, (Turn("user", (TextPart(words),)),), (item,), (answer,))


def add(
    store: ConversationStore, response_id: str, conversation: Conversation, caller: Caller = ANN
) -> bool:
    """Keep a response."""
    return store.add(caller, {"id": response_id}, conversation)


def has(store: ConversationStore, response_id: str, caller: Caller = ANN) -> bool:
    """Whether a response is there; counts as a use."""
    try:
        store.find(caller, response_id)
    except NotFound:
        return False
    return True


def test_bytes_are_those_of_what_is_held() -> None:
    """What two values share counts once, contents of files count."""
    words, content = "x" * 1000, bytes(5000)
    turn = Turn("user", (TextPart(words), ImagePart(BytesSource(content))))

    assert held_bytes(words) == held_bytes(words, words) > 1000
    assert held_bytes(turn) > 6000
    assert held_bytes(turn, [words], {"a": content}) < held_bytes(turn) + 1000
    assert held_bytes([["y" * 1000], ["z" * 1000]]) > 2000


def test_a_response_expires_after_its_last_use() -> None:
    """A use puts it off; then it is gone and its bytes are free."""
    clock = Clock()
    store = ConversationStore(ROOM, 100.0, clock)
    add(store, "a", said("a"))
    add(store, "b", said("b"))
    clock.now_s = 1099
    assert has(store, "a")
    clock.now_s = 1100
    store.sweep()

    assert store.counters()["responses"] == 1
    assert store.counters()["response_expirations_total"] == 1
    assert not has(store, "b")
    clock.now_s = 1199
    assert store.counters() == {
        "responses": 0,
        "response_bytes": 0,
        "response_evictions_total": 0,
        "response_expirations_total": 2,
    }


def test_expired_responses_leave_without_being_asked_for() -> None:
    """A server that nobody asks anything lets go of them too."""
    clock = Clock()
    swept = threading.Event()

    class Store(ConversationStore):
        def sweep(self) -> float:
            now_s = super().sweep()
            if self._num_expired:
                swept.set()
            return now_s

    store = Store(ROOM, 100.0, clock)
    add(store, "a", said("a"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmserve.server.app.ConversationStore", lambda *_: store)
        with RunningServer(EchoClient(), ServerConfig(port=0)):
            clock.now_s = 2000
            assert swept.wait(30)
    assert store._entries == {}


def test_the_least_recently_used_leave_first() -> None:
    """To make room, and no more than needed."""
    store = ConversationStore(ROOM, 100.0)
    for name in "abc":
        assert add(store, name, said(name * 60_000))
    assert has(store, "a")
    assert add(store, "d", said("d" * 60_000))

    assert [has(store, name) for name in "abcd"] == [True, False, True, True]
    assert store.counters()["response_evictions_total"] == 1


def test_what_does_not_fit_alone_is_not_kept() -> None:
    """And nothing leaves for it; what it continues counts."""
    store = ConversationStore(ROOM, 100.0)
    first = said("a" * 150_000)
    assert add(store, "a", first)
    assert not add(store, "b", said("b" * 200_000))
    assert not add(store, "c", said("c" * 100_000, first))
    assert has(store, "a")
    assert store.counters()["response_evictions_total"] == 0


def test_nothing_is_kept_where_there_is_no_room_at_all() -> None:
    """A store of no bytes keeps nothing."""
    assert not add(ConversationStore(0, 100.0), "a", said("a"))


def test_a_conversation_is_held_once() -> None:
    """By as many responses as continue it, until the last of them has left."""
    store = ConversationStore(ROOM, 100.0)
    first = said("a" * 100_000)
    second = said("b", first)
    add(store, "a", first)
    alone = store.counters()["response_bytes"]
    add(store, "b", second)
    add(store, "c", said("c", second))

    assert store.counters()["response_bytes"] < alone + 10_000
    store.remove(ANN, "a")
    store.remove(ANN, "b")
    found = store.find(ANN, "c").conversation.from_the_start()
    assert [stretch.said[0]["content"][:1] for stretch in found] == ["a", "b", "c"]
    assert store.counters()["response_bytes"] > 100_000
    store.remove(ANN, "c")
    assert store.counters()["response_bytes"] == 0
    assert store._holders == {}


def test_what_was_dropped_counts_again_when_it_is_continued() -> None:
    """A request under way still has it."""
    store = ConversationStore(ROOM, 100.0)
    first = said("a" * 100_000)
    add(store, "a", first)
    store.remove(ANN, "a")
    add(store, "b", said("b", first))
    assert store.counters()["response_bytes"] > 100_000


def test_a_response_of_somebody_else_was_never_there() -> None:
    """Same words, and it is not touched."""
    store = ConversationStore(ROOM, 100.0)
    add(store, "a", said("a"))
    told: dict[str, Any] = {}
    for response_id in ("a", "never"):
        with pytest.raises(NotFound) as caught:
            store.find(BOB, response_id, "previous_response_id")
        assert caught.value.fields["field"] == "previous_response_id"
        told[response_id] = caught.value.message.replace(f'"{response_id}"', "")
        with pytest.raises(NotFound):
            store.remove(BOB, response_id)
    assert told["a"] == told["never"]
    assert has(store, "a")


STEP = st.tuples(
    st.sampled_from(["add", "find", "remove", "wait"]),
    st.integers(0, 7),
    st.integers(0, 60_000),
)


@settings(max_examples=150)
@given(st.lists(STEP, max_size=30))
def test_the_sums_are_right_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    """Bytes are those of what can be reached, within the limit; the order is that of uses."""
    clock = Clock()
    store = ConversationStore(ROOM, 100.0, clock)
    talks: list[Conversation] = [said("root")]
    for number, (what, which, amount) in enumerate(steps):
        name = str(which)
        if what == "add":
            before = talks[which % len(talks)]
            talks.append(said("x" * amount, before))
            add(store, str(number), talks[-1])
        elif what == "find":
            has(store, name)
        elif what == "remove" and has(store, name):
            store.remove(ANN, name)
        elif what == "wait":
            clock.now_s += amount / 1000
        store.sweep()

        entries = list(store._entries.values())
        reached = {one for entry in entries for one in entry.kept.conversation.from_the_start()}
        sums = [entry.num_bytes for entry in entries] + [one.num_bytes for one in reached]
        assert store.counters()["response_bytes"] == sum(sums) <= ROOM
        assert set(store._holders) == reached
        assert set(store._answered) == {one.answered[0]["id"] for one in reached}
        assert sorted(entry.expires_s for entry in entries) == [e.expires_s for e in entries]

"""The store of uploaded files: who leaves first, and when."""

from __future__ import annotations

import contextlib
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.echo_client import EchoClient

from mmserve.core import (
    NotFound,
    ServerConfig,
)
from mmserve.server import RunningServer, file_store
from mmserve.server.clients import Caller
from mmserve.server.file_store import FileStore

UNKNOWN = "file-" + "0" * 32
STEPS = ("add", "find", "remove", "wait")
ANN, BOB = Caller(owner="ann"), Caller(owner="bob")


class Clock:
    """Time as a test sets it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now_s


def new_store(max_bytes: int, clock: Clock | None = None) -> FileStore:
    """A store whose files expire after 100 s without use."""
    return FileStore(max_bytes, 100.0, clock or Clock())


def add(store: FileStore, content: bytes, caller: Caller = ANN, **fields: float) -> str:
    """Keep a file; its id."""
    return store.add(caller, content, filename="f", purpose="vision", **fields).id


def test_a_file_expires_after_its_last_use() -> None:
    """A use counts, a look at its facts does not; then it is gone and its bytes are free."""
    clock = Clock()
    store = new_store(1000, clock)
    used, looked = add(store, b"used"), add(store, b"looked")
    assert store.look(ANN, used).expires_s == 1100
    clock.now_s = 1099
    assert store.find(ANN, used).expires_s == 1199
    assert store.look(ANN, looked).expires_s == 1100
    clock.now_s = 1100

    assert [file.id for file in store.files(ANN)] == [used]
    assert store.counters() == {
        "files": 1,
        "file_bytes": 4,
        "file_uploads_total": 2,
        "file_evictions_total": 0,
        "file_expirations_total": 1,
    }
    clock.now_s = 1199
    store.sweep()
    assert store._contents == {}
    assert store.counters()["file_expirations_total"] == 2


def test_an_upload_may_say_when_it_ends() -> None:
    """Uses do not put that off, and it puts off nothing."""
    clock = Clock()
    store = new_store(1000, clock)
    short, long = add(store, b"a", ends_after_s=30), add(store, b"b", ends_after_s=3000)
    clock.now_s = 1029
    assert store.find(ANN, short).expires_s == 1030
    assert store.look(ANN, long).expires_s == 1100
    clock.now_s = 1030

    with pytest.raises(NotFound, match="has expired"):
        store.find(ANN, short)
    assert store.find(ANN, long).expires_s == 1130


@pytest.mark.parametrize("ask", ["find", "look", "remove"])
def test_an_expired_file_is_said_to_have_expired(ask: str) -> None:
    """With its id and the way out; to who sent it, and to nobody else."""
    clock = Clock()
    store = new_store(1000, clock)
    file_id = add(store, b"x")
    clock.now_s = 1100

    with pytest.raises(NotFound, match=f'"{file_id}" has expired.*upload it again') as caught:
        getattr(store, ask)(ANN, file_id)
    assert caught.value.fields["name"] == file_id
    with pytest.raises(NotFound, match=f'there is no file "{file_id}"'):
        getattr(store, ask)(BOB, file_id)


def test_expired_ids_are_remembered_within_a_bound(monkeypatch) -> None:
    """The latest of them; an older one is not known any more."""
    monkeypatch.setattr(file_store, "_MOST_EXPIRED", 2)
    clock = Clock()
    store = new_store(1000, clock)
    ids = []
    for _ in range(4):
        ids.append(add(store, b"x"))
        clock.now_s += 1
    clock.now_s += 200
    store.sweep()

    for file_id, words in zip(ids, ["is no"] * 2 + ["has expired"] * 2, strict=True):
        with pytest.raises(NotFound, match=words):
            store.look(ANN, file_id)


def test_expired_files_leave_without_being_asked_for() -> None:
    """A server that nobody asks anything lets go of them too."""
    clock = Clock()
    swept = threading.Event()

    class Store(FileStore):
        def sweep(self) -> None:
            super().sweep()
            if self._num_expired:
                swept.set()

    store = Store(100, 100.0, clock)
    add(store, b"x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmserve.server.app.FileStore", lambda *_: store)
        with RunningServer(EchoClient(), ServerConfig(port=0)):
            clock.now_s = 2000
            assert swept.wait(30)
    assert store._entries == {}


def test_the_least_recently_used_leaves_first() -> None:
    """Naming a file is a use, looking at its facts is not."""
    store = new_store(30)
    first, second, third = (add(store, bytes([k]) * 10) for k in range(3))
    store.find(ANN, first)
    store.look(ANN, second)
    add(store, b"x" * 10)

    assert store.find(ANN, first).content == bytes(10)
    with pytest.raises(NotFound):
        store.find(ANN, second)
    assert store.find(ANN, third)


def test_equal_content_of_one_caller_is_held_once() -> None:
    """Under two ids; another caller's copy is its own."""
    store = new_store(100)
    one, two = add(store, bytes(40)), add(store, bytes(bytearray(40)))
    add(store, bytes(40), BOB)

    assert one != two
    assert store.find(ANN, one).content is store.find(ANN, two).content
    assert store.counters()["file_bytes"] == 80
    store.remove(ANN, one)
    assert store.find(ANN, two).content == bytes(40)
    assert store.counters()["file_bytes"] == 80
    store.remove(ANN, two)
    assert store.counters()["file_bytes"] == 40


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7))))
def test_bytes_always_add_up(steps) -> None:
    """After any steps the store's bytes are those of its contents, within the limit."""
    clock = Clock()
    store, ids = new_store(12, clock), [UNKNOWN]
    for step, number in steps:
        clock.now_s += 20 * number if step == "wait" else 1
        if step == "wait":
            continue
        caller = BOB if number % 2 else ANN
        file_id = ids[-1 - number % len(ids)]
        if step == "add":
            content = bytes([number // 2]) * (1 + number)
            ids.append(add(store, content, caller, ends_after_s=50 * (1 + number)))
            continue
        with contextlib.suppress(NotFound):
            store.find(caller, file_id) if step == "find" else store.remove(caller, file_id)
    contents = {(c, file.content) for c in (ANN, BOB) for file in store.files(c)}
    num_bytes = sum(len(content) for _, content in contents)

    assert store.counters()["file_bytes"] == num_bytes <= 12
    assert all(file.expires_s > clock.now_s for c in (ANN, BOB) for file in store.files(c))
    clock.now_s += 100
    assert store.counters()["file_bytes"] == 0


def test_many_threads_keep_the_books() -> None:
    """Uploads, uses and removals from eight threads at once end at nothing."""
    store = new_store(1000)

    def work(number: int) -> None:
        for k in range(200):
            file_id = add(store, bytes([number, k % 3]))
            store.find(ANN, file_id)
            store.remove(ANN, file_id)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    counters = store.counters()
    assert (counters["files"], counters["file_bytes"]) == (0, 0)
    assert counters["file_uploads_total"] == 1600

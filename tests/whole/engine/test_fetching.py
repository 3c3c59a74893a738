"""Threads for media over the network: hosts take turns, and none takes all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from mmserve.core import Busy
from mmserve.engine import fetching
from mmserve.engine.fetching import FetchThreads


class Host:
    """Work that waits until the host answers, and notes that it has begun and ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers = threading.Event()
        self.num_begun = 0
        self.ended: list[int] = []
        self._changed = threading.Condition()

    def work(self, number: int = 0) -> Callable[[], None]:
        """One fetch."""

        def wait() -> None:
            with self._changed:
                self.num_begun += 1
                self._changed.notify_all()
            assert self.answers.wait(30)
            with self._changed:
                self.ended.append(number)
                self._changed.notify_all()

        return wait

    def until(self, *, num_begun: int = 0, num_ended: int = 0) -> None:
        """Wait for so many."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: self.num_begun >= num_begun and len(self.ended) >= num_ended, 30
            )


@pytest.fixture
def threads() -> Iterator[FetchThreads]:
    """Threads of the test's own."""
    threads = FetchThreads()
    yield threads
    threads.shutdown()


def test_a_silent_host_leaves_threads_to_others(threads: FetchThreads) -> None:
    """However much waits for it, another host's fetches begin and end."""
    dead, alive = Host("dead"), Host("alive")
    alive.answers.set()
    for number in range(100):
        threads.submit("dead", dead.work(number))
    for number in range(100):
        threads.submit("alive", alive.work(number))
    alive.until(num_ended=100)

    assert dead.num_begun <= fetching._NUM_OF_A_HOST
    assert dead.ended == []
    dead.answers.set()
    dead.until(num_ended=100)
    assert sorted(dead.ended) == list(range(100))


def test_hosts_take_turns(threads: FetchThreads, monkeypatch) -> None:
    """With all threads taken, one that comes free goes to another host, if that waits."""
    monkeypatch.setattr(fetching, "_NUM_THREADS", 1)
    begun: list[str] = []
    first = Host("a")
    threads.submit("a", first.work())
    first.until(num_begun=1)
    for name in ("a1", "a2", "b1", "b2", "c1"):
        threads.submit(name[0], lambda name=name: begun.append(name))
    first.answers.set()
    threads.shutdown()

    assert begun == ["a1", "b1", "c1", "a2", "b2"]


def test_too_much_waiting_is_busy(threads: FetchThreads, monkeypatch) -> None:
    """For one host, and in all; what was taken is done, and then there is room again."""
    hosts = [Host(name) for name in "abc"]
    for host in hosts[:2]:
        for _ in range(fetching._NUM_OF_A_HOST):
            threads.submit(host.name, host.work())
        host.until(num_begun=fetching._NUM_OF_A_HOST)
    monkeypatch.setattr(fetching, "_MAX_WAITING_FOR_A_HOST", 2)
    monkeypatch.setattr(fetching, "_MAX_WAITING", 3)
    threads.submit("a", hosts[0].work())
    threads.submit("a", hosts[0].work())
    with pytest.raises(Busy, match="media from a, the limit is 2") as caught:
        threads.submit("a", hosts[0].work())
    assert caught.value.fields["retry_after_s"] > 0
    threads.submit("b", hosts[1].work())
    with pytest.raises(Busy, match="from any host, the limit is 3"):
        threads.submit("c", hosts[2].work())
    for host in hosts:
        host.answers.set()
    hosts[0].until(num_ended=8)
    threads.submit("c", hosts[2].work())
    hosts[2].until(num_ended=1)


def test_what_was_taken_is_done_at_the_end() -> None:
    """Closing runs all that waits, and takes no more."""
    threads, host = FetchThreads(), Host("a")
    for number in range(50):
        threads.submit("a", host.work(number))
    host.until(num_begun=1)
    host.answers.set()
    threads.shutdown()

    assert sorted(host.ended) == list(range(50))
    with pytest.raises(RuntimeError):
        threads.submit("a", host.work())


def test_many_hosts_from_many_threads_lose_nothing(threads: FetchThreads) -> None:
    """Every piece of work runs once, and no lane is left behind."""
    ended: list[int] = []

    def submit(offset: int) -> None:
        for number in range(offset, offset + 100):
            threads.submit(str(number % 7), lambda number=number: ended.append(number))

    senders = [threading.Thread(target=submit, args=(100 * place,)) for place in range(8)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    threads.shutdown()

    assert sorted(ended) == list(range(800))
    assert threads._lanes == {}

"""Fetches for hints: shared with the request that follows, kept within bounds, by tenant."""

from __future__ import annotations

import threading

import pytest

from mmserve.core import BytesSource, MediaConfig, MediaRefused, UrlSource
from mmserve.vision import Fetcher
from mmserve.vision.kept import KeptFetches
from mmserve.vision.sources import SourceReader

URL = "http://h/a"
SOURCE = UrlSource(URL)


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now_s


class GatedFetcher(Fetcher):
    """Gives the address back as bytes, once the gate is open; counts who asks."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)
        self.asked: list[str] = []
        self.error: MediaRefused | None = None

    def fetch(self, url: str) -> bytes:
        """The address."""
        self.asked.append(url)
        self.started.release()
        self.gate.wait(10)
        if self.error is not None:
            raise self.error
        return url.encode()


@pytest.fixture
def fetcher() -> GatedFetcher:
    """No network."""
    return GatedFetcher()


@pytest.fixture
def reader(fetcher: GatedFetcher) -> SourceReader:
    """A reader under the default limits."""
    return SourceReader(MediaConfig(), fetcher)


def prepare(reader: SourceReader, salt: str = "", source=SOURCE) -> bytes | None:
    """A hint from its begin to its end."""
    reader.expect(source, salt=salt)
    try:
        return reader.read_early(source, salt=salt)
    finally:
        reader.give_up(source, salt=salt)


def test_a_hint_and_its_requests_fetch_once(reader, fetcher) -> None:
    """Requests that follow have the bytes of the hint, and so has a second hint."""
    assert prepare(reader) == prepare(reader) == URL.encode()
    assert reader.read(SOURCE) == reader.read(SOURCE) == URL.encode()
    assert fetcher.asked == [URL]
    assert reader.num_fetches == 1


def test_tenants_share_nothing_that_is_kept(reader, fetcher) -> None:
    """Another salt fetches for itself."""
    prepare(reader, "a")
    assert reader.read(SOURCE, salt="b") == URL.encode()
    assert fetcher.asked == [URL, URL]
    reader.read(SOURCE, salt="a")
    assert fetcher.asked == [URL, URL]


def test_without_a_hint_nothing_is_kept(reader, fetcher) -> None:
    """What lies behind an address may change between two requests."""
    reader.read(SOURCE)
    reader.read(SOURCE)
    assert fetcher.asked == [URL, URL]


def test_a_request_that_comes_first_leaves_the_hint_nothing_to_do(reader, fetcher) -> None:
    """Its bytes serve the hint, or, once they are gone, the hint is late."""
    reader.expect(SOURCE, salt="")
    reader.read(SOURCE)
    reader.forget()
    assert reader.read_early(SOURCE, salt="") is None
    assert fetcher.asked == [URL]


def test_a_request_during_the_fetch_waits_for_it(reader, fetcher) -> None:
    """And so does one that comes just after, since the bytes are kept by then."""
    fetcher.gate.clear()
    got: list[bytes | None] = []
    hint = threading.Thread(target=lambda: got.append(prepare(reader)))
    hint.start()
    assert fetcher.started.acquire(timeout=10)
    request = threading.Thread(target=lambda: got.append(reader.read(SOURCE)))
    request.start()
    fetcher.gate.set()
    hint.join(10)
    request.join(10)
    got.append(reader.read(SOURCE))
    assert got == [URL.encode()] * 3
    assert fetcher.asked == [URL]


def test_a_hint_that_fails_is_no_matter_to_the_request(reader, fetcher) -> None:
    """It fetches again, and is refused only if that fails."""
    fetcher.error = MediaRefused("no answer", reason="fetch_failed")
    with pytest.raises(MediaRefused):
        prepare(reader)
    fetcher.error = None
    assert reader.read(SOURCE) == URL.encode()
    reader.read(SOURCE)
    assert fetcher.asked == [URL] * 3


def test_what_is_held_is_fetched_once_however_late(reader, fetcher) -> None:
    """By the requests of its tenant, through a flush, until the last holder lets go."""
    for _ in range(2):
        reader.hold(SOURCE, salt="")
    assert fetcher.asked == []
    reader.read(SOURCE)
    reader.release(SOURCE, salt="")
    reader.forget()
    reader.read(SOURCE)
    assert fetcher.asked == [URL]
    reader.read(SOURCE, salt="b")
    reader.release(SOURCE, salt="")
    reader.read(SOURCE)
    assert fetcher.asked == [URL] * 3


def test_what_is_not_fetched_is_not_kept(reader, fetcher) -> None:
    """Bytes and data addresses are simply read."""
    assert prepare(reader, source=BytesSource(b"x")) == b"x"
    assert prepare(reader, source=UrlSource("data:,x")) == b"x"
    assert fetcher.asked == []


def new_kept(limit_bytes: int = 100) -> tuple[KeptFetches, HandClock]:
    """What is kept for ten seconds, and its clock."""
    clock = HandClock()
    return KeptFetches(limit_bytes, 10.0, clock), clock


def keep(kept: KeptFetches, name: str, num_bytes: int) -> None:
    """A hint for an address, and its bytes."""
    kept.expect(("", name))
    kept.keep(("", name), bytes(num_bytes))


def test_bytes_wait_for_their_first_use_so_long() -> None:
    """Then they are gone, used or not."""
    kept, clock = new_kept()
    keep(kept, "a", 5)
    clock.now_s = 9.9
    assert kept.use(("", "a")) == bytes(5)
    keep(kept, "b", 5)
    clock.now_s = 20.0
    assert kept.use(("", "a")) is None
    assert kept.look(("", "b")) is None
    assert kept.use(("", "b")) is None
    assert len(kept) == 0


def test_used_bytes_go_soon() -> None:
    """Requests sent together share them; a later one fetches anew."""
    kept, clock = new_kept()
    keep(kept, "a", 5)
    assert kept.use(("", "a")) is not None
    clock.now_s = 0.9
    assert kept.use(("", "a")) is not None
    clock.now_s = 1.0
    assert kept.use(("", "a")) is None


def test_held_bytes_wait_for_any_use_and_leave_last() -> None:
    """No time takes them, and where room is short what nobody holds goes first."""
    kept, clock = new_kept(limit_bytes=10)
    kept.hold(("", "a"))
    keep(kept, "a", 4)
    clock.now_s = 1e9
    assert kept.use(("", "a")) == bytes(4)
    clock.now_s = 2e9
    keep(kept, "b", 4)
    keep(kept, "c", 4)
    assert [kept.look(("", name)) is None for name in "abc"] == [False, True, False]
    kept.release(("", "a"))
    assert kept.look(("", "a")) is None


def test_kept_bytes_are_bounded() -> None:
    """The oldest go first, and what is larger than all the room is not kept."""
    kept, _ = new_kept(limit_bytes=10)
    for name in "abc":
        keep(kept, name, 4)
    assert [kept.look(("", name)) is None for name in "abc"] == [True, False, False]
    keep(kept, "d", 11)
    assert kept.look(("", "d")) is None
    assert len(kept) == 2
    keep(kept, "e", 2)
    assert len(kept) == 3

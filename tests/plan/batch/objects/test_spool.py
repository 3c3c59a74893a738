"""Objects are fetched once, within limits, and are gone at the end; no network."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.scripted_client import ScriptedClient

from mmserve.batch import AskSettings, Row, Spool, StoreSettings, read_answer, request_of
from mmserve.core import (
    Aborted,
    BackendFailed,
    BadRequest,
    MediaRefused,
    MissingExtra,
    PathSource,
)

MIB = 1 << 20


@pytest.fixture
def store(monkeypatch):
    """An empty store in memory, which notes the objects that are opened."""
    memory = MemoryFileSystem()
    memory.store.clear()
    memory.opened = []
    plain = MemoryFileSystem._open

    def opened(self, path, mode="rb", **options):
        if mode == "rb":
            memory.opened.append(path)
        return plain(self, path, mode, **options)

    monkeypatch.setattr(MemoryFileSystem, "_open", opened)
    yield memory
    memory.store.clear()


class Reader(ScriptedClient):
    """Answers with the bytes of the files that it is asked about."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        super().__init__(self._read)

    def _read(self, request):
        sources = [part.source for part in request.parts[0].parts[:-1]]
        assert all(isinstance(source, PathSource) for source in sources)
        self.paths += [Path(source.path) for source in sources]
        return " ".join(Path(source.path).read_text() for source in sources)


def spool_for(client, **settings: object) -> Spool:
    """A spool that may read the bucket."""
    base = {"allow_store": ("memory://bucket/",)}
    return Spool(client, StoreSettings(**(base | settings)), max_media_bytes=100)


def asked(spool: Spool, *names: str, line: int = 1):
    """The ticket of a question about pictures in the bucket."""
    places = tuple(f"memory://bucket/{name}" for name in names)
    row = Row(line=line, row_id="r", questions=("what?",), images=places)
    return spool.submit(request_of(row, 0, AskSettings()))


def test_questions_about_one_object_fetch_it_once(store):
    """Sixteen questions share one file, which keeps its suffix and goes with the spool."""
    store.pipe("bucket/a.png", b"red")
    client = Reader()
    with spool_for(client) as spool:
        tickets = [asked(spool, "a.png", line=n) for n in range(16)]
        assert {read_answer(ticket).text for ticket in tickets} == {"red"}
        folder = client.paths[0].parent
        assert client.paths[0].suffix == ".png"
    assert (len(store.opened), len(set(client.paths)), folder.exists()) == (1, 1, False)


def test_other_media_pass(tmp_path):
    """Paths and other addresses go on untouched, at once."""
    path = tmp_path / "a.png"
    path.write_text("blue")
    client = Reader()
    with spool_for(client) as spool:
        row = Row(line=1, row_id="r", questions=("q",), images=(str(path),))
        assert read_answer(spool.submit(request_of(row, 0, AskSettings()))).text == "blue"
    assert client.paths == [path]


def test_few_files_lie_on_disk_and_none_in_use_leaves(store):
    """With room for two, rows of two pictures are answered one after another."""
    for name in "abcdef":
        store.pipe(f"bucket/{name}", name.encode())
    client = Reader()
    most = []

    def rule(request):
        text = Reader._read(client, request)
        most.append(len(list(client.paths[0].parent.iterdir())))
        return text

    client.rule = rule
    with spool_for(client, spool_files=2) as spool:
        tickets = [asked(spool, *pair) for pair in ("ab", "cd", "ef", "ab")]
        answers = [read_answer(ticket).text for ticket in tickets]
    assert answers == ["a b", "c d", "e f", "a b"]
    assert max(most) <= 2


def test_a_row_that_needs_more_than_the_limit_is_answered(store):
    """One holder always gets what it needs, else the run would stand still."""
    for name in "abc":
        store.pipe(f"bucket/{name}", name.encode())
    with spool_for(Reader(), spool_files=1, spool_bytes=1) as spool:
        assert read_answer(asked(spool, *"abc")).text == "a b c"


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "no such object"), (b"", "empty"), (b"x" * 101, "the limit is 100")],
)
def test_objects_that_cannot_be_used_are_the_rows_fault(store, content, words):
    """Missing, empty, too large: refused with the address, and nobody is asked."""
    if content is not None:
        store.pipe("bucket/a", content)
    client = Reader()
    with spool_for(client) as spool, pytest.raises(MediaRefused, match=words) as caught:
        read_answer(asked(spool, "a"))
    assert "memory://bucket/a" in caught.value.message
    assert client.paths == []


def test_what_is_not_permitted_is_never_opened(store):
    """The refusal comes through the ticket."""
    store.pipe("other/a", b"x")
    with spool_for(Reader()) as spool, pytest.raises(MediaRefused, match="--allow-store"):
        read_answer(asked(spool, "../other/a"))
    assert store.opened == []


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (PermissionError("denied"), MediaRefused),
        (ConnectionResetError("reset"), BackendFailed),
        (TimeoutError(), BackendFailed),
        (RuntimeError("HTTP 503"), BackendFailed),
    ],
)
def test_what_may_pass_is_told_from_what_stays(store, monkeypatch, raised, kind):
    """Forbidden is the row's; a store that does not answer is tried again by who asks again."""

    def fail(self, path, **options):
        raise raised

    store.pipe("bucket/a", b"late")
    with spool_for(Reader()) as spool:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, "info", fail)
            with pytest.raises(kind, match="memory://bucket/a"):
                read_answer(asked(spool, "a"))
        assert read_answer(asked(spool, "a")).text == "late"


def test_a_store_that_hangs_is_given_up(store, monkeypatch):
    """After the time limit the row is told, others go on, and the end does not wait."""
    store.pipe("bucket/good", b"good")
    plain = MemoryFileSystem.info

    def hang(self, path, **options):
        if path.endswith("bad"):
            time.sleep(2)
        return plain(self, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "info", hang)
    begin = time.monotonic()
    with spool_for(Reader(), store_timeout_s=0.1) as spool:
        bad, good = asked(spool, "bad"), asked(spool, "good")
        assert read_answer(good).text == "good"
        with pytest.raises(BackendFailed, match=r"not there within 0\.1 s"):
            read_answer(bad)
    assert time.monotonic() - begin < 1.5


def test_a_hint_fetches_ahead(store):
    """What is prepared is there when it is asked about, and the engine gets the file's hint."""
    store.pipe("bucket/a", b"red")
    client = Reader()
    with spool_for(client) as spool:
        row = Row(line=1, row_id="r", questions=("q",), images=("memory://bucket/a",))
        request = request_of(row, 0, AskSettings())
        spool.prepare(request.parts[0].parts[0])
        deadline = time.monotonic() + 5
        while not client.prepared and time.monotonic() < deadline:
            time.sleep(0.005)
        assert read_answer(spool.submit(request)).text == "red"
        assert client.prepared[0].source == PathSource(str(client.paths[0]))
    assert len(store.opened) == 1


def test_a_spool_that_ends_lets_everybody_go(store, monkeypatch):
    """Closing it while objects are on their way ends their questions."""
    store.pipe("bucket/a", b"red")
    monkeypatch.setattr(MemoryFileSystem, "info", lambda *given, **options: time.sleep(1))
    spool = spool_for(Reader())
    ticket = asked(spool, "a")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(spool.close)
        with pytest.raises(Aborted):
            read_answer(ticket)


def test_a_missing_package_is_told_before_anything_is_asked():
    """The error says what to install; a scheme that nobody knows is told as such."""
    with pytest.raises(MissingExtra, match=r"mmserve\[objects\]\" s3fs"):
        spool_for(Reader(), allow_store=("s3://bucket/",))
    with pytest.raises(BadRequest, match="no store that fsspec knows"):
        spool_for(Reader(), allow_store=("nosuch://bucket/",))

"""Media go to a server once and are named by id: over real HTTP, with a fake engine behind."""

from __future__ import annotations

import base64
import random
import threading
from collections.abc import Callable, Iterator, Sequence

import httpx
import pytest

import mmserve.lang as sgl
import mmserve.server.app as server_app
from mmserve.core import (
    Aborted,
    BackendFailed,
    BytesSource,
    FramesSource,
    ImagePart,
    NotFound,
    Request,
    SamplingParams,
    ServerConfig,
    TextPart,
    Turn,
    UrlSource,
    VideoPart,
)
from mmserve.lang import ClientBackend
from mmserve.lang.backends.http_call import HttpCall
from mmserve.lang.backends.uploads import LEAST_BYTES, Uploads
from mmserve.server import RunningServer
from mmserve.testing.fake_client import FakeClient

UNKNOWN = "file-" + "0" * 32


def content(seed: int, num_bytes: int = 2000) -> bytes:
    """Bytes that begin like a picture."""
    return b"\x89PNG" + random.Random(seed).randbytes(num_bytes - 4)


def inline(picture: bytes) -> UrlSource:
    """How content that is not uploaded reaches the engine."""
    return UrlSource(f"data:image/png;base64,{base64.b64encode(picture).decode()}")


class Spelling(FakeClient):
    """A fake engine that also spells a picture's place, as the server asks of it."""

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """As ever, but for the one id."""
        ids = list(token_ids)
        return "<fake_image>" if ids == [self.model.image_token_id] else super().detokenize(ids)


class Served:
    """A fake engine behind HTTP, an endpoint for it, and what the server counted."""

    def __init__(self, client: FakeClient, url: str) -> None:
        self.client, self.url = client, url
        self.endpoint = sgl.RuntimeEndpoint(url)
        self.http = httpx.Client(base_url=url)

    def count(self, name: str) -> float:
        """The value of a series; 0 for one that is not told."""
        return self.http.get("/server_info").json()["counters"].get(name, 0)

    def lose_all(self) -> None:
        """The server forgets every file."""
        for file in self.http.get("/v1/files").json()["data"]:
            self.http.delete(f"/v1/files/{file['id']}")

    def sources(self) -> list[object]:
        """What the pictures and clips of all calls were to the engine, in order."""
        parts = [part for request in self.client.requests for part in request.parts]
        inner = [piece for part in parts if isinstance(part, Turn) for piece in part.parts]
        media = (ImagePart, VideoPart)
        return [part.source for part in [*parts, *inner] if isinstance(part, media)]

    def close(self) -> None:
        """Close the connections."""
        self.endpoint.close()
        self.http.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Starts a server; its settings are those given."""
    opened: list[tuple[RunningServer, Served]] = []

    def start(**settings: object) -> Served:
        client = Spelling()
        server = RunningServer(client, ServerConfig(port=0, **settings))
        server.__enter__()
        opened.append((server, Served(client, server.url)))
        return opened[-1][1]

    yield start
    for server, served in opened:
        served.close()
        server.__exit__(None, None, None)


@pytest.fixture
def served(serve) -> Served:
    """A server with the settings it has when none are given."""
    return serve()


@sgl.function
def busy(s, picture):
    """One picture, two calls in a row, two in forks, one choice."""
    s += sgl.user(sgl.image(picture) + "What?")
    s += sgl.assistant(sgl.gen("a"))
    s += sgl.user("And?") + sgl.assistant(sgl.select("c", ["yes", "no"]))
    forks = s.fork(2)
    forks += lambda index: sgl.user(f"{index}?") + sgl.assistant(sgl.gen("f"))
    forks.join()
    s += sgl.user("End?") + sgl.assistant(sgl.gen("z"))


@sgl.function
def look(s, *pictures):
    """One question about all pictures."""
    for picture in pictures:
        s += sgl.image(picture)
    s += sgl.gen("x")


def test_a_picture_is_uploaded_once_for_all_calls(served) -> None:
    """Calls, forks and choices name it, and a later run as well."""
    states = [busy.run(content(1), backend=served.endpoint) for _ in range(2)]
    here = busy.run(content(1), backend=ClientBackend(FakeClient()))

    assert [state.text() for state in states] == [here.text()] * 2
    assert served.count("file_uploads_total") == 1
    assert set(served.sources()) == {BytesSource(content(1))}


def test_a_batch_of_many_threads_uploads_each_picture_once(served) -> None:
    """Sixteen rows about two pictures, eight at a time."""
    rows = [{"picture": content(k % 2)} for k in range(16)]
    states = busy.run_batch(rows, backend=served.endpoint, num_threads=8)
    alone = [busy.run(**row, backend=ClientBackend(FakeClient())).text() for row in rows[:2]]

    assert [state.text() for state in states] == alone * 8
    assert served.count("file_uploads_total") == 2


def test_frames_are_uploaded_each_once(served) -> None:
    """A frame that is there twice is sent once; order and rate stay."""
    frames = [content(1), content(2), content(1)]

    @sgl.function
    def watch(s):
        s += sgl.video(frames, fps=2.0) + sgl.gen("x")

    watch.run(backend=served.endpoint).sync()

    assert served.sources() == [FramesSource(tuple(map(BytesSource, frames)), 2.0)]
    assert served.count("file_uploads_total") == 2


def test_small_content_and_addresses_are_not_uploaded(served) -> None:
    """They go as they are."""
    small = content(1, LEAST_BYTES - 1)
    urls = [UrlSource("http://127.0.0.1/a.png"), inline(content(2))]
    look.run(small, *(source.url for source in urls), backend=served.endpoint).sync()

    assert served.sources() == [inline(small), *urls]
    assert served.count("file_uploads_total") == 0


def test_a_file_of_the_least_size_is_uploaded(served) -> None:
    """The limit belongs to what is uploaded."""
    look.run(content(1, LEAST_BYTES), backend=served.endpoint).sync()

    assert served.count("file_uploads_total") == 1


def test_an_id_of_the_programs_own_is_named_as_it_is(served) -> None:
    """Whoever uploaded it."""
    file = {"file": ("a.png", content(3))}
    reply = served.http.post("/v1/files", files=file, data={"purpose": "vision"})
    look.run(reply.json()["id"], backend=served.endpoint).sync()

    assert served.sources() == [BytesSource(content(3))]


def test_an_unknown_id_of_the_programs_own_is_not_found(served) -> None:
    """It is nothing of ours, so nothing is sent again."""
    with pytest.raises(NotFound, match=UNKNOWN):
        look.run(content(1), UNKNOWN, backend=served.endpoint)["x"]

    assert served.count("file_uploads_total") == 1
    assert served.client.requests == []


def test_lost_files_are_sent_again(served) -> None:
    """All of the call's, once each; no call reaches the engine twice."""
    pictures = [content(1), content(2)]
    first = look.run(*pictures, backend=served.endpoint)["x"]
    served.lose_all()
    again = look.run(*pictures, backend=served.endpoint)["x"]
    kept = look.run(*pictures, backend=served.endpoint)["x"]

    assert first == again == kept
    assert served.count("file_uploads_total") == 4
    assert len(served.client.requests) == 3


def test_a_store_too_small_for_one_call_is_no_failure(serve) -> None:
    """The second picture drives the first out, so the content goes with the call."""
    served = serve(max_file_store_bytes=3000)
    pictures = [content(1), content(2)]
    look.run(*pictures, backend=served.endpoint).sync()

    assert served.sources() == [inline(picture) for picture in pictures]


def test_a_picture_too_large_for_the_store_goes_inline(serve) -> None:
    """It is tried once."""
    served = serve(max_file_store_bytes=1999)
    for _ in range(3):
        look.run(content(1), backend=served.endpoint).sync()

    refused = 'http_requests_total{route="/v1/files",status="413"}'
    assert served.count(refused) == 1
    assert served.sources() == [inline(content(1))] * 3


def test_a_server_without_files_gets_content_inline(serve, monkeypatch) -> None:
    """It is asked once, whatever comes later."""
    routes = [route for route in server_app._ROUTES if "files" not in route[0]]
    monkeypatch.setattr(server_app, "_ROUTES", tuple(routes))
    served = serve()
    for seed in range(3):
        look.run(content(seed), backend=served.endpoint).sync()

    assert served.sources() == [inline(content(seed)) for seed in range(3)]
    assert served.count('http_requests_total{route="other",status="404"}') == 1


def test_a_key_is_sent_with_uploads(serve) -> None:
    """The endpoint's key is that of all its requests."""
    served = serve(api_key="k")
    endpoint = sgl.RuntimeEndpoint(served.url, api_key="k")
    look.run(content(1), backend=endpoint).sync()
    endpoint.close()

    assert len(served.client.requests) == 1


class Wire:
    """Answers uploads by a rule, without a network; counts them by content."""

    def __init__(self, rule: Callable[[int], httpx.Response] | None = None) -> None:
        self.paths: list[str] = []
        self._rule = rule or (lambda number: httpx.Response(200, json={"id": f"id{number}"}))
        self._lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """One exchange."""
        with self._lock:
            self.paths.append(request.url.path)
            number = len(self.paths)
        return self._rule(number)

    def client(self) -> httpx.Client:
        """Who talks to it."""
        return httpx.Client(transport=httpx.MockTransport(self), base_url="http://h")


def in_threads(num_threads: int, work: Callable[[], object]) -> list[object]:
    """What `work` gives or raises in each of so many threads at once."""
    results: list[object] = []
    start = threading.Barrier(num_threads)

    def run() -> None:
        start.wait()
        try:
            results.append(work())
        except BackendFailed as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_with_one_new_picture_send_it_once() -> None:
    """The others wait for the first and get its id."""
    ready = threading.Event()

    def rule(number: int) -> httpx.Response:
        ready.wait(0.2)  # long enough for all to ask meanwhile
        return httpx.Response(200, json={"id": f"id{number}"})

    wire = Wire(rule)
    with wire.client() as http:
        uploads = Uploads(http)
        names = in_threads(16, lambda: uploads.name_of(content(1)))

    assert names == ["id1"] * 16
    assert wire.paths == ["/v1/files"]


def test_a_failed_upload_is_told_to_all_and_tried_again() -> None:
    """Nobody waits for ever, and nothing false is remembered."""
    is_down = True

    def rule(number: int) -> httpx.Response:
        if is_down:
            return httpx.Response(500, json={"error": {"message": "why", "code": "broken"}})
        return httpx.Response(200, json={"id": "fine"})

    with Wire(rule).client() as http:
        uploads = Uploads(http)
        errors = in_threads(4, lambda: uploads.name_of(content(1)))
        is_down = False

        assert all(isinstance(error, BackendFailed) for error in errors)
        assert uploads.name_of(content(1)) == "fine"


@pytest.mark.parametrize("reply", [b"", b"[]", b"{}", b'{"id": 3}', b'{"id": ""}', b"\xff"])
def test_a_reply_without_an_id_is_the_backends_failure(reply) -> None:
    """Not a name that fails later."""
    wire = Wire(lambda number: httpx.Response(200, content=reply))
    with wire.client() as http, pytest.raises(BackendFailed):
        Uploads(http).name_of(content(1))


@pytest.mark.parametrize(("status", "num_asked"), [(404, 1), (405, 1), (501, 1), (413, 2)])
def test_what_cannot_be_uploaded_goes_inline(status, num_asked) -> None:
    """No route holds for all content, too large for the one that was."""
    wire = Wire(lambda number: httpx.Response(status))
    with wire.client() as http:
        uploads = Uploads(http)
        names = [uploads.name_of(content(k)) for k in (1, 1, 2, 2)]

    assert names == [None] * 4
    assert len(wire.paths) == num_asked


def test_a_name_that_was_replaced_is_not_forgotten() -> None:
    """Two calls hear that a file is lost; the slower one leaves the new name alone."""
    wire = Wire()
    with wire.client() as http:
        uploads = Uploads(http)
        first = uploads.name_of(content(1))
        uploads.forget(content(1), first)
        second = uploads.name_of(content(1))
        uploads.forget(content(1), first)

        assert first != second == uploads.name_of(content(1))
    assert len(wire.paths) == 2


def test_a_call_cancelled_while_it_uploads_is_never_made() -> None:
    """The reader is told at once; the server gets no prompt."""
    entered, leave = threading.Event(), threading.Event()

    def rule(number: int) -> httpx.Response:
        entered.set()
        leave.wait(10)
        return httpx.Response(200, json={"id": "a"})

    wire = Wire(rule)
    parts = (ImagePart(BytesSource(content(1))), TextPart("What?"))
    request = Request(request_id="r", parts=parts, sampling=SamplingParams())
    before = set(threading.enumerate())
    with wire.client() as http:
        call = HttpCall(http, Uploads(http), request)
        assert entered.wait(10)
        call.cancel()
        with pytest.raises(Aborted):
            list(call.outputs())
        leave.set()
        for thread in set(threading.enumerate()) - before:
            if thread.name in ("mmserve-call", "mmserve-abort"):
                thread.join(10)

    assert "/generate" not in wire.paths

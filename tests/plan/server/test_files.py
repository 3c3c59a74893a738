"""Files uploaded once and named by id: the routes, whose they are, and who leaves first."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.server.test_file_store import Clock
from support.echo_client import EchoClient
from support.site import Site

from mmserve.core import (
    BadRequest,
    BytesSource,
    FramesSource,
    ImagePart,
    ServerConfig,
    VideoPart,
)
from mmserve.server import RunningServer
from mmserve.server.file_store import FileStore
from mmserve.server.forms import parse_form

PICTURE = b"\x89PNG of no use"
UNKNOWN = "file-" + "0" * 32
BOUNDARY = b"--x\r\nContent-Disposition: form-data; "


def upload(http: httpx.Client, content: bytes = PICTURE, **fields: str) -> httpx.Response:
    """Send a file as clients do."""
    data = {"purpose": "vision", **fields}
    return http.post("/v1/files", files={"file": ("a.png", content)}, data=data)


def id_of(http: httpx.Client, content: bytes = PICTURE) -> str:
    """Send a file; its id."""
    return upload(http, content).json()["id"]


def named(site: Site, field: str, item: object) -> object:
    """The first part of a native request with this media item."""
    place = "<video>" if field == "video_data" else "<image>"
    response = site.post("/generate", text=f"{place}hi", **{field: item})
    assert response.status_code == 200, response.text
    return site.client.requests[-1].parts[0]


@pytest.fixture
def clock() -> Clock:
    """Time in `small`."""
    return Clock()


@pytest.fixture
def small(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A server that keeps 100 bytes of files for 100 s, for two clients with their keys."""
    keys = (("ann", "sk-ann"), ("bob", "sk-bob"))
    new = partial(FileStore, clock=clock)
    monkeypatch.setattr("mmserve.server.app.FileStore", new)
    config = ServerConfig(port=0, max_file_store_bytes=100, file_expiry_s=100, client_keys=keys)
    with (
        RunningServer(EchoClient(), config) as server,
        httpx.Client(base_url=server.url, headers={"x-api-key": "sk-ann"}) as http,
    ):
        yield http


def test_a_file_is_told_as_it_came(site) -> None:
    """Upload, facts and content agree; the id is not guessable."""
    told = upload(site.http).json()

    assert told["object"] == "file"
    assert told["bytes"] == len(PICTURE)
    assert (told["filename"], told["purpose"]) == ("a.png", "vision")
    assert len(told["id"]) == len(UNKNOWN)
    assert site.http.get(f"/v1/files/{told['id']}").json() == told
    assert site.http.get(f"/v1/files/{told['id']}/content").content == PICTURE


def test_what_was_uploaded_is_never_run(site) -> None:
    """Its name opens no path, and its content is no page, whatever they look like."""
    name, page = "../../etc/passwd", b"<html><script>alert(1)</script>"
    files = {"file": (name, page, "text/html")}
    told = site.http.post("/v1/files", files=files, data={"purpose": "vision"}).json()
    content = site.http.get(f"/v1/files/{told['id']}/content")

    assert told["filename"] == name
    assert content.content == page
    assert content.headers["content-type"] == "application/octet-stream"
    assert content.headers["x-content-type-options"] == "nosniff"


def test_a_deleted_file_is_not_found(site) -> None:
    """By any route, like one that never was."""
    file_id = id_of(site.http)
    gone = site.http.delete(f"/v1/files/{file_id}").json()

    assert gone == {"id": file_id, "object": "file", "deleted": True}
    for method, path in [("GET", ""), ("GET", "/content"), ("DELETE", "")]:
        response = site.http.request(method, f"/v1/files/{file_id}{path}")
        unknown = site.http.request(method, f"/v1/files/{UNKNOWN}{path}")
        error = site.refused(response, 404)
        assert error["message"].replace(file_id, "") == (
            site.refused(unknown, 404)["message"].replace(UNKNOWN, "")
        )


def test_files_are_listed_newest_first_in_pages(small) -> None:
    """`limit` and `after` walk through all of them, `purpose` and `order` choose."""
    ids = [id_of(small, bytes([k])) for k in range(5)]
    other = upload(small, b"z", purpose="user_data").json()["id"]
    first = small.get("/v1/files", params={"limit": 4}).json()
    rest = small.get("/v1/files", params={"after": first["last_id"]}).json()
    chosen = small.get("/v1/files", params={"purpose": "vision", "order": "asc"}).json()

    listed = [file["id"] for file in first["data"] + rest["data"]]
    assert listed == [other, *reversed(ids)]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert [file["id"] for file in chosen["data"]] == ids


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=99999", "order=up", "purpose=x"]
)
def test_odd_queries_are_refused(site, query) -> None:
    """Each with the field's name."""
    error = site.refused(site.http.get(f"/v1/files?{query}"))

    assert error["param"] == query.split("=")[0]


def timed(seconds: str | None, anchor: str | None, more: str | None = None) -> dict[str, Any]:
    """An upload that says when it expires."""
    after = {"seconds": seconds, "anchor": anchor, **({more: "1"} if more else {})}
    data = {f"expires_after[{name}]": value for name, value in after.items() if value}
    return {"files": {"file": ("a.png", b"x")}, "data": {"purpose": "vision", **data}}


@pytest.mark.parametrize(
    ("request_fields", "param"),
    [
        ({"files": {"file": ("a.png", b"")}, "data": {"purpose": "vision"}}, "file"),
        ({"files": {"file": ("a" * 256, b"x")}, "data": {"purpose": "vision"}}, "file"),
        ({"files": {"file": (None, b"x")}, "data": {"purpose": "vision"}}, "file"),
        ({"files": {"image": ("a.png", b"x")}, "data": {"purpose": "vision"}}, "file"),
        ({"files": {"file": ("a.png", b"x")}}, "purpose"),
        ({"files": {"file": ("a.png", b"x")}, "data": {"purpose": "fun"}}, "purpose"),
        (timed("9", None), "expires_after[anchor]"),
        (timed(None, "created_at"), "expires_after[seconds]"),
        (timed("9", "last_active_at"), "expires_after[anchor]"),
        (timed("0", "created_at"), "expires_after[seconds]"),
        (timed("-9", "created_at"), "expires_after[seconds]"),
        (timed("1e3", "created_at"), "expires_after[seconds]"),
        (timed("2592001", "created_at"), "expires_after[seconds]"),
        (timed("9", "created_at", "x"), "expires_after[x]"),
        ({"files": [("file", ("a", b"x")), ("file", ("b", b"x"))]}, "file"),
        ({"json": {"file": "x"}}, None),
    ],
)
def test_what_is_no_upload_is_refused(site, request_fields, param) -> None:
    """Empty, without a name or a purpose, with a field that means nothing here, or no form."""
    error = site.refused(site.http.post("/v1/files", **request_fields))

    assert error["param"] == param


def test_a_file_over_the_bodys_limit_is_too_large(site) -> None:
    """The same guard as for any body."""
    assert site.refused(upload(site.http, bytes(200_000)), 413)["code"] == "body_too_large"


def test_a_file_over_the_stores_limit_is_too_large(small) -> None:
    """It alone would not fit; what is there stays."""
    kept = id_of(small)
    response = upload(small, bytes(101))

    assert response.status_code == 413
    assert response.json()["error"]["code"] == "file_too_large"
    assert small.get(f"/v1/files/{kept}").status_code == 200


def test_a_file_of_somebody_else_does_not_exist(small) -> None:
    """Not to be seen, named, deleted or listed; the refusal is that of an unknown id."""
    file_id = id_of(small)
    key = {"x-api-key": "sk-bob"}
    asked = {"text": "<image>hi", "image_data": file_id}
    refused = small.post("/generate", json=asked, headers=key)
    unknown = small.post("/generate", json=asked | {"image_data": UNKNOWN}, headers=key)

    assert refused.status_code == unknown.status_code == 404
    assert refused.text.replace(file_id, UNKNOWN) == unknown.text
    assert small.delete(f"/v1/files/{file_id}", headers=key).status_code == 404
    assert small.get("/v1/files", headers=key).json()["data"] == []
    assert small.post("/generate", json=asked).status_code == 200


@pytest.mark.parametrize("kind", ["image_url", "input_image", "video_url", "image"])
def test_a_file_is_named_in_a_conversation(site, kind) -> None:
    """As an address, bare or in an object, wherever one may stand."""
    file_id = id_of(site.http)
    fields = {"image": [{"source": {"type": "url", "url": file_id}}]}
    name = "video_url" if kind == "video_url" else "image_url"
    for part in fields.get(kind) or [{name: file_id}, {name: {"url": file_id}}]:
        content = [{"type": kind, **part}]
        response = site.chat(messages=[{"role": "user", "content": content}])
        found = site.client.requests[-1].parts[0].parts[0]

        assert response.status_code == 200, response.text
        assert found.source == BytesSource(PICTURE)


def test_bounds_hold_for_a_named_file(site) -> None:
    """`detail` and `max_pixels` are the item's, whatever it names."""
    url = {"url": id_of(site.http), "max_pixels": 900}
    content = [{"type": "image_url", "image_url": url}]
    site.chat(messages=[{"role": "user", "content": content}])

    part = site.client.requests[-1].parts[0].parts[0]
    assert part == ImagePart(BytesSource(PICTURE), 900)


def test_a_file_is_named_in_a_native_request(site) -> None:
    """As a picture, a clip, a frame, and in `parts`."""
    file_id, source = id_of(site.http), BytesSource(PICTURE)
    data = base64.b64encode(PICTURE).decode()
    frames = {"frames": [file_id, data], "fps": 2}
    parts = [{"role": "user", "parts": [{"image": file_id}, {"video": {"url": file_id}}]}]
    site.post("/generate", parts=parts)
    turn = site.client.requests[-1].parts[0]

    assert turn.parts == (ImagePart(source), VideoPart(source))
    assert named(site, "image_data", [file_id]) == ImagePart(source)
    assert named(site, "image_data", {"url": file_id}) == ImagePart(source)
    assert named(site, "video_data", file_id) == VideoPart(source)
    assert named(site, "video_data", frames) == VideoPart(FramesSource((source, source), 2.0))


@pytest.mark.parametrize("file_id", [UNKNOWN, "file-", "file-abc", "file-AAAA" + "0" * 28])
@pytest.mark.parametrize(
    "fields",
    [
        {"text": "<image>", "image_data": "?"},
        {"text": "<image>", "image_data": "video:?"},
        {"text": "<video>", "video_data": {"frames": ["?"]}},
        {"parts": [{"image": {"url": "?"}}]},
    ],
)
def test_an_unknown_id_is_not_found_and_never_base64(site, file_id, fields) -> None:
    """The refusal names id, field and way out."""
    asked = json.loads(json.dumps(fields).replace("?", file_id))
    error = site.refused(site.post("/generate", **asked), 404)

    assert file_id in error["message"]
    assert "/v1/files" in error["message"]
    assert error["param"].startswith(tuple(fields))


def test_longer_words_are_base64_of_the_other_alphabet(site) -> None:
    """Content may begin like an id."""
    words = "file-" + "A" * 95
    part = named(site, "image_data", words)

    assert part.source.content == base64.urlsafe_b64decode(words)


def test_a_request_that_was_read_keeps_its_file(site) -> None:
    """Deleting it while the request waits changes nothing."""
    file_id = id_of(site.http)
    part = named(site, "image_data", file_id)
    site.http.delete(f"/v1/files/{file_id}")

    assert part == ImagePart(BytesSource(PICTURE))


def test_files_are_counted(small) -> None:
    """Uploads, evictions, files and bytes, from the start."""

    def told() -> list[str]:
        page = small.get("/metrics").text.splitlines()
        return [line for line in page if line.startswith("mmserve_file")]

    assert told()[0] == "mmserve_files 0.0"
    for content in (bytes(60), bytes(60), b"x" * 60):
        upload(small, content)

    assert told() == [
        "mmserve_files 1.0",
        "mmserve_file_bytes 60.0",
        "mmserve_file_uploads_total 3.0",
        "mmserve_file_evictions_total 2.0",
        "mmserve_file_expirations_total 0.0",
    ]


def test_expiry_is_told_and_kept(small, clock: Clock) -> None:
    """`expires_at` follows the uses; what a request names after it is a 404 that says so."""
    told = upload(small, b"x").json()
    ending = small.post("/v1/files", **timed("60", "created_at")).json()
    asked = {"text": "<image>hi", "image_data": told["id"]}
    assert (told["created_at"], told["expires_at"]) == (1000, 1100)
    assert ending["expires_at"] == 1060
    clock.now_s = 1050
    assert small.post("/generate", json=asked).status_code == 200
    assert small.get(f"/v1/files/{told['id']}").json()["expires_at"] == 1150
    clock.now_s = 1150

    refused = small.post("/generate", json=asked)
    assert refused.status_code == 404
    assert f'the file \\"{told["id"]}\\" has expired' in refused.text
    assert small.get("/v1/files").json()["data"] == []


@pytest.mark.parametrize("expiry_s", [0, -1, float("nan"), float("inf"), 1e9])
def test_files_expire_after_some_time(expiry_s: float) -> None:
    """Not at once, and not never."""
    with pytest.raises(BadRequest, match="file_expiry_s"):
        ServerConfig(file_expiry_s=expiry_s)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=400), st.text(max_size=20))
def test_any_content_passes_a_form(content, words) -> None:
    """What httpx writes is read back, byte by byte."""
    request = httpx.Request("POST", "http://h", files={"f": ("n", content)}, data={"w": words})
    form = parse_form(request.read(), request.headers["content-type"])

    assert form["f"].content == content
    assert form["f"].filename == "n"
    assert form["w"].content.decode() == words


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"--x",
        b"no form",
        BOUNDARY + b'name="f"\r\n\r\ncut off',
        BOUNDARY + b'name="f"\r\n\r\ncut off\r\n--x',
        BOUNDARY + b'filename="f"\r\n\r\nv\r\n--x--\r\n',
        BOUNDARY + b'name="\xff"\r\n\r\nv\r\n--x--\r\n',
        b"--x\r\nbroken header\r\n\r\nv\r\n--x--\r\n",
        b"--x\r\n\r\nv\r\n--x--\r\n",
        (BOUNDARY + b'name="f"\r\n\r\nv\r\n') * 40 + b"--x--\r\n",
    ],
)
def test_a_broken_form_is_refused(raw) -> None:
    """Cut off, without names, or with too many parts."""
    with pytest.raises(BadRequest):
        parse_form(raw, "multipart/form-data; boundary=x")


@pytest.mark.parametrize("content_type", ["", "text/plain", "multipart/form-data", "\xff; x=y"])
def test_a_form_needs_its_boundary(content_type) -> None:
    """A body of another type is refused with what to send."""
    with pytest.raises(BadRequest, match="multipart/form-data"):
        parse_form(b"--x--", content_type)


def test_a_boundary_of_any_length_is_read_or_refused() -> None:
    """It is the client's word."""
    with pytest.raises(BadRequest):
        parse_form(b"--x--", f"multipart/form-data; boundary={'x' * 100_000}")

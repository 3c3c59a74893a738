"""Fetching from a local server: limits, and the guards O-SEC-01 and O-SEC-02."""

import contextlib
import socket
import threading
import time

import httpcore
import pytest
from plan.vision.making import noise, saved, shown

from mmserve.core import MediaConfig, MediaRefused, UrlSource
from mmserve.vision import Fetcher
from mmserve.vision import fetch as fetch_module
from mmserve.vision.network import resolve_host
from mmserve.vision.sources import SourceReader

OPEN = MediaConfig(allow_private_hosts=True)


def named_hosts(**addresses):
    """A resolver for tests: names without dots are looked up here."""

    def resolve(host: str, port: int) -> list[str]:
        known = addresses.get(host.removesuffix(".test"))
        return [known] if known else resolve_host(host, port)

    return resolve


def refusal(fetcher: Fetcher, url: str) -> MediaRefused:
    """How `fetcher` refuses `url`."""
    with pytest.raises(MediaRefused) as caught:
        fetcher.fetch(url)
    return caught.value


def test_content_is_fetched(web):
    """The bytes of a page come back as they are, the host header names the host asked for."""
    web.pages["/a%20b.png?x=1"] = (200, {}, b"abc")
    fetcher = Fetcher(OPEN, resolve=named_hosts(pictures="127.0.0.1"))
    assert fetcher.fetch(web.url("/a b.png?x=1", host="pictures.test")) == b"abc"
    assert web.hosts == [f"pictures.test:{web.port}"]


def test_declared_type_of_an_answer_is_ignored(web):
    """A picture served as octet-stream under a false name is known by its bytes (O-IMG-10)."""
    content = saved(noise(8, 8), "WEBP", lossless=True)
    web.pages["/a.gif"] = (200, {"Content-Type": "application/octet-stream"}, content)
    assert (shown(web.url("/a.gif"), allow_private_hosts=True) == shown(content)).all()


@pytest.mark.parametrize("status", [401, 404, 500, 204, 304])
def test_other_statuses_are_refused(web, status):
    """An answer other than 200 is a failed fetch that tells the status."""
    web.pages["/a?token=abc123"] = (status, {}, b"")
    error = refusal(Fetcher(OPEN), web.url("/a?token=abc123"))
    assert (error.fields["reason"], error.fields["status"]) == ("fetch_failed", status)
    assert "abc123" not in str(error)


def redirecting(web, secret_web):
    """A fetcher that may ask `pictures.test` only, and a server full of redirects."""
    web.pages["/a.png"] = (200, {}, b"picture")
    for name, location in {
        "/private": secret_web.url("/secret.png"),
        "/metadata": "http://169.254.169.254/",
        "/file": "file:///etc/hostname",
        "/data": "data:,x",
        "/bare": "//127.0.0.1/x",
        "/ftp": "ftp://pictures.test/x",
        "/broken": "http://[x/",
        "/control": "/a.png\x7f",
        "/login": f"http://user:word@pictures.test:{web.port}/a.png",
        "/relative": "a.png",
        "/loop": "/loop",
        **{f"/chain{n}": f"/chain{n + 1}" for n in range(15)},
        **{f"/short{n}": f"/short{n + 1}" for n in range(4)},
        "/short4": "/a.png",
        "/port": secret_web.url("/other.png", host="pictures.test"),
    }.items():
        web.pages[name] = (302, {"Location": location}, b"")
    config = MediaConfig(
        allow_private_hosts=True, allowed_hosts=(f"pictures.test:{web.port}",), max_redirects=5
    )
    return Fetcher(config, resolve=named_hosts(pictures="127.0.0.1"))


@pytest.mark.parametrize(
    "path",
    [
        "/private", "/metadata", "/file", "/data", "/bare", "/port", "/loop", "/chain0",
        "/ftp", "/broken", "/control", "/login",
    ],
)  # fmt: skip
def test_forbidden_redirects(web, secret_web, path):
    """Every hop is checked like the first address, and their number is limited (O-SEC-01)."""
    fetcher = redirecting(web, secret_web)
    error = refusal(fetcher, web.url(path, host="pictures.test"))
    assert error.fields["reason"] == "fetch_forbidden"
    assert secret_web.asked == []
    assert len(web.asked) <= 6


@pytest.mark.parametrize("path", ["/relative", "/short0"])
def test_permitted_redirects(web, secret_web, path):
    """Redirects on the same host are followed, also relative ones (O-SEC-01)."""
    fetcher = redirecting(web, secret_web)
    assert fetcher.fetch(web.url(path, host="pictures.test")) == b"picture"


def test_allowed_host_without_port_covers_every_port(web, secret_web):
    """A host on the list without a port may be asked on any port."""
    secret_web.pages["/other.png"] = (200, {}, b"other")
    web.pages["/port"] = (302, {"Location": secret_web.url("/other.png", host="A.test.")}, b"")
    config = MediaConfig(allow_private_hosts=True, allowed_hosts=("a.test",))
    fetcher = Fetcher(config, resolve=lambda host, port: ["127.0.0.1"])
    assert fetcher.fetch(web.url("/port", host="a.test")) == b"other"


def test_each_hop_is_checked_on_the_address_dialled(web, monkeypatch):
    """A redirect to a name that resolves to a private address is refused before dialling."""
    web.pages["/r"] = (302, {"Location": web.url("/secret", host="back.test")}, b"")
    monkeypatch.setattr(fetch_module, "is_public_address", lambda text: text == "127.0.0.1")
    resolve = named_hosts(front="127.0.0.1", back="127.0.0.2")
    error = refusal(Fetcher(MediaConfig(), resolve=resolve), web.url("/r", host="front.test"))
    assert error.fields["reason"] == "fetch_forbidden"
    assert web.asked == ["/r"]


@pytest.mark.parametrize(
    "address",
    [
        "http://127.1:{port}/", "http://2130706433:{port}/", "http://0x7f.1:{port}/",
        "http://0177.0.0.1:{port}/", "http://[::1]:{port}/", "http://[::ffff:127.0.0.1]:{port}/",
        "http://0.0.0.0:{port}/", "http://localhost.:{port}/", "http://LOCALHOST:{port}/",
        "http://10.0.0.1/", "http://100.64.0.1/", "http://169.254.169.254/", "ftp://x/",
        "gopher://x/", "http://user:word@127.0.0.1:{port}/", "http:///x", "http://",
        "http://127.0.0.1:{port}\\@example.com/", "http://[fe80::1%25lo]:{port}/",
        "http://127.0.0.1:99999/", "http://[::1/", "https://127.0.0.1:{port}/",
        "http://\uff11\uff12\uff17.\uff10.\uff10.\uff11:{port}/", "http://ⓛocalhost:{port}/",
        "http://127\u30020\u30020\u30021:{port}/",
        "http://[::ffff:7f00:1]:{port}/", "http://[64:ff9b::7f00:1]/", "http://[2002:7f00:1::]/",
        "http://127.0.0.1:{port}/\r\nX: y", "http://127.0.0.1:{port}/\tx", "http://h\n/",
        "http://example.com@127.0.0.1:{port}/", "http://127.0.0.1:{port}/\ud800", "http://\ud800/",
        "http://127.0.0.1:-1/", "http://" + "a" * 70 + "/",
    ],
)  # fmt: skip
def test_internal_addresses_in_any_spelling(web, address):
    """No spelling of an internal address is dialled by default (O-SEC-02)."""
    reader = SourceReader(MediaConfig(), Fetcher(MediaConfig()))
    with pytest.raises(MediaRefused) as caught:
        reader.read(UrlSource(address.format(port=web.port)))
    assert caught.value.fields["reason"] == "fetch_forbidden"
    assert web.asked == []


def test_name_with_one_private_address_is_refused(web):
    """All addresses of a name must be public, not only the first."""
    fetcher = Fetcher(MediaConfig(), resolve=lambda host, port: ["93.184.216.34", "127.0.0.1"])
    error = refusal(fetcher, web.url("/", host="mixed.test"))
    assert error.fields["reason"] == "fetch_forbidden"
    assert web.asked == []


def test_a_name_is_resolved_once_for_each_hop(web):
    """The addresses that were checked are the ones dialled, whatever the name says next."""
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])
    web.pages["/a"] = (200, {}, b"picture")
    fetcher = Fetcher(OPEN, resolve=lambda host, port: next(answers))
    assert fetcher.fetch(web.url("/a", host="moving.test")) == b"picture"
    assert next(answers) == ["10.0.0.1"]


def test_a_silent_address_does_not_keep_from_the_next(web, monkeypatch):
    """Of the addresses of a name, one that does not answer takes its part of the time only."""
    web.pages["/a"] = (200, {}, b"picture")
    dialled = []

    class Dialling(httpcore.SyncBackend):
        def connect_tcp(self, host, port, timeout=None, *rest):
            dialled.append((host, timeout))
            if host == "127.0.0.2":
                raise httpcore.ConnectTimeout
            return super().connect_tcp(host, port, timeout, *rest)

    monkeypatch.setattr(httpcore, "SyncBackend", Dialling)
    fetcher = Fetcher(OPEN, resolve=lambda host, port: ["127.0.0.2", "127.0.0.1"])
    assert fetcher.fetch(web.url("/a", host="two.test")) == b"picture"
    (silent, part_s), (answering, rest_s) = dialled
    assert (silent, answering) == ("127.0.0.2", "127.0.0.1")
    assert 0 < part_s <= OPEN.fetch_timeout_s / 2
    assert part_s < rest_s


def test_proxies_of_the_environment_are_not_used(web, secret_web, monkeypatch):
    """A proxy would dial addresses that nobody has checked."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, secret_web.url(""))
    web.pages["/a"] = (200, {}, b"picture")
    assert Fetcher(OPEN).fetch(web.url("/a")) == b"picture"
    assert secret_web.asked == []


def test_private_hosts_need_the_switch(web):
    """The explicit switch permits private addresses."""
    web.pages["/"] = (200, {}, b"x")
    assert Fetcher(OPEN).fetch(web.url("/")) == b"x"


@pytest.mark.parametrize("headers", [{}, {"Content-Length": "100000000000"}])
def test_bytes_are_limited(web, headers):
    """More bytes than the limit are refused, announced or not."""
    web.pages["/"] = (200, headers, bytes(2000))
    config = MediaConfig(allow_private_hosts=True, max_media_bytes=1999)
    error = refusal(Fetcher(config), web.url("/"))
    assert (error.fields["reason"], error.fields["limit_bytes"]) == ("too_large", 1999)


def test_compressed_answers_are_refused(web):
    """An answer that is compressed though nobody asked for it is refused, not unpacked."""
    web.pages["/"] = (200, {"Content-Encoding": "gzip"}, b"\x1f\x8b")
    assert "compressed" in str(refusal(Fetcher(OPEN), web.url("/")))


def test_a_web_page_is_named_as_such(web):
    """A page where a picture should be is refused with what to send; a picture is served."""
    page = b"\n<!doctype html><html>"
    web.pages["/page?token=abc123"] = (200, {"Content-Type": "text/html; charset=utf-8"}, page)
    web.pages["/picture"] = (200, {"Content-Type": "text/html"}, b"\x89PNG")
    error = refusal(Fetcher(OPEN), web.url("/page?token=abc123"))
    assert error.fields["reason"] == "unsupported"
    assert "web page" in str(error)
    assert "abc123" not in str(error)
    assert Fetcher(OPEN).fetch(web.url("/picture")) == b"\x89PNG"


def answered(raw: bytes, url: str = "http://{}/", **settings) -> MediaRefused | bytes:
    """What comes of a fetch that is answered with these bytes and the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(5)
                heard.append(connection.recv(4096))
                with contextlib.suppress(OSError):
                    connection.sendall(raw)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass

        heard: list[bytes] = []
        thread = threading.Thread(target=answer)
        thread.start()
        config = MediaConfig(allow_private_hosts=True, **settings)
        fetcher = Fetcher(config, resolve=named_hosts(pictures="127.0.0.1"))
        try:
            return fetcher.fetch(url.format(f"pictures.test:{listener.getsockname()[1]}"))
        except MediaRefused as error:
            error.fields["heard"] = heard[0]
            return error
        finally:
            thread.join()


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\r\n\r\n", b"<html>", b"ICY 200 OK\r\n\r\nx", b"\x16\x03\x01" + bytes(50),
        OK + b"Content-Length: -5\r\n\r\nx", OK + b"Content-Length: 1e3\r\n\r\nx",
        OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nx",
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        OK + b"Content-Length: 9\r\n\r\ncut", OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\ncut",
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\nx",
        OK + b"X: " + b"x" * 300_000, b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 50_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
        b"HTTP/1.1 302 Found\r\nLocation: \xff\xfe\r\n", b"HTTP/1.1 999 No\r\n\r\n",
    ],
)  # fmt: skip
def test_odd_answers_are_failed_fetches(raw):
    """Lengths that are no lengths, endless headers, cut content: a refusal, never a crash."""
    error = answered(raw)
    assert isinstance(error, MediaRefused)
    assert error.fields["reason"] == "fetch_failed"


@pytest.mark.parametrize(
    "raw",
    [
        OK + b"Transfer-Encoding: chunked\r\n\r\n64\r\n" + b"x" * 100 + b"\r\n64\r\nx",
        OK + b"\r\n" + bytes(500),
        OK + b"Content-Length: 99999999999999999999\r\n\r\nx",
    ],
)  # fmt: skip
def test_bytes_are_limited_however_they_come(raw):
    """In chunks, up to the end of the connection, or announced."""
    error = answered(raw, max_media_bytes=100)
    assert isinstance(error, MediaRefused)
    assert error.fields["reason"] == "too_large"


def test_chunks_are_joined():
    """A chunked answer is its content."""
    raw = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nA: b\r\n\r\n"
    assert answered(raw) == b"abcde"


def test_a_pinned_address_hears_the_name():
    """TLS to a checked address asks for the host's name, and its certificate is verified."""
    error = answered(b"no TLS", "https://{}/")
    assert isinstance(error, MediaRefused)
    assert error.fields["reason"] == "fetch_failed"
    assert b"pictures.test" in error.fields["heard"]


def test_time_is_limited_in_total():
    """A server that sends a byte now and then does not hold a fetch beyond its limit."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not stop.wait(0.02):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        config = MediaConfig(allow_private_hosts=True, fetch_timeout_s=0.2)
        started = time.monotonic()
        error = refusal(Fetcher(config), f"http://127.0.0.1:{listener.getsockname()[1]}/")
        took = time.monotonic() - started
        stop.set()
        thread.join()
    assert error.fields == {"reason": "fetch_failed", "limit_s": 0.2}
    assert took < 1.5


def test_resolver_that_hangs_is_left_behind():
    """A name whose resolution hangs is refused within the limit."""
    release = threading.Event()

    def resolve(host: str, port: int) -> list[str]:
        release.wait(5)
        return []

    config = MediaConfig(fetch_timeout_s=0.1)
    error = refusal(Fetcher(config, resolve=resolve), "http://slow.test/")
    release.set()
    assert error.fields["reason"] == "fetch_failed"


@pytest.mark.parametrize("host", ["nobody.invalid", "127.0.0.1:1"])
def test_unreachable_hosts_are_refused(host):
    """A host that does not exist or does not answer is a failed fetch."""
    error = refusal(Fetcher(OPEN, resolve=_only_numbers), f"http://{host}/")
    assert error.fields["reason"] == "fetch_failed"


def _only_numbers(host: str, port: int) -> list[str]:
    if not host[0].isdigit():
        raise OSError
    return [host]


def test_simultaneous_readers_share_a_fetch(web):
    """Readers that ask for one address at the same time cause one request."""
    gate = threading.Event()

    def resolve(host: str, port: int) -> list[str]:
        gate.wait(5)
        return ["127.0.0.1"]

    web.pages["/a"] = (200, {}, b"abc")
    reader = SourceReader(OPEN, Fetcher(OPEN, resolve=resolve))
    got: list[bytes] = []
    url = UrlSource(web.url("/a", host="pictures.test"))
    threads = [threading.Thread(target=lambda: got.append(reader.read(url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    gate.set()
    for thread in threads:
        thread.join()
    assert got == [b"abc"] * 4
    assert (web.asked, reader.num_fetches) == (["/a"], 1)

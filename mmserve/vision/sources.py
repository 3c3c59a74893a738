"""From a source named in a request to bytes in memory."""

from __future__ import annotations

import binascii
import re
import threading
from concurrent.futures import Future
from contextlib import suppress
from urllib.parse import unquote_to_bytes, urlsplit

from mmserve.core import (
    BytesSource,
    FramesSource,
    ImagePart,
    MediaConfig,
    PathSource,
    UrlSource,
    VideoPart,
)
from mmserve.vision.addresses import shown_url
from mmserve.vision.fetch import Fetcher
from mmserve.vision.folder import read_file_url, read_local_path
from mmserve.vision.kept import KeptFetches, Key
from mmserve.vision.refusal import refused

__all__ = ["SourceReader", "read_data_url", "remote_host"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_SPACES = b" \t\r\n\f"
_PLAIN_ALPHABET = bytes.maketrans(b"-_", b"+/")


class SourceReader:
    """Reads sources under the limits of `config`; safe to use from any thread.

    Readers that ask for one address at the same time share one fetch. What a hint has fetched
    is kept for a while, so that the request it was for does not fetch it again.

    Args:
        config: limits and guards.
        fetcher: reads http and https addresses.
    """

    def __init__(self, config: MediaConfig, fetcher: Fetcher) -> None:
        self._config = config
        self._fetcher = fetcher
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[bytes]] = {}
        self._kept = KeptFetches(config.source_cache_bytes, config.source_cache_s)
        self.num_fetches = 0

    def read(self, source: BytesSource | PathSource | UrlSource, *, salt: str = "") -> bytes:
        """Bytes of one source, never empty, for a request of the tenant of `salt`.

        Raises:
            MediaRefused: not permitted, not there, empty, or over `max_media_bytes`.

        Changes: `num_fetches`, for http and https; what is kept.
        """
        if isinstance(source, UrlSource) and _is_fetched(source.url):
            content = self._fetched((salt, source.url))
            return self._checked(b"" if content is None else content)
        return self._checked(self._local(source))

    def expect(self, source: BytesSource | PathSource | UrlSource, *, salt: str) -> None:
        """A hint names a source, and `read_early` follows. Changes: what is expected.

        A request that comes before that does the work itself.
        """
        if isinstance(source, UrlSource) and _is_fetched(source.url):
            with self._lock:
                self._kept.expect((salt, source.url))

    def read_early(
        self, source: BytesSource | PathSource | UrlSource, *, salt: str
    ) -> bytes | None:
        """As `read`, for a hint: None if a request has come before it.

        Changes: as `read`; what was fetched is kept for the request.
        """
        if not isinstance(source, UrlSource) or not _is_fetched(source.url):
            return self._checked(self._local(source))
        content = self._fetched((salt, source.url), is_early=True)
        return None if content is None else self._checked(content)

    def hold(self, source: BytesSource | PathSource | UrlSource, *, salt: str) -> None:
        """Keep what requests fetch of a source until `release`. Changes: what is kept."""
        if isinstance(source, UrlSource) and _is_fetched(source.url):
            with self._lock:
                self._kept.hold((salt, source.url))

    def release(self, source: BytesSource | PathSource | UrlSource, *, salt: str) -> None:
        """Undo one `hold`. Changes: what is kept."""
        if isinstance(source, UrlSource) and _is_fetched(source.url):
            with self._lock:
                self._kept.release((salt, source.url))

    def give_up(self, source: BytesSource | PathSource | UrlSource, *, salt: str) -> None:
        """A hint has come to its end, good or bad. Changes: its source is not expected."""
        if isinstance(source, UrlSource):
            with self._lock:
                self._kept.give_up((salt, source.url))

    def forget(self) -> None:
        """Changes: nothing that hints have fetched is kept."""
        with self._lock:
            self._kept.forget()

    def _checked(self, content: bytes) -> bytes:
        if not content:
            raise refused("undecodable", "is empty: 0 bytes")
        limit = self._config.max_media_bytes
        if len(content) > limit:
            message = f"has {len(content)} bytes, the limit is {limit}"
            raise refused("too_large", message, num_bytes=len(content), limit_bytes=limit)
        return content

    def _local(self, source: BytesSource | PathSource | UrlSource) -> bytes:
        """Bytes that need no fetch."""
        if isinstance(source, PathSource):
            return read_local_path(source.path, self._config)
        if isinstance(source, BytesSource):
            return source.content
        url, scheme = source.url, _scheme(source.url)
        if scheme == "data":
            return read_data_url(url, self._config.max_media_bytes)
        if scheme == "file":
            return read_file_url(url, self._config)
        raise refused(
            "fetch_forbidden",
            f"has an address that is not served: {shown_url(url)!r}",
            hint="use http, https or data",
        )

    def _fetched(self, key: Key, *, is_early: bool = False) -> bytes | None:
        """One fetch for all who ask at a time, and for the hint before them.

        None, for a hint only, if a request has come before it.
        """
        _, url = key
        with self._lock:
            content = self._kept.look(key) if is_early else self._kept.use(key)
            if content is not None:
                return content
            if is_early and not self._kept.is_wanted(key):
                return None
            running = self._under_way.get(url)
            mine: Future[bytes] = Future()
            if running is None:
                self._under_way[url] = mine
                self.num_fetches += 1
        if running is not None:
            content = running.result()
            with self._lock:
                self._kept.keep(key, content)
            return content
        return self._fetch(key, mine)

    def _fetch(self, key: Key, flight: Future[bytes]) -> bytes:
        """Fetch for all who wait for `flight`; what a hint expects is kept as it comes."""
        _, url = key
        try:
            content = self._fetcher.fetch(url)
        except BaseException as error:  # noqa: BLE001 - handed to everyone who waits
            with self._lock:
                del self._under_way[url]
            flight.set_exception(error)
        else:
            with self._lock:
                del self._under_way[url]
                self._kept.keep(key, content)
            flight.set_result(content)
        return flight.result()


def _scheme(url: str) -> str:
    found = _SCHEME.match(url)
    return found.group(1).lower() if found else ""


def _is_fetched(url: str) -> bool:
    """Whether the bytes behind an address come over the network. Pure."""
    return _scheme(url) in ("http", "https")


def remote_host(part: ImagePart | VideoPart) -> str | None:
    """The host that a part is fetched from first; None if no host is asked for it. Pure."""
    source = part.source
    for one in source.frames if isinstance(source, FramesSource) else (source,):
        if isinstance(one, UrlSource) and _is_fetched(one.url):
            with suppress(ValueError):  # no address; it is refused when it is read
                return (urlsplit(one.url).hostname or "").removesuffix(".") or None
    return None


def read_data_url(url: str, limit_bytes: int) -> bytes:
    """Bytes of a `data:` address (RFC 2397); the declared media type is ignored.

    Base64 may lack its padding, use the URL-safe alphabet, be percent-encoded, and hold white
    space; any other character is refused. Raises MediaRefused. Pure.
    """
    head, comma, body = url[len("data:") :].partition(",")
    if not comma:
        raise refused("undecodable", "is a data: address without a comma")
    if len(body) > 4 * limit_bytes + 1024:
        raise _too_large(len(body), limit_bytes)
    try:
        payload = unquote_to_bytes(body) if "%" in body else body.encode("ascii")
    except UnicodeEncodeError:
        raise refused("undecodable", "is a data: address with a non-ASCII character") from None
    if head.rpartition(";")[2].strip().lower() != "base64":
        return payload
    if len(payload) * 3 // 4 > limit_bytes + 1024:
        raise _too_large(len(payload) * 3 // 4, limit_bytes)
    return _from_base64(payload.translate(_PLAIN_ALPHABET, _SPACES))


def _from_base64(text: bytes) -> bytes:
    text = text.removesuffix(b"=").removesuffix(b"=")
    try:
        if b"=" in text:
            raise binascii.Error
        return binascii.a2b_base64(text + b"=" * (-len(text) % 4), strict_mode=True)
    except binascii.Error:
        raise refused("undecodable", "is not valid base64", hint=_BASE64_HINT) from None


_BASE64_HINT = "the letters of base64 are A-Z a-z 0-9 + / (or - _), with = only at the end"


def _too_large(num_bytes: int, limit_bytes: int) -> Exception:
    message = f"has about {num_bytes} bytes, the limit is {limit_bytes}"
    return refused("too_large", message, limit_bytes=limit_bytes)

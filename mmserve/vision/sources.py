"""From a source named in a request to bytes in memory."""

from __future__ import annotations

import binascii
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from urllib.parse import unquote_to_bytes

from mmserve.core import BytesSource, MediaConfig, PathSource, UrlSource
from mmserve.vision.addresses import shown_url
from mmserve.vision.fetch import Fetcher
from mmserve.vision.folder import read_file_url, read_local_path
from mmserve.vision.refusal import refused

__all__ = ["SourceReader", "read_data_url"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_SPACES = b" \t\r\n\f"
_PLAIN_ALPHABET = bytes.maketrans(b"-_", b"+/")


class SourceReader:
    """Reads sources under the limits of `config`; safe to use from any thread.

    Readers that ask for one address at the same time share one fetch.

    Args:
        config: limits and guards.
        fetcher: reads http and https addresses.
    """

    def __init__(self, config: MediaConfig, fetcher: Fetcher) -> None:
        self._config = config
        self._fetcher = fetcher
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[bytes]] = {}
        self.num_fetches = 0

    def read(self, source: BytesSource | PathSource | UrlSource) -> bytes:
        """Bytes of one source, never empty.

        Raises:
            MediaRefused: not permitted, not there, empty, or over `max_media_bytes`.

        Changes: `num_fetches`, for http and https.
        """
        if isinstance(source, PathSource):
            return read_local_path(source.path, self._config)
        content = source.content if isinstance(source, BytesSource) else self._url(source.url)
        if not content:
            raise refused("undecodable", "is empty: 0 bytes")
        limit = self._config.max_media_bytes
        if len(content) > limit:
            message = f"has {len(content)} bytes, the limit is {limit}"
            raise refused("too_large", message, num_bytes=len(content), limit_bytes=limit)
        return content

    def _url(self, url: str) -> bytes:
        found = _SCHEME.match(url)
        scheme = found.group(1).lower() if found else ""
        if scheme == "data":
            return read_data_url(url, self._config.max_media_bytes)
        if scheme in ("http", "https"):
            return self._shared(url, lambda: self._fetcher.fetch(url))
        if scheme == "file":
            return read_file_url(url, self._config)
        raise refused(
            "fetch_forbidden",
            f"has an address that is not served: {shown_url(url)!r}",
            hint="use http, https or data",
        )

    def _shared(self, url: str, work: Callable[[], bytes]) -> bytes:
        with self._lock:
            running = self._under_way.get(url)
            mine: Future[bytes] = Future()
            if running is None:
                self._under_way[url] = mine
                self.num_fetches += 1
        if running is not None:
            return running.result()
        try:
            mine.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to everyone who waits
            mine.set_exception(error)
        finally:
            with self._lock:
                del self._under_way[url]
        return mine.result()


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

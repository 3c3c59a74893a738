"""Fetching by http and https: every hop is checked on the address that is dialled.

address -> name allowed? -> resolve -> all addresses public? -> dial one of exactly those
   ^                                                               |
   +------------------- redirect, by hand, again from the start <--+
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import httpcore

from mmserve.core import MediaConfig
from mmserve.vision.addresses import is_public_address, shown_url
from mmserve.vision.network import GuardedNetwork, resolve_host
from mmserve.vision.refusal import refused

__all__ = ["Fetcher"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
_LONGEST_URL = 8192
_UNQUOTED = "%/:=&?~+!$,;'@()*[]|"


class Fetcher:
    """Reads the bytes behind http and https addresses under the limits of `config`.

    Args:
        config: limits and guards.
        resolve: (host, port) to numeric addresses; the system's resolver by default.

    Safe to use from any thread. Sends no cookies and no credentials, and uses no proxy.
    """

    def __init__(
        self,
        config: MediaConfig,
        *,
        resolve: Callable[[str, int], list[str]] = resolve_host,
    ) -> None:
        self._config = config
        self._resolve = resolve
        self._tls_lock = threading.Lock()
        self._tls: ssl.SSLContext | None = None

    def fetch(self, url: str) -> bytes:
        """The content behind `url`, redirects followed.

        Raises:
            MediaRefused: forbidden address, failed fetch (with `status` if a server answered),
                or more bytes than the limit.
        """
        deadline = monotonic() + self._config.fetch_timeout_s
        address = url
        for _ in range(self._config.max_redirects + 1):
            content, location = self._hop(address, deadline)
            if location is None:
                return content
            address = _redirected(address, location)
        limit = self._config.max_redirects
        raise refused(
            "fetch_forbidden",
            f"is redirected more than {limit} times by {shown_url(url)}",
            limit=limit,
        )

    def _hop(self, url: str, deadline: float) -> tuple[bytes, str | None]:
        scheme, host, port, target = self._checked(url)
        network = GuardedNetwork(self._resolve, self._check_addresses, deadline)
        host_header = f"[{host}]" if ":" in host else host
        if port != _PORTS[scheme]:
            host_header += f":{port}"
        headers = [
            ("Host", host_header),
            ("User-Agent", "mmserve"),
            ("Accept", "*/*"),
            ("Accept-Encoding", "identity"),
        ]
        address = httpcore.URL(
            scheme=scheme.encode(), host=host.encode(), port=port, target=target.encode()
        )
        tls = self._tls_context() if scheme == "https" else None
        try:
            with (
                httpcore.ConnectionPool(ssl_context=tls, network_backend=network) as pool,
                pool.stream("GET", address, headers=headers) as response,
            ):
                return self._answer(response, url)
        except httpcore.TimeoutException:
            limit_s = self._config.fetch_timeout_s
            message = f"could not be fetched from {shown_url(url)} within {limit_s:g} s"
            raise refused("fetch_failed", message, limit_s=limit_s) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, ValueError):
            message = f"could not be fetched from {shown_url(url)}: the connection failed"
            raise refused("fetch_failed", message) from None

    def _answer(self, response: httpcore.Response, url: str) -> tuple[bytes, str | None]:
        headers = {name.lower(): value for name, value in response.headers}
        if response.status in _REDIRECTS and b"location" in headers:
            return b"", headers[b"location"].decode("utf-8", "replace")
        if response.status != 200:
            message = (
                f"could not be fetched from {shown_url(url)}: HTTP status {response.status}"
            )
            raise refused("fetch_failed", message, status=response.status)
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            message = f"could not be fetched from {shown_url(url)}: the answer is compressed"
            raise refused("fetch_failed", message)
        declared = headers.get(b"content-length", b"0")
        content = self._read(response.iter_stream(), url, int(declared))
        if _is_page(headers.get(b"content-type", b""), content):
            raise refused(
                "unsupported",
                f"is a web page, neither picture nor clip: {shown_url(url)}",
                hint="use the address of the file itself",
            )
        return content, None

    def _read(self, chunks: Iterable[bytes], url: str, declared_bytes: int) -> bytes:
        limit = self._config.max_media_bytes
        content = bytearray()
        if declared_bytes <= limit:
            for chunk in chunks:
                content += chunk
                if len(content) > limit:
                    break
        if max(declared_bytes, len(content)) > limit:
            message = f"at {shown_url(url)} has more than {limit} bytes, the limit"
            raise refused("too_large", message, limit_bytes=limit)
        return bytes(content)

    def _checked(self, url: str) -> tuple[str, str, int, str]:
        """Scheme, host, port and target of a permitted address. Raises MediaRefused."""
        if len(url) > _LONGEST_URL:
            raise _forbidden(url, f"has an address longer than {_LONGEST_URL} characters")
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
            host = (parts.hostname or "").removesuffix(".")
            host = host.encode("idna").decode() if host else ""
            target = quote(parts.path or "/", safe=_UNQUOTED)
            target += "?" + quote(parts.query, safe=_UNQUOTED) if parts.query else ""
        except ValueError:
            raise _forbidden(url, "is not a valid address") from None
        if parts.scheme not in _PORTS:
            raise _forbidden(url, "leads to an address that is neither http nor https")
        if not host or {"@", "%"} & set(parts.netloc) or _has_control(url):
            raise _forbidden(url, "is not a plain address of a host")
        if not self._is_allowed_host(host, port):
            raise _forbidden(url, "is on a host that is not among the allowed ones")
        return parts.scheme, host, port, target

    def _is_allowed_host(self, host: str, port: int) -> bool:
        if not self._config.allowed_hosts:
            return True
        names = {host, f"{host}:{port}"}
        return any(name.lower() in names for name in self._config.allowed_hosts)

    def _check_addresses(self, addresses: list[str]) -> None:
        if self._config.allow_private_hosts:
            return
        if not all(is_public_address(address) for address in addresses):
            raise refused(
                "fetch_forbidden",
                "is on a host with a private or reserved network address",
                hint="the operator can permit such hosts with allow_private_hosts",
            )

    def _tls_context(self) -> ssl.SSLContext:
        with self._tls_lock:
            if self._tls is None:
                self._tls = httpcore.default_ssl_context()
            return self._tls


def _redirected(url: str, location: str) -> str:
    """Where a redirect from `url` leads. Raises MediaRefused if that is no address. Pure."""
    try:
        return urljoin(url, location)
    except ValueError:
        raise _forbidden(location, "is redirected to what is not a valid address") from None


def _is_page(content_type: bytes, content: bytes) -> bool:
    """Whether an answer is called a web page and looks like one. Pure."""
    return b"html" in content_type.lower() and content[:1024].lstrip()[:1] == b"<"


def _forbidden(url: str, predicate: str) -> Any:  # noqa: ANN401
    return refused("fetch_forbidden", f"{predicate}: {shown_url(url)}")


def _has_control(url: str) -> bool:
    return "\\" in url or any(ord(letter) < 0x20 or ord(letter) == 0x7F for letter in url)

"""A local web server that counts who asks."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class LocalServer:
    """Serves `pages` (path to status, headers, body) and lists the paths asked for."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[str] = []
        self.hosts: list[str | None] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append(self.path)
                owner.hosts.append(self.headers["Host"])
                status, headers, body = owner.pages.get(self.path, (404, {}, b"no such page"))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        """Address of a page."""
        return f"http://{host}:{self.port}{path}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def web() -> Iterator[LocalServer]:
    """A web server of the test's own."""
    server = LocalServer()
    yield server
    server.close()


@pytest.fixture
def secret_web() -> Iterator[LocalServer]:
    """A second server, which nobody may ask."""
    server = LocalServer()
    yield server
    server.close()

"""A server of somebody's API that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["ApiScript"]

Reply = tuple[int, object] | list[object]
_LOOK_S = 0.02


class ApiScript:
    """Answers each POST by `rule`: a pair is a whole reply, a list a stream of events.

    An `Event` in a stream is waited for before the next item is sent; a client that leaves
    meanwhile sets `has_lost_client`.
    """

    def __init__(self) -> None:
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.rule: Callable[[str, dict[str, Any]], Reply] = lambda path, body: (200, {})
        self.retry_after: str | None = None
        self.has_lost_client = threading.Event()
        self.is_closing = threading.Event()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop serving; streams end."""
        self.is_closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def __init__(self, script: ApiScript) -> None:
        self.script = script
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        script = self.server.script
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        script.bodies.append((self.path, body))
        script.headers.append(dict(self.headers))
        reply = script.rule(self.path, body)
        if isinstance(reply, list):
            self._stream(reply)
        else:
            self._whole(*reply)

    def _whole(self, status: int, body: object) -> None:
        content = json.dumps(body, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if self.server.script.retry_after is not None:
            self.send_header("Retry-After", self.server.script.retry_after)
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, items: list[object]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for item in items:
                if isinstance(item, threading.Event):
                    self._wait_for(item)
                    continue
                text = item if isinstance(item, str) else json.dumps(item)
                self.wfile.write(f"data: {text}\n\n".encode())
                self.wfile.flush()
        except OSError:
            self.server.script.has_lost_client.set()

    def _wait_for(self, go_on: threading.Event) -> None:
        """Until `go_on` or the end of the test. Raises OSError if the client leaves."""
        self.connection.settimeout(_LOOK_S)
        while not go_on.is_set() and not self.server.script.is_closing.is_set():
            try:
                if self.connection.recv(1) == b"":
                    raise ConnectionResetError
            except TimeoutError:
                continue
        self.connection.settimeout(None)

    def log_message(self, *args: object) -> None:
        """Tests print nothing."""

"""One small engine and server for all whole tests, and a host that serves media on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.checkpoints import tiny_llava
from support.oracle import Asker

from mmserve.core import EngineConfig, MediaConfig, ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small seeded LLaVA checkpoint with a byte-level tokenizer and 512 tokens of context."""
    return tiny_llava()


@pytest.fixture(scope="session")
def media_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `file://` may read from."""
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="session")
def engine(tiny_directory: Path, media_folder: Path) -> Iterator[Engine]:
    """An engine in this process that checks its ledgers after every step."""
    media = MediaConfig(allow_private_hosts=True, media_folder=str(media_folder))
    config = EngineConfig(
        model=str(tiny_directory),
        served_name="tiny",
        num_slots=8192,
        threads=1,
        verify_steps=True,
        media=media,
    )
    with Engine.from_config(config) as engine:
        yield engine


@pytest.fixture(scope="session")
def server_url(engine: Engine) -> Iterator[str]:
    """The engine behind HTTP on a free port."""
    with RunningServer(engine, ServerConfig(port=0)) as server:
        yield server.url


@pytest.fixture
def ask(server_url: str) -> Iterator[Asker]:
    """A client that asks for greedy answers with log-probabilities."""
    asker = Asker(server_url)
    yield asker
    asker.close()


class MediaHost:
    """Serves whatever is put into `files` (path -> content type, bytes) and counts hits."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, bytes]] = {}
        self.hits: list[str] = []
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                host.hits.append(self.path)
                kind, content = host.files.get(self.path, ("", b""))
                self.send_response(200 if kind else 404)
                self.send_header("Content-Type", kind or "text/plain")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def put(self, path: str, content: bytes, content_type: str = "image/png") -> str:
        """Serve `content` at `path`; the address."""
        self.files[path] = (content_type, content)
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def media_host() -> Iterator[MediaHost]:
    """A web server for pictures on loopback."""
    host = MediaHost()
    yield host
    host.close()

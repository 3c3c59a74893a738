"""`mmserve show`: of a small example, and of a server."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.scripted_client import ScriptedClient
from typer.testing import CliRunner

from mmserve.cli import app
from mmserve.core import ServerConfig
from mmserve.server import RunningServer


def show(*arguments: str, client: ScriptedClient | None = None):
    """The command's result; there is no engine unless a client is given."""

    def opener(config):
        assert client is not None
        return client

    return CliRunner().invoke(app, ["show", *arguments], obj=opener)


@contextmanager
def stranger(status: int, kind: str, content: bytes):
    """A web server that is none of ours; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def locked():
    """The address of a server that wants a key."""
    with RunningServer(ScriptedClient(), ServerConfig(port=0, api_key="Sésame")) as server:
        yield server.url


@pytest.mark.parametrize("room", ["radix", "sched"])
def test_the_example_is_drawn(room):
    """All sample questions are asked, each for a client named after its sample."""
    client = ScriptedClient()
    result = show(room, client=client)
    assert (result.exit_code, result.stdout) == (0, f"a drawing of {room}\n")
    assert {ticket.request.client for ticket in client.tickets} == {"scene.png", "clip.mp4"}


def test_an_svg_goes_to_a_file_or_to_stdout(tmp_path):
    """A file is named on stderr and stdout stays empty; `-` is stdout."""
    path = tmp_path / "tree.svg"
    result = show("radix", "--svg", str(path), client=ScriptedClient())
    assert (result.stdout, path.read_text()) == ("", "a drawing of radix as svg")
    assert "tree.svg" in result.stderr
    result = show("radix", "--svg", "-", client=ScriptedClient())
    assert (result.stdout, result.stderr) == ("a drawing of radix as svg\n", "")


def test_a_file_that_cannot_be_written(tmp_path):
    """Is an error with its path."""
    path = tmp_path / "no" / "tree.svg"
    result = show("radix", "--svg", str(path), client=ScriptedClient())
    assert result.exit_code == 1
    assert f"{path}: no such file" in result.stderr


def test_a_server_is_drawn(locked, tmp_path):
    """With its key; as text, and as a file. A slash at the end of the address does no harm."""
    result = show("sched", "--url", f"{locked}/", "--api-key", "Sésame")
    assert (result.exit_code, result.stdout) == (0, "a drawing of sched\n")
    path = tmp_path / "steps.svg"
    show("sched", "--url", locked, "--api-key", "Sésame", "--svg", str(path))
    assert path.read_text() == "a drawing of sched as svg"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((), "wants an API key"), (("--api-key", "no"), "refuses the API key")],
)
def test_the_key_is_missing_or_wrong(locked, arguments, text):
    """The message says which, and how to give one."""
    result = show("radix", "--url", locked, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"error: {locked} {text}" in result.stderr
    assert "--api-key" in result.stderr


@pytest.mark.parametrize(
    ("status", "kind", "content", "text"),
    [
        (404, "text/html", b"<h1>no</h1>", "answers with status 404, and no drawing"),
        (200, "text/html", b"<h1>welcome</h1>", "answers with status 200, and no drawing"),
        (302, "text/plain", b"", "answers with status 302, and no drawing"),
        (500, "application/json", b'{"error": {"message": "it is ill"}}', "it is ill"),
        (503, "text/plain", b"[", "status 503"),
    ],
)
def test_others_that_answer(status, kind, content, text):
    """What is no drawing is an error, not printed."""
    with stranger(status, kind, content) as url:
        result = show("radix", "--url", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert text in result.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "localhost:9", "http://[", "x"])
def test_nobody_answers(url):
    """An address where no server is, or that is none."""
    result = show("radix", "--url", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"cannot reach {url}: " in result.stderr


def test_a_server_has_its_own_engine():
    """Flags of an engine and an address are not given together."""
    result = show("radix", "--url", "http://127.0.0.1:9", "--device", "cpu")
    assert result.exit_code == 2
    assert "flags of an engine" in result.stderr

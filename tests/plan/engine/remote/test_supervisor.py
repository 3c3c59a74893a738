"""A process that dies, hangs or will not start, and what its supervisor makes of it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmserve.core import (
    EngineConfig,
    EngineDown,
    RawPart,
    Request,
    SamplingParams,
    UnsupportedModel,
)
from mmserve.engine.remote import Supervision, Supervisor

pytestmark = pytest.mark.slow  # each test starts processes
HOST = "support.echo_host"
WAYS = Supervision(
    stuck_s=2.0, silence_s=2.0, beat_s=0.05, first_delay_s=0.05, well_s=60.0, max_failures=3
)


@contextlib.contextmanager
def supervised(book: Path | None = None, ways: Supervision = WAYS) -> Iterator[Supervisor]:
    """A supervised process that echoes, and that is gone afterwards."""
    name = None if book is None else str(book)
    with Supervisor(EngineConfig(model="echo", served_name=name), ways, host=HOST) as found:
        yield found
        pid = found.process_id
    assert pid is not None
    assert not is_there(pid)


def is_there(pid: int) -> bool:
    """Whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # where nobody reaps orphans, what is left of one stays
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def until(is_true: Callable[[], object]) -> None:
    """Wait for something that must come; a test that hangs here has failed."""
    while not is_true():
        threading.Event().wait(0.01)


def is_up(supervisor: Supervisor) -> bool:
    """Whether requests can be served."""
    return supervisor.client.counters()["engine_up"] == 1


def request(text: str) -> Request:
    """A prompt to be echoed."""
    sampling = SamplingParams(max_new_tokens=None)
    return Request(request_id="r", parts=(RawPart(text),), sampling=sampling)


def text_of(supervisor: Supervisor, prompt: str) -> str:
    """The answer to a prompt."""
    outputs = supervisor.client.submit(request(prompt)).outputs()
    return "".join(output.text for output in outputs)


def test_a_killed_process_is_replaced():
    """Its requests end with EngineDown, and the next process answers."""
    with supervised() as found:
        assert text_of(found, "hello") == "hello"
        first = found.process_id
        ticket = found.client.submit(request("long"))
        outputs = ticket.outputs()
        next(outputs)
        os.kill(first, signal.SIGKILL)
        *_, last = outputs
        assert isinstance(last.finish.error, EngineDown)
        until(lambda: is_up(found))
        assert found.process_id != first
        assert not is_there(first)
        assert text_of(found, "again") == "again"
        assert found.client.counters()["engine_restarts_total"] == 1


@pytest.mark.parametrize("way", ["stopped", "freeze", "stop"])
def test_a_process_that_hangs_is_replaced(way):
    """One that is stopped, and one whose loop stays away or has ended, are replaced."""
    with supervised() as found:
        first = found.process_id
        ticket = found.client.submit(request("long"))
        ticket.report()
        if way == "stopped":
            os.kill(first, signal.SIGSTOP)
        else:
            found.client.submit(request(way))
        *_, last = ticket.outputs()
        assert isinstance(last.finish.error, EngineDown)
        until(lambda: is_up(found))
        assert not is_there(first)
        assert text_of(found, "again") == "again"


def test_a_process_that_never_opens_its_model_is_ended():
    """After the time it has for that the start fails with the limit, and it is gone."""
    ways = dataclasses.replace(WAYS, open_s=0.2, close_s=0.1)
    supervisor = Supervisor(EngineConfig(model="asleep"), ways, host=HOST)
    with pytest.raises(EngineDown, match=r"did not open its model within 0\.2 s"):
        supervisor.start()
    pid = supervisor.process_id
    assert pid is not None
    assert not is_there(pid)


def test_a_model_that_cannot_be_opened_is_refused_at_once():
    """The first start raises the engine's own error, and leaves no process."""
    supervisor = Supervisor(EngineConfig(model="refused"), WAYS, host=HOST)
    with pytest.raises(UnsupportedModel, match="no model at 'refused'") as raised:
        supervisor.start()
    assert raised.value.hint == "there is none"
    assert not is_there(supervisor.process_id)


def test_a_process_that_dies_while_it_opens_says_so(tmp_path):
    """A first start that ends without a word names how the process ended."""
    book = tmp_path / "book"
    book.write_text("crash")
    config = EngineConfig(model="echo", served_name=str(book))
    with pytest.raises(EngineDown, match="exit code"):
        Supervisor(config, WAYS, host=HOST).start()


def test_it_gives_up_after_failures_in_a_row(tmp_path):
    """When no start succeeds any more, the failure says how it came, and all is refused."""
    book = tmp_path / "book"
    with supervised(book) as found:
        book.write_text("crash")
        found.client.submit(request("abort"))
        until(lambda: found.failure)
        assert "3 times in a row" in str(found.failure)
        assert "exit code" in str(found.failure)
        with pytest.raises(EngineDown):
            found.client.submit(request("x")).report()
        assert found.client.counters()["engine_up"] == 0


def test_failures_are_forgotten_when_it_was_well(tmp_path):
    """A process that dies now and then is always replaced."""
    ways = Supervision(beat_s=0.05, first_delay_s=0.01, well_s=0.05, max_failures=2)
    with supervised(tmp_path / "book", ways) as found:
        for _ in range(3):
            until(lambda: is_up(found) and found.num_failures == 0)
            found.client.submit(request("abort"))
            until(lambda: not is_up(found))
        until(lambda: is_up(found))
        assert found.failure is None
    assert len((tmp_path / "book").read_text().splitlines()) == 4


def test_closing_ends_what_is_open():
    """A close amid an answer ends it, and the process."""
    with supervised() as found:
        ticket = found.client.submit(request("long"))
        ticket.report()
    *_, last = ticket.outputs()
    assert last.finish is not None


def test_a_process_is_gone_with_its_parent():
    """When the supervisor's process is killed, the engine's ends by itself."""
    script = f"""
import signal, sys
sys.path[:] = {sys.path!r}
from mmserve.core import EngineConfig
from mmserve.engine.remote import Supervisor
supervisor = Supervisor(EngineConfig(model="echo"), host={HOST!r})
supervisor.start()
print(supervisor.process_id, flush=True)
signal.pause()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert is_there(pid)
        parent.kill()
    until(lambda: not is_there(pid))


def test_a_server_ends_when_its_engine_is_given_up(tmp_path):
    """`mmserve serve` says why on standard error, and its exit code is 1."""
    book = tmp_path / "book"
    script = f"""
import sys
sys.path[:] = {sys.path!r}
from mmserve.cli import main
from mmserve.engine.remote import Supervision, Supervisor
Supervisor.__init__.__kwdefaults__["host"] = {HOST!r}
Supervision.__init__.__kwdefaults__.update(first_delay_s=0.01, max_failures=2)
sys.argv = ["mmserve", "serve", "--port", "0", "--served-name", {str(book)!r}]
main()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert "Ctrl-C ends it" in server.stderr.readline()
        pid = int(book.read_text())
        book.write_text("crash")
        os.kill(pid, signal.SIGKILL)
        rest = server.stderr.read()
    assert server.returncode == 1
    assert "error: the engine failed 2 times in a row" in rest
    assert "Traceback" not in rest

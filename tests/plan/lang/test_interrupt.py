"""Ctrl-C: all aborted, KeyboardInterrupt within a second."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
import signal, sys, time

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it

import mmserve.lang as sgl
from mmserve.testing.fake_client import FakeClient

client = FakeClient(delay_s=30.0)

@sgl.function
def program(s, q):
    s += q + sgl.gen("x")
    if {reads_inside}:
        s["x"]

print("ready", flush=True)
try:
    {call}
except KeyboardInterrupt:
    deadline = time.monotonic() + 1
    while client.num_running and time.monotonic() < deadline:
        time.sleep(0.01)
    print("interrupted", len(client.tickets), client.num_running, flush=True)
"""
CALLS = {
    "inside": ("True", 'program.run("a", backend=client)'),
    "batch": ("False", 'program.run_batch([("a",), ("b",)], backend=client)'),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_ends_everything_at_once(name):
    """Wherever the main thread waits, nothing runs on and nobody waits on."""
    reads_inside, call = CALLS[name]
    script = SCRIPT.format(reads_inside=reads_inside, call=call)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=10)

    assert output.split()[0] == "interrupted"
    assert output.split()[2] == "0"
    assert time.monotonic() - started < 8
    assert process.returncode == 0

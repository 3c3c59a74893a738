"""The program of a child: waits for a job, does it under a limit on memory, answers.

Started as a file: `python child.py SOCKET CONTENT PIXELS PATHS`, three descriptors and the
parent's import path as JSON. It ends when the socket does. The packages above it are entered
without their front doors, which import far more than a decoder needs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import socket
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmserve.vision.children.desk import Desk

__all__ = ["main"]


def _enter(package: str, folder: Path) -> None:
    """Make `package` importable from `folder` without running its `__init__`."""
    module = types.ModuleType(package)
    module.__path__ = [str(folder)]
    sys.modules[package] = module


def main(words: list[str]) -> None:
    """Serve jobs until the parent is gone. Changes: the process."""
    socket_fd, content_fd, pixels_fd = (int(word) for word in words[:3])
    sys.path[:] = json.loads(words[3])
    vision = Path(__file__).resolve().parents[1]
    _enter("mmserve", vision.parent)
    _enter("mmserve.vision", vision)
    _enter("mmserve.vision.children", vision / "children")
    from mmserve.vision.children import desk, jobs  # noqa: PLC0415  in the packages entered

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _give_way()
    shared = desk.Desk(socket.socket(fileno=socket_fd), content_fd, pixels_fd)
    logging.basicConfig(level=logging.WARNING, handlers=[_Forward(shared)], force=True)
    shared.line.send({"is_ready": True})
    _silence()
    jobs.serve(shared)


def _give_way() -> None:
    """Where memory runs out, the kernel ends this process before its parent (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


class _Forward(logging.Handler):
    """Sends warnings to the parent."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        self._desk.line.send({"log": record.getMessage()})


def _silence() -> None:
    """Nothing that a library prints about hostile bytes reaches the server's log."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


if __name__ == "__main__":
    main(sys.argv[1:])

"""`python -m mmserve.lang.lifeline serve ...`: `mmserve serve ...` that ends with its parent.

parent holds the write end of a pipe -> here standard input -> closed, however the parent ended
                                                            -> this process is told to end

The kernel closes the pipe even if the parent is killed, when nothing of the parent's runs.
"""

from __future__ import annotations

import os
import runpy
import signal
import threading

__all__ = ["main"]

_GRACE_S = 15.0


def main() -> None:
    """Run the command line of this process until it ends or standard input does."""
    threading.Thread(target=_watch, name="mmserve-lifeline", daemon=True).start()
    runpy.run_module("mmserve", run_name="__main__", alter_sys=True)


def _watch() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main()

"""`mmserve` as it is, with an engine that notes what it is asked.

    python -m benchmarks.batch_witness NOTES video-qa ROWS -o OUTPUT ...

    NOTES/asked          a request's name a line, on disk before the engine has the request
    NOTES/counters.json  the engine's counters, when it is closed

Notes of a process that was killed tell what it had asked until then.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmserve.cli import app
from mmserve.cli.engines import open_engine
from mmserve.core import Client, EngineConfig, Request, Ticket

__all__ = ["ASKED", "COUNTERS", "Witness"]

ASKED, COUNTERS = "asked", "counters.json"


class Witness:
    """An engine, and a file of the names of its requests."""

    def __init__(self, client: Client, notes: Path) -> None:
        self._client = client
        self._asked = (notes / ASKED).open("ab", buffering=0)

    def submit(self, request: Request) -> Ticket:
        """Note it, then hand it on."""
        self._asked.write(f"{request.request_id}\n".encode())
        return self._client.submit(request)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all else is the engine's
        return getattr(self._client, name)


def main() -> None:
    """Run a command of `mmserve`; ends the process."""
    notes = Path(sys.argv[1])

    @contextmanager
    def opener(config: EngineConfig) -> Iterator[Witness]:
        with open_engine(config) as client:
            yield Witness(client, notes)
            counters = client.counters()  # type: ignore[attr-defined]
            (notes / COUNTERS).write_text(json.dumps(counters), encoding="utf-8")

    app(args=sys.argv[2:], prog_name="mmserve", obj=opener)


if __name__ == "__main__":
    main()

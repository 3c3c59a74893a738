"""What a run asks of whoever answers: the part of `core.ports.Client` that it uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mmserve.core import Output, PromptReport, Request

__all__ = ["AskTicket", "Asker"]


class AskTicket(Protocol):
    """A question under way, see `core.ports.Ticket`."""

    def report(self, timeout_s: float | None = None) -> PromptReport:
        """Wait until the question is accepted. Raises the refusal if it is not."""
        ...

    def outputs(self) -> Iterator[Output]:
        """Outputs as they come, until the end. Raises a refusal first."""
        ...

    def cancel(self) -> None:
        """Abort what still runs. Idempotent."""
        ...


class Asker(Protocol):
    """An engine (every `core.ports.Client` is one) or a server."""

    def submit(self, request: Request) -> AskTicket:
        """Hand a request in; a refusal is raised by the ticket."""
        ...

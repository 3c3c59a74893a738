"""A question whose answer comes whole: what a server, or a download before it, makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

from mmserve.core import Aborted, Output, PromptReport

__all__ = ["WholeAnswer", "WholeTicket"]


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """All that a ticket tells: outputs of its sequences, each with its end, and the report."""

    outputs: tuple[Output, ...]
    report: PromptReport


class WholeTicket:
    """A question under way; what `read_answer` needs of a `core.ports.Ticket`.

    Args:
        request_id: the caller's.
        answer: set by whoever asks; a future that is cancelled was never asked.
        abort: stops what is under way; called from any thread, never after the answer.
    """

    def __init__(
        self, request_id: str, answer: Future[WholeAnswer], abort: Callable[[], None]
    ) -> None:
        self.request_id = request_id
        self._answer = answer
        self._abort = abort

    def report(self, timeout_s: float | None = None) -> PromptReport:
        """Frames taken; waits for the whole answer."""
        return self._result(timeout_s).report

    def outputs(self) -> Iterator[Output]:
        """The whole answer at once. Raises the refusal or failure."""
        yield from self._result(None).outputs

    def cancel(self) -> None:
        """Stop it, if it is under way and not answered. Idempotent."""
        if not self._answer.cancel() and not self._answer.done():
            self._abort()

    def _result(self, timeout_s: float | None) -> WholeAnswer:
        try:
            return self._answer.result(timeout_s)
        except CancelledError:
            raise Aborted("the question was cancelled") from None

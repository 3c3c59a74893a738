"""What to do about a failure: ask again after a while, write it down, or end the run."""

from __future__ import annotations

import random
from dataclasses import dataclass

from mmserve.core import (
    Aborted,
    BackendFailed,
    Broken,
    Busy,
    CallTimeout,
    EngineDown,
    MediaRefused,
    MmserveError,
)

__all__ = ["Backoff", "Patience", "is_transient"]

_MAX_OWN_FAILURES = 20
_SERVER_FAULT = 500
_PASSING = (408, 425, 429)


def is_transient(error: MmserveError) -> bool:
    """Whether the same question may be answered later. Pure.

    So are: an engine without room or without a process; a server that cannot be reached, takes
    too long or has a fault of its own; media whose host does so. A refusal never is, nor is a
    server without the route, the key or the form of an answer.
    """
    match error:
        case Busy() | EngineDown() | CallTimeout():
            return True
        case BackendFailed():
            return error.fields.get("status") is None or _is_passing(error)
        case MediaRefused():
            is_fetch = error.fields.get("reason") == "fetch_failed"
            return is_fetch and ("limit_s" in error.fields or _is_passing(error))
    return False


def _is_passing(error: MmserveError) -> bool:
    status = error.fields.get("status")
    return isinstance(status, int) and (status >= _SERVER_FAULT or status in _PASSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before a question is asked again, and how often.

    Args:
        first_s: the longest first wait; each next one may be twice as long.
        most_s: the longest wait.
        num_tries: times a question is asked, the first one included.
        num_media_tries: the same where its media could not be fetched.
    """

    first_s: float = 0.5
    most_s: float = 30.0
    num_tries: int = 10
    num_media_tries: int = 4

    def wait_s(self, error: MmserveError, num_failed: int) -> float | None:
        """Seconds to wait after so many failed tries; None if it is not asked again.

        Between half and all of the longest wait, so that questions that failed together do not
        come together; not less than the other side asked for.
        """
        limit = self.num_media_tries if isinstance(error, MediaRefused) else self.num_tries
        if num_failed >= limit or not is_transient(error):
            return None
        longest_s = min(self.first_s * 2.0 ** (num_failed - 1), self.most_s)
        wait_s = longest_s * random.uniform(0.5, 1.0)
        asked_s = error.fields.get("retry_after_s")
        if isinstance(asked_s, int | float):
            wait_s = max(wait_s, min(asked_s, self.most_s))
        return wait_s


class Patience:
    """Ends a run that does not get on. Mutable.

    Args:
        max_errors: the most error records of this run; None for any number.
    """

    def __init__(self, max_errors: int | None) -> None:
        self._max_errors = max_errors
        self._num_errors = 0
        self._num_own = 0

    def note_answer(self) -> None:
        """A question was answered. Changes: the count of failures in a row."""
        self._num_own = 0

    def note_failure(self, error: MmserveError) -> None:
        """A question failed for good. Raises Broken if too many in a row are not the rows'."""
        is_own = isinstance(error, Broken | BackendFailed | Busy | EngineDown)
        self._num_own = self._num_own + 1 if is_own else 0
        if self._num_own >= _MAX_OWN_FAILURES:
            raise Broken(
                f"the engine failed {self._num_own} questions in a row, last: {error}",
                hint="--resume --retry-errors continues the run",
            ) from error

    def note_error(self, message: str) -> None:
        """An error record was written. Raises Aborted if there are more than allowed."""
        self._num_errors += 1
        if self._max_errors is not None and self._num_errors > self._max_errors:
            raise Aborted(
                f"the run was stopped: {self._num_errors:,} failed, "
                f"allowed are {self._max_errors:,}; last: {message}",
                hint="--resume goes on with the others, --retry-errors asks failed ones again",
            )

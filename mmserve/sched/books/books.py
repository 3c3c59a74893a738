"""What is written down of sequences as they start and end, for others to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from mmserve.sched.books.accounts import CacheAccount, WaitAccount
from mmserve.sched.books.optimum import ServedRequest
from mmserve.sched.books.recent import RecentRequests
from mmserve.sched.books.report import SchedReport
from mmserve.sched.sequence import Sequence, first_score

__all__ = ["Books"]


class Books:
    """Accounts of the cache, of waits, and of the latest requests."""

    def __init__(self, page_tokens: int) -> None:
        self._cache = CacheAccount()
        self._waits = WaitAccount()
        self._recent = RecentRequests(page_tokens=page_tokens)

    def note_start(self, sequence: Sequence, wait_ms: float) -> None:
        """A sequence has its first row. Changes: its client's waits."""
        self._waits.note(sequence.spec.client, wait_ms)

    def note_end(self, sequence: Sequence) -> None:
        """A sequence has ended. Changes: sums, and the latest requests if it got an answer."""
        usage = sequence.usage()
        self._cache.note(usage)
        if sequence.num_accounted < sequence.num_prompt:
            return
        num_prompt = sequence.num_prompt
        request = ServedRequest(
            keys=sequence.keys.view(0, num_prompt),
            limit=min(num_prompt, first_score(sequence.spec)) - 1,
            namespace=sequence.spec.prompt.namespace,
            answer_keys=sequence.keys.view(num_prompt, max(num_prompt, sequence.known - 1)),
        )
        self._recent.note(request, usage.cached_tokens)

    def report(
        self,
        service: Mapping[str, float],
        running: Iterable[Sequence],
        waiting: Mapping[str, int],
    ) -> SchedReport:
        """The accounts as they stand. Pure. Cost: sorts the latest requests if some are new."""
        return SchedReport(
            prompt_tokens=self._cache.totals(),
            recent=self._recent.share(),
            waits=self._waits.quantiles(),
            service=service,
            running=Counter(sequence.spec.client for sequence in running),
            waiting=waiting,
        )

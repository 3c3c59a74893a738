"""A few real questions, timed: what a group's first question costs, and each further one.

1. first of group A              warms the engine, not counted
2. first of group B, alone       prefill and generation rates
3. firsts of up to four others, together         seconds a group
4. further questions of these groups, together   seconds a question
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from mmserve.batch.asker import Asker
from mmserve.batch.asks import request_of
from mmserve.batch.forecast.survey import KeptGroup
from mmserve.batch.records import Answer, read_answer
from mmserve.batch.row import Row
from mmserve.batch.settings import AskSettings
from mmserve.core import MmserveError

__all__ = ["Probe", "probe"]

_MAX_TOGETHER = 16
_MAX_GROUPS = 4
_MAX_TRIES = 16
Asked = tuple[Row, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What was timed.

    Args:
        questions: answered, with the first.
        first_s: a group's first question.
        further_s: each further one; None if no group has one.
        prefill_rate: prompt tokens computed a second; None if unknown.
        answer_rate: tokens generated a second for one answer alone; None if unknown.
    """

    questions: int
    first_s: float
    further_s: float | None
    prefill_rate: float | None
    answer_rate: float | None

    def seconds(self, groups: int, questions: int) -> float:
        """Expected time of so many groups with so many questions in all. Pure."""
        further_s = self.first_s if self.further_s is None else self.further_s
        return groups * self.first_s + max(0, questions - groups) * further_s


def probe(
    asker: Asker,
    kept: Sequence[KeptGroup],
    settings: AskSettings,
    concurrency: int,
    clock: Callable[[], float] = time.monotonic,
) -> Probe | None:
    """Ask a few questions; None if no first was answered. Cost: 22 answers at most."""
    asking = _Asking(asker, settings, clock)
    groups = [group.asked for group in kept if group.asked]
    left = iter([*groups[len(groups) // 2 :], *groups[: len(groups) // 2]][:_MAX_TRIES])
    firsts: list[tuple[Sequence[Asked], _Timed]] = []
    while len(firsts) < 2 and (group := next(left, None)):
        timed = asking.ask(group[:1])
        if timed.answers:  # a clip that is not there tells no time
            firsts.append((group, timed))
    if not firsts:
        return None
    first, alone = firsts[-1]
    rest = list(left)[: min(_MAX_GROUPS, concurrency)]
    others = asking.ask([group[0] for group in rest])
    further = asking.ask(_further([first, *rest], min(_MAX_TOGETHER, concurrency)))
    return Probe(
        questions=asking.num_answered,
        first_s=others.each_s or alone.each_s or 0.0,
        further_s=further.each_s,
        prefill_rate=_prefill_rate(alone.answers[0]),
        answer_rate=_answer_rate(alone.answers[0]),
    )


@dataclass(frozen=True, slots=True)
class _Timed:
    """Answers of questions that were asked together, and how long all took."""

    answers: list[Answer]
    seconds: float

    @property
    def each_s(self) -> float | None:
        """Seconds an answer; None if there is none. Pure."""
        return self.seconds / len(self.answers) if self.answers else None


class _Asking:
    """Asks and times. Mutable: how many questions were answered."""

    def __init__(self, asker: Asker, settings: AskSettings, clock: Callable[[], float]) -> None:
        self._asker = asker
        self._settings = settings
        self._clock = clock
        self.num_answered = 0

    def ask(self, asked: Sequence[Asked]) -> _Timed:
        """Ask these together and wait; what is refused counts for nothing."""
        began_s, answers = self._clock(), []
        tickets = [
            self._asker.submit(request_of(row, index, self._settings)) for row, index in asked
        ]
        try:
            for ticket in tickets:
                with contextlib.suppress(MmserveError):
                    answers.append(read_answer(ticket))
        finally:
            for ticket in tickets:
                ticket.cancel()
        self.num_answered += len(answers)
        return _Timed(answers, self._clock() - began_s)


def _further(groups: Sequence[Sequence[Asked]], most: int) -> list[Asked]:
    """Questions of groups whose first was asked, from each in turn. Pure."""
    rounds = zip_longest(*(group[1:] for group in groups))
    return [asked for round_ in rounds for asked in round_ if asked is not None][:most]


def _prefill_rate(answer: Answer) -> float | None:
    usage, timing = answer.last.usage, answer.last.timing
    if timing is None or timing.prefill <= 0:
        return None
    return (usage.prompt_tokens - usage.cached_tokens) * 1000 / timing.prefill


def _answer_rate(answer: Answer) -> float | None:
    timing, tokens = answer.last.timing, answer.last.usage.completion_tokens
    if timing is None or timing.decode_text <= 0 or tokens < 2:
        return None
    return (tokens - 1) * 1000 / timing.decode_text

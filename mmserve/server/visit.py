"""One HTTP request as the server watches it: who asks, on which route, what came of it, when.

    Watch, around all      makes the visit, and tells of it once it has ended
    Guard                  says who the caller is
    Calls.open             `follow` for each call: which then `saw` all news of its sequences

The visit of a request is found by `here()` in whatever runs on its behalf.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, fields

from mmserve.core import Finish, Output, Timing, Usage
from mmserve.server.clients import Caller
from mmserve.server.histograms import Histograms

__all__ = ["STAGES", "VISIT", "Followed", "Sequence", "Visit", "here"]

VISIT: ContextVar[Visit | None] = ContextVar("visit", default=None)
STAGES = tuple(
    spec.name for spec in fields(Timing) if spec.name not in ("first_token", "total")
)
"""What a sequence spends its time in, by the names of `core.Timing`."""

_ALWAYS = ("queue", "prefill", "decode_text")
_WORST_FIRST = ("error", "abort", "length", "stop")


def here() -> Visit | None:
    """The visit that this code works for; None outside of the app's own layers. Pure."""
    return VISIT.get()


@dataclass(slots=True)
class Sequence:
    """What one sequence has told so far."""

    usage: Usage = Usage(0)  # noqa: RUF009 - frozen
    last_s: float | None = None
    finish: Finish | None = None
    timing: Timing | None = None


class Visit:
    """One request. Mutable; touched by the event loop only.

    Times are on the clock of `time.monotonic`.
    """

    def __init__(self, shown_id: str, route: str, method: str, histograms: Histograms) -> None:
        self.shown_id = shown_id
        self.route = route
        self.method = method
        self.caller = Caller()
        self.client = ""
        self.status: int | None = None
        self.code = ""
        self.started_s = time.monotonic()
        self.first_token_s: float | None = None
        self.calls: list[Followed] = []
        self.on_client: Callable[[str], None] = lambda _client: None
        self.on_end: list[Callable[[], None]] = []
        self._histograms = histograms

    def follow(self, client: str, num_sequences: int, num_samples: int) -> Followed:
        """Watch a call that is about to be opened. Changes: the visit.

        Raises the 429 refusal if the client has too many.
        """
        self.client = client
        self.on_client(client)
        call = Followed(self, self._histograms, num_sequences, num_samples)
        self.calls.append(call)
        return call

    def fail(self, code: str) -> None:
        """Say with which code the request ends; the first is right. Changes: the code."""
        self.code = self.code or code

    def reason(self) -> str:
        """Why it ended: an error code, else how its worst sequence ended, else "ok". Pure."""
        if self.code:
            return self.code
        found = {
            "abort" if sequence.finish is None else sequence.finish.reason
            for call in self.calls
            for sequence in call.sequences
            if call.has_news  # else only its prompt was of interest
        }
        return next((word for word in _WORST_FIRST if word in found), "ok")

    def tokens(self) -> dict[str, int]:
        """Tokens by kind. Each prompt counts once, answers add up. Pure."""
        sums = dict.fromkeys(("prompt", "cached", "image", "video", "completion", "forced"), 0)
        for call in self.calls:
            for first in range(0, len(call.sequences), call.num_samples):
                group = [one.usage for one in call.sequences[first : first + call.num_samples]]
                sums["prompt"] += group[0].prompt_tokens
                sums["cached"] += min(usage.cached_tokens for usage in group)
                sums["image"] += group[0].image_tokens
                sums["video"] += group[0].video_tokens
                sums["completion"] += sum(usage.completion_tokens for usage in group)
                sums["forced"] += sum(usage.forced_tokens for usage in group)
        return sums

    def end(self) -> None:
        """Changes: what waits for the end is done, once."""
        waiting, self.on_end = self.on_end, []
        for work in waiting:
            work()


class Followed:
    """One call of a visit: its sequences as they grow. Mutable; `saw` is the only writer."""

    __slots__ = ("_histograms", "_inter", "_visit", "has_news", "num_samples", "sequences")

    def __init__(
        self, visit: Visit, histograms: Histograms, num_sequences: int, num_samples: int
    ) -> None:
        self.num_samples = num_samples
        self.has_news = False
        self.sequences = [Sequence() for _ in range(num_sequences)]
        self._visit = visit
        self._histograms = histograms
        self._inter = histograms.cell("inter_token_seconds", route=visit.route)

    def saw(self, number: int, output: Output) -> None:
        """Take in news of a sequence. Changes: the sequence, the histograms.

        Tokens that come together share the time since those before evenly; the first ones had
        none between them. So a sequence of n tokens has n - 1 times, which sum up to the time
        from its first to its last.
        """
        sequence, visit = self.sequences[number], self._visit
        num_tokens = len(output.token_ids)
        self.has_news = True
        if num_tokens:
            now_s = time.monotonic()
            if visit.first_token_s is None:
                visit.first_token_s = now_s
                first = self._histograms.cell("time_to_first_token_seconds", route=visit.route)
                first.observe(now_s - visit.started_s)
            if sequence.last_s is None:
                self._inter.observe(0.0, num_tokens - 1)
            else:
                self._inter.observe((now_s - sequence.last_s) / num_tokens, num_tokens)
            sequence.last_s = now_s
        sequence.usage = output.usage
        if output.finish is not None:
            sequence.finish, sequence.timing = output.finish, output.timing
            self._observe_stages(output.timing)

    def _observe_stages(self, timing: Timing | None) -> None:
        if timing is None:
            return
        route = self._visit.route
        self._histograms.cell("queue_seconds", route=route).observe(timing.queue / 1e3)
        for stage in STAGES:
            spent_ms = getattr(timing, stage)
            if spent_ms or stage in _ALWAYS:
                cell = self._histograms.cell("stage_seconds", route=route, stage=stage)
                cell.observe(spent_ms / 1e3)

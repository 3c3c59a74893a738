"""The sequences as text a person can read."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from mmserve.sched.sequence import Sequence
from mmserve.sched.updates import SchedCounts

__all__ = ["draw_sequences"]

_BAR = 24
_MAX_WAITING = 20


def draw_sequences(
    counts: SchedCounts, running: Iterable[Sequence], waiting: Iterable[Sequence]
) -> str:
    """A line a sequence, running ones first. Pure.

    In the bars `=` came from the cache, `#` was computed, `.` is missing.
    """
    lines = [
        f"step {counts.steps}: {counts.running} running, {counts.waiting} waiting; "
        f"slots {counts.slots_total} = {counts.slots_free} free + {counts.slots_cached} cached "
        f"+ {counts.slots_held} held; {counts.retractions} retractions"
    ]
    for sequence in running:
        lines.append(f"run  #{sequence.sequence_id:<6} [{_bar(sequence)}] {_sizes(sequence)}")
    for sequence in islice(waiting, _MAX_WAITING):
        overtaken = f", passed {sequence.passes} times" if sequence.passes else ""
        lines.append(f"wait #{sequence.sequence_id:<6} {_sizes(sequence)}{overtaken}")
    if counts.waiting > _MAX_WAITING:
        lines.append(f"... {counts.waiting - _MAX_WAITING} more wait")
    return "\n".join(lines)


def _bar(sequence: Sequence) -> str:
    cached = _BAR * min(sequence.num_cached, sequence.computed) // sequence.known
    computed = _BAR * sequence.computed // sequence.known
    return "=" * cached + "#" * (computed - cached) + "." * (_BAR - computed)


def _sizes(sequence: Sequence) -> str:
    usage = sequence.usage()
    num_media = usage.image_tokens + usage.video_tokens
    words = [f"prompt {usage.prompt_tokens}"]
    words += [f"media {num_media}"] if num_media else []
    words += [f"cached {usage.cached_tokens}"] if usage.cached_tokens else []
    words.append(f"answer {usage.completion_tokens} of {sequence.max_new}")
    words += [f"retracted {usage.num_retractions}"] if usage.num_retractions else []
    return ", ".join(words)

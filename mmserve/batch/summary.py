"""What a run has done so far, counted in questions."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from mmserve.batch.counting import Counted
from mmserve.batch.records import Record

__all__ = ["Summary", "Tally", "duration_told"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run did so far; counts are questions unless they say otherwise.

    Args:
        total: questions in the input.
        answered, failed: records written by this run.
        kept_answered, kept_failed: records of an earlier run that were kept.
        rows: rows of which this run wrote a record.
        clips: answered rows about a clip.
        frames: frames and pictures of answered rows, those of a row once.
        prompt_tokens, cached_tokens: over this run's answers.
        completion_tokens: over this run's answers.
        tokens_least: prompt tokens to compute if none were computed twice; None if unknown.
        seconds: since the run began.
    """

    total: int
    answered: int = 0
    failed: int = 0
    kept_answered: int = 0
    kept_failed: int = 0
    rows: int = 0
    clips: int = 0
    frames: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    tokens_least: int | None = None
    seconds: float = 0.0

    @property
    def num_done(self) -> int:
        """Questions that have a record."""
        return self.answered + self.failed + self.kept_answered + self.kept_failed

    @property
    def num_new(self) -> int:
        """Records that this run wrote."""
        return self.answered + self.failed

    @property
    def tokens_computed(self) -> int:
        """Prompt tokens that were not in the cache."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def cached_share(self) -> float:
        """Share of prompt tokens that came from the cache; 0 if there were none."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def has_failed_rows(self) -> bool:
        """Whether the output holds an error record."""
        return self.failed + self.kept_failed > 0


def duration_told(seconds: float) -> str:
    """Seconds for a reader: 12.3 s, 4 min 5 s, 2 h 7 min. Pure."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"


@dataclass(slots=True)
class Tally:
    """Counts of a run so far; memory does not grow with rows."""

    total: int
    kept_answered: int
    kept_failed: int
    began_s: float = field(default_factory=time.monotonic)
    answered: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    tokens_least: int | None = None
    counted: Counted = field(default_factory=Counted)

    def add(self, record: Record) -> None:
        """Count one written record."""
        self.counted.add(record, time.monotonic() - self.began_s)
        if record.error is not None:
            self.failed += 1
            return
        self.answered += 1
        if record.usage is not None:
            self.prompt_tokens += record.usage.prompt_tokens
            self.cached_tokens += record.usage.cached_tokens
            self.completion_tokens += record.usage.completion_tokens

    def summary(self) -> Summary:
        """The counts as a value."""
        return Summary(
            total=self.total,
            answered=self.answered,
            failed=self.failed,
            kept_answered=self.kept_answered,
            kept_failed=self.kept_failed,
            rows=self.counted.rows,
            clips=self.counted.clips,
            frames=self.counted.frames,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            tokens_least=self.tokens_least,
            seconds=time.monotonic() - self.began_s,
        )

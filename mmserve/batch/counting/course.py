"""How a run went over time: stretches of equal length, never more than 200.

0 s     1 s     2 s               200 s
|-------|-------|--- ... ---------|
a record at 200 s:  |---2 s---|---2 s---| ...    each two become one
"""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["Course", "Stretch"]

_MAX_STRETCHES = 200


@dataclass(slots=True)
class Stretch:
    """Sums over the records that were written in it."""

    questions: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    frames: int = 0

    def add(self, other: Stretch) -> None:
        """Take the sums of another in. Changes: this one."""
        for spec in fields(self):
            setattr(self, spec.name, getattr(self, spec.name) + getattr(other, spec.name))


class Course:
    """Stretches of `length_s` seconds each, from the run's beginning."""

    def __init__(self, length_s: float = 0.5) -> None:
        self.length_s = length_s
        self.stretches: list[Stretch] = []

    def add(self, at_s: float, news: Stretch) -> None:
        """Count what was written `at_s` seconds after the beginning. Changes: the course."""
        while at_s >= self.length_s * _MAX_STRETCHES:
            self._coarsen()
        place = int(at_s / self.length_s)
        while len(self.stretches) <= place:
            self.stretches.append(Stretch())
        self.stretches[place].add(news)

    def _coarsen(self) -> None:
        self.length_s *= 2
        for place in range(0, len(self.stretches) - 1, 2):
            self.stretches[place].add(self.stretches[place + 1])
        self.stretches = self.stretches[::2]

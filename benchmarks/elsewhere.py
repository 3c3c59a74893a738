"""How busy the machine is with other people's work while something is measured."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Watch"]

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Watch:
    """A moment: when it was, and what all processes, and those of our own, had used by then.

    Args:
        at_s: of a clock that only grows.
        all_s: processor seconds of the machine, those that its host took away included.
        own_s: processor seconds of this process and all that it started.
    """

    at_s: float
    all_s: float
    own_s: float

    @classmethod
    def start(cls) -> Watch:
        """This moment. Cost: milliseconds."""
        return cls(time.perf_counter(), _all_s(), _own_s())

    def elsewhere_cores(self) -> float:
        """Cores that others have kept busy since then; 0 where /proc cannot tell. Pure."""
        now = Watch.start()
        others_s = (now.all_s - self.all_s) - (now.own_s - self.own_s)
        return max(0.0, others_s / max(1e-3, now.at_s - self.at_s))


def _all_s() -> float:
    if not (_PROC / "stat").exists():
        return 0.0
    user, nice, system, _idle, _wait, irq, softirq, steal = (
        int(word) for word in (_PROC / "stat").read_text().split("\n")[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS


def _own_s() -> float:
    """Of our process and its descendants; children that have ended count with their parents."""
    children: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        children[int(fields[1])].append(int(folder.name))
        ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    found, total = [os.getpid()], 0
    while found:
        number = found.pop()
        total += ticks.get(number, 0)
        found += children[number]
    return total / _TICKS

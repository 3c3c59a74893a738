"""A job that is killed at moments drawn by lot, and what its files and requests then show.

process 1 --|  process 2 ------|  process 3 --|  ...  process n ----- done
            kill -9            kill -9        kill -9
output      a whole line stays as it is, whatever comes after
requests    none is about a record that was there when its process began
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.batch_rows import MAX_FRAMES, Job
from benchmarks.batch_witness import ASKED

__all__ = ["Key", "Kill", "Moment", "Run", "killed_run", "moments", "start"]

Key = tuple[int, int]
"""Line and question of a record."""
Phase = Literal["start", "work", "end"]
_ROOT = Path(__file__).parents[1]
_LOOK_S = 0.002
_PATIENCE_S = 600.0
_JITTER_S = 0.05
_FEW = 32
_MAX_TOKENS = 160
_NAME = re.compile(rb"line-(\d+)-(\d+)\n")


@dataclass(frozen=True, slots=True)
class Moment:
    """When to kill.

    Args:
        phase: "start": `after` seconds after the process began, engine up or not, or when it
            has written a few records; "work": a moment after `after` records are there; "end":
            as soon as all are.
        after: see there.
    """

    phase: Phase
    after: float


@dataclass(frozen=True, slots=True)
class Kill:
    """What a kill left.

    Args:
        moment: when it was meant.
        is_made: False if the process had ended before.
        seconds: that the process had run.
        asked: its requests.
        repeated: of them, those about records that were there when it began.
        records: whole ones in the output, or in the index, behind it.
        vanished: lines of the output before that are gone or have changed.
    """

    moment: Moment
    is_made: bool
    seconds: float
    asked: int
    repeated: int
    records: int
    vanished: int


@dataclass(frozen=True, slots=True)
class Run:
    """A started process.

    Args:
        process: of `mmserve video-qa`, with a witness.
        notes: the folder of the witness.
        began_s: of a clock that only grows.
    """

    process: subprocess.Popen[str]
    notes: Path
    began_s: float

    def finish(self) -> tuple[float, str]:
        """Seconds and last words, when it has ended. Raises SystemExit if it failed."""
        _, said = self.process.communicate(timeout=_PATIENCE_S)
        if self.process.returncode:
            raise SystemExit(f"mmserve video-qa ended with {self.process.returncode}: {said}")
        return time.monotonic() - self.began_s, said

    def asked(self) -> list[Key]:
        """Its requests so far."""
        path = self.notes / ASKED
        found = _NAME.findall(path.read_bytes()) if path.exists() else []
        return [(int(line), int(index)) for line, index in found]


def start(job: Job, target: Path, notes: Path, flags: Sequence[str] = ()) -> Run:
    """Start the batch tool on a job. Changes: `notes` is made, then `target`."""
    notes.mkdir()
    words = [sys.executable, "-m", "benchmarks.batch_witness", str(notes), "video-qa"]
    words += [str(job.source), "-o", str(target), "--num-frames", str(MAX_FRAMES)]
    words += ["--max-tokens", str(_MAX_TOKENS), *flags]
    process = subprocess.Popen(words, cwd=_ROOT, stderr=subprocess.PIPE, text=True)
    return Run(process, notes, time.monotonic())


def moments(
    num_kills: int, num_rows: int, start_s: float, chance: random.Random
) -> list[Moment]:
    """One of five kills while a process starts, one at the end, all others in the work.

    Changes: `chance`.
    """
    num_starts = num_kills // 5 + (num_kills % 5 > 1)
    num_works = max(0, num_kills - num_starts - 1)
    work = sorted(chance.sample(range(1, num_rows - num_rows // 50), num_works))
    found = [Moment("work", goal) for goal in work]
    for _ in range(num_starts):
        place = chance.randint(0, len(found))
        found.insert(place, Moment("start", chance.uniform(0, start_s)))
    return [*found, Moment("end", num_rows)][-num_kills:] if num_kills else []


def killed_run(
    job: Job, target: Path, folder: Path, when: Sequence[Moment], chance: random.Random
) -> tuple[list[Kill], list[Run]]:
    """Kill, take up, kill ..., and finish. Changes: `target`, `folder`.

    Returns what each kill left, and all processes, of which the last one ended by itself.
    """
    kills, runs = [], []
    lines: set[bytes] = set()
    done: set[Key] = set()
    for number, moment in enumerate(when):
        run = start(job, target, folder / f"notes {number}", ["--resume"])
        runs.append(run)
        _await(run, target, moment, job.num_rows, chance)
        is_made = _kill(run)
        asked = run.asked()
        after = whole_lines(target)
        found = {_key(line) for line in after} | _in_index(target, folder)
        kills.append(
            Kill(
                moment,
                is_made,
                time.monotonic() - run.began_s,
                len(asked),
                sum(key in done for key in asked),
                len(found),
                len(lines - after),
            )
        )
        told = f"{kills[-1].seconds:.1f} s, {len(found)} records"
        print(f"kill {number + 1}, {moment.phase}: {told}", file=sys.stderr)
        lines, done = after, found
    last = start(job, target, folder / "notes last", ["--resume"])
    seconds, _ = last.finish()
    runs.append(last)
    asked, after = last.asked(), whole_lines(target)
    kills.append(
        Kill(
            Moment("end", job.num_rows),
            is_made=False,
            seconds=seconds,
            asked=len(asked),
            repeated=sum(key in done for key in asked),
            records=len(after),
            vanished=len(lines - after),
        )
    )
    return kills, runs


def _await(
    run: Run, target: Path, moment: Moment, num_rows: int, chance: random.Random
) -> None:
    """Until it is time to kill, or the process has ended."""
    counted = LineCount(target)
    is_start = moment.phase == "start"
    goal = counted.now() + _FEW if is_start else min(moment.after, num_rows)
    limit_s = run.began_s + (moment.after if is_start else _PATIENCE_S)
    while run.process.poll() is None and counted.now() < goal:
        if time.monotonic() > limit_s:
            if is_start:
                break
            raise SystemExit(f"no {goal} records after {_PATIENCE_S:g} s")
        time.sleep(_LOOK_S)
    if moment.phase == "work":
        time.sleep(chance.uniform(0, _JITTER_S))


def _kill(run: Run) -> bool:
    """Kill it; False if it had ended. Raises SystemExit if it had failed."""
    if run.process.poll() is not None:
        run.finish()
        return False
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.communicate()
    return True


class LineCount:
    """Counts the whole lines of a file that grows, and that may be replaced. Mutable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._read_bytes, self._lines = 0, 0, 0

    def now(self) -> int:
        """Lines. Cost: what was added since."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._read_bytes:
                    self._inode, self._read_bytes, self._lines = found.st_ino, 0, 0
                file.seek(self._read_bytes)
                added = file.read()
        except FileNotFoundError:
            return 0
        self._read_bytes += len(added)
        self._lines += added.count(b"\n")
        return self._lines


def whole_lines(target: Path) -> set[bytes]:
    """Records that are whole."""
    content = target.read_bytes() if target.exists() else b""
    return {line for line in content.splitlines(keepends=True) if line.endswith(b"\n")}


def _in_index(target: Path, folder: Path) -> set[Key]:
    """Records that the index has; a copy is read, so that the next run finds it untouched."""
    copy = folder / "index copy"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for path in target.parent.glob(f"{target.name}.progress*"):
        shutil.copy(path, copy)
    place = copy / f"{target.name}.progress"
    if not place.exists():
        return set()
    with contextlib.closing(sqlite3.connect(place)) as db:
        try:
            return set(db.execute("SELECT line, question_index FROM records"))
        except sqlite3.OperationalError:  # killed before it had tables
            return set()


def _key(line: bytes) -> Key:
    record = json.loads(line)
    return record["line"], record["question_index"]

"""Harmed pictures and clips through the media plane: what happens to each, and what it costs.

    seed (a sound file of each format) -> mutations -> resolve, request_pixels -> outcome

Promises, each counted, any broken one makes the exit code 1:

answered   every file ends as served or as a refusal of the file, exactly once
clear      a refusal names its part, has a known reason, is one short line
whole      what is served has the size that was promised before decoding
in time    no file takes longer than its limits
in memory  neither this process nor a child holds more than its limit
alive      this process still serves a sound file at the end

A crash or a limit reached in a child is a refusal like others; it is counted as a lost child.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.media_mutations import mutated
from benchmarks.media_seeds import Seed, clip_seeds, picture_seeds
from benchmarks.record import Record, report
from mmserve.core import (
    BytesSource,
    ImagePart,
    MediaConfig,
    MediaLayout,
    MediaRefused,
    MediaStyle,
    MmserveError,
    VideoPart,
)
from mmserve.vision import Bounds, FrameFacts, ItemPlan, MediaPlane, Recipe
from mmserve.vision.children.pool import shared_children

_SPARE_S = 5.0
_SPARE_MB = 512
_PARENT_GROWTH_MB = 400
_LONGEST_MESSAGE = 500
_REASONS = frozenset({"too_large", "undecodable", "unsupported"})
_FRAMES = 4


class RawProcessor:
    """Hands pixels on as they are."""

    fingerprint = b"raw processor 16"
    style = MediaStyle(image_token_id=3)

    def picture(self, width: int, height: int, bounds: Bounds) -> ItemPlan:  # noqa: ARG002
        """One token, one patch. Pure."""
        return ItemPlan(MediaLayout((1,)), 1)

    def clip(self, frames: Sequence[FrameFacts], bounds: Bounds) -> tuple[ItemPlan, ...]:
        """Every frame is a picture. Pure."""
        return tuple(
            replace(self.picture(frame.width, frame.height, bounds), frames=(place,))
            for place, frame in enumerate(frames)
        )

    def inputs(
        self,
        frames: Sequence[NDArray[np.uint8]],
        recipe: Recipe,  # noqa: ARG002
    ) -> dict[str, NDArray[Any]]:
        """The pixels. Pure."""
        return {"pixels": frames[0]}


@dataclass(slots=True)
class Tally:
    """What became of the files of one seed."""

    outcomes: Counter[str] = field(default_factory=Counter)
    longest_ms: float = 0.0
    broken: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Case:
    """One harmed file: number, seed, what was done to it."""

    number: int
    kind: str
    seed: str
    harm: str
    content: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """What to find it by again."""
        return f"{self.kind} {self.number} ({self.seed}, {self.harm})"


class Answers:
    """Waits for the pixels of one file."""

    def __init__(self, num_items: int) -> None:
        self._left = threading.Semaphore(0)
        self._num_items = num_items
        self.errors: list[MmserveError] = []
        self.shapes: dict[bytes, tuple[int, ...]] = {}
        self.num_calls = 0

    def __call__(
        self,
        digest: bytes,
        inputs: Any,  # noqa: ANN401
        error: MmserveError | None,
        decode_ms: float,  # noqa: ARG002
        preprocess_ms: float,  # noqa: ARG002
    ) -> None:
        """Take one answer."""
        self.num_calls += 1
        if error is not None:
            self.errors.append(error)
        else:
            self.shapes[digest] = inputs["pixels"].shape
        self._left.release()

    def wait(self, timeout_s: float) -> bool:
        """Whether all came in time."""
        until = monotonic() + timeout_s
        return all(
            self._left.acquire(timeout=max(0.0, until - monotonic()))
            for _ in range(self._num_items)
        )


class Fuzzer:
    """Puts files through one plane. Safe from any thread."""

    def __init__(self, config: MediaConfig, keep: Path | None = None) -> None:
        self._config = config
        self._keep = keep
        self._plane = MediaPlane(config, RawProcessor(), model_fingerprint=b"m", key=bytes(16))
        self._lock = threading.Lock()
        self.child_peak_kb = 0
        self.tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)

    def run(self, case: Case) -> None:
        """Put one file through. Changes: the tallies; what broke a promise is kept."""
        started = monotonic()
        outcome, broken = self._judged(case)
        elapsed_s = monotonic() - started
        limit_s = 2 * self._config.decode_timeout_s
        limit_s = limit_s + self._config.clip_timeout_s if case.kind == "clip" else limit_s
        if elapsed_s > limit_s + _SPARE_S:
            broken = broken or f"took {elapsed_s:.1f} s"
        with self._lock:
            held = [_held_kb(process, "VmHWM") for process in shared_children().process_ids()]
            self.child_peak_kb = max([self.child_peak_kb, *held])
            tally = self.tallies[case.kind, case.seed]
            tally.outcomes[outcome] += 1
            tally.longest_ms = max(tally.longest_ms, elapsed_s * 1000)
            if broken:
                tally.broken.append(f"{case.name}: {broken}")
        if broken and self._keep is not None:
            (self._keep / f"{case.kind}-{case.number}.bin").write_bytes(case.content)

    def close(self) -> None:
        """End the plane."""
        self._plane.close()

    def _judged(self, case: Case) -> tuple[str, str | None]:
        """Outcome of a file, and which promise it broke."""
        try:
            return self._served(case)
        except MediaRefused as refusal:
            return str(refusal.fields.get("reason")), _unclear(refusal, case.kind)
        except MmserveError as error:
            return type(error).__name__, f"ended as {type(error).__name__}: {error.message}"
        except Exception as error:  # noqa: BLE001 - what no file may cause is what is looked for
            return "escaped", f"raised {type(error).__name__}: {error}"

    def _served(self, case: Case) -> tuple[str, str | None]:
        source = BytesSource(case.content)
        part = ImagePart(source) if case.kind == "picture" else VideoPart(source, _FRAMES)
        items = self._plane.resolve(part, salt="", index=0).items
        sizes = {item.digest: (item.height, item.width, 3) for item in items}
        answers = Answers(len(sizes))
        self._plane.request_pixels(items, answers)
        if not answers.wait(2 * self._config.clip_timeout_s):
            return "hung", "was never answered"
        if answers.errors:
            raise answers.errors[0]
        if answers.shapes != sizes:
            return "wrong", f"has pixels {answers.shapes}, not {sizes}"
        return "served", None


def _unclear(refusal: MediaRefused, kind: str) -> str | None:
    """What is wrong with a refusal, if anything."""
    message = refusal.message
    subject = "image 1 " if kind == "picture" else "video 1 "
    is_clear = (
        message.startswith(subject)
        and refusal.fields.get("reason") in _REASONS
        and len(message) <= _LONGEST_MESSAGE
        and "\n" not in message
    )
    return None if is_clear else f"was refused unclearly: {message[:_LONGEST_MESSAGE]!r}"


def cases(kind: str, seeds: Sequence[Seed], count: int, seed: int) -> Iterator[Case]:
    """`count` harmed files, each following from `seed` and its number alone."""
    contents = [one.content for one in seeds]
    for number in range(count):
        chosen = seeds[number % len(seeds)]
        rng = Random(f"{seed} {kind} {number}")
        harm, content = mutated(chosen.content, contents, rng)
        yield Case(number, kind, chosen.name, harm, content or b"\0")


def _run_all(fuzzer: Fuzzer, harmed: Iterator[Case], num_threads: int) -> None:
    """Put all through, a thread taking the next file when it is done with one."""
    lock = threading.Lock()

    def next_case() -> Case | None:
        with lock:
            return next(harmed, None)

    def work() -> None:
        for case in iter(next_case, None):
            fuzzer.run(case)

    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fuzz(
    num_pictures: int,
    num_clips: int,
    *,
    seed: int = 1,
    workers: int = 2,
    keep: Path | None = None,
) -> Record:
    """Run all files; see the module for what is promised."""
    config = MediaConfig(workers=workers)
    seeds = {"picture": picture_seeds(), "clip": clip_seeds()}
    fuzzer = Fuzzer(config, keep)
    for kind, files in seeds.items():
        fuzzer.run(Case(-1, kind, "sound, before", "none", files[0].content))
    parent_kb = _held_kb("self", "VmRSS")
    before = shared_children().counters()
    started = monotonic()
    _run_all(
        fuzzer,
        chain(
            cases("picture", seeds["picture"], num_pictures, seed),
            cases("clip", seeds["clip"], num_clips, seed),
        ),
        workers,
    )
    seconds = monotonic() - started
    for kind, files in seeds.items():
        fuzzer.run(Case(-1, kind, "sound, after", "none", files[0].content))
    fuzzer.close()
    after = shared_children().counters()
    measured = {
        "seconds": seconds,
        "children_started": after.num_started - before.num_started,
        "children_lost": after.num_lost - before.num_lost,
        "child_peak_mb": fuzzer.child_peak_kb / 1024,
        "parent_growth_mb": max(0, _held_kb("self", "VmRSS") - parent_kb) / 1024,
    }
    return _record(fuzzer.tallies, measured, config)


def _held_kb(process: int | str, field_name: str) -> int:
    """A field of a process's memory, in KiB; 0 where it cannot be told."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    words = status.partition(f"{field_name}:")[2].split()
    return int(words[0]) if words else 0


def _record(
    tallies: Mapping[tuple[str, str], Tally], measured: Mapping[str, float], config: MediaConfig
) -> Record:
    rows = [_row(kind, seed, tally) for (kind, seed), tally in sorted(tallies.items())]
    sound = [row for row in rows if row["seed"].startswith("sound")]
    broken = [text for tally in tallies.values() for text in tally.broken]
    broken += [
        f"{row['seed']}: a sound {row['kind']} is not served"
        for row in sound
        if not row["served"]
    ]
    if measured["child_peak_mb"] > config.decode_memory_bytes / 2**20 + _SPARE_MB:
        broken.append(f"a child held {measured['child_peak_mb']:.0f} MiB")
    if measured["parent_growth_mb"] > _PARENT_GROWTH_MB:
        broken.append(f"this process grew by {measured['parent_growth_mb']:.0f} MiB")
    for text in broken:
        print(f"broken promise: {text}", file=sys.stderr)
    harmed = [row for row in rows if row not in sound]
    totals = Counter[str]()
    for row in harmed:
        for outcome in ("served", *sorted(_REASONS), "other"):
            totals[f"{row['kind']}s_{outcome}"] += row[outcome]
    summary = {
        "pictures": sum(row["files"] for row in harmed if row["kind"] == "picture"),
        "clips": sum(row["files"] for row in harmed if row["kind"] == "clip"),
        **totals,
        "longest_ms": max((row["longest_ms"] for row in harmed), default=0.0),
        **measured,
        "broken_promises": len(broken),
    }
    return Record(repeats=1, summary=summary, rows=rows)


def _row(kind: str, seed: str, tally: Tally) -> dict[str, Any]:
    known = {reason: tally.outcomes[reason] for reason in sorted(_REASONS)}
    num_files = tally.outcomes.total()
    served = tally.outcomes["served"]
    return {
        "kind": kind,
        "seed": seed,
        "files": num_files,
        "served": served,
        **known,
        "other": num_files - served - sum(known.values()),
        "longest_ms": round(tally.longest_ms, 1),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Run and report; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pictures", type=int, default=2000, help="harmed pictures")
    parser.add_argument("--clips", type=int, default=300, help="harmed clips")
    parser.add_argument("--quick", action="store_true", help="300 pictures and 60 clips")
    parser.add_argument("--seed", type=int, default=1, help="what all harm follows from")
    parser.add_argument("--workers", type=int, default=2, help="files under way at once")
    parser.add_argument("--keep", type=Path, help="folder for files that broke a promise")
    parser.add_argument(
        "--json", metavar="FILE", help="write the record there, or to - (output)"
    )
    chosen = parser.parse_args(words)
    if chosen.keep is not None:
        chosen.keep.mkdir(parents=True, exist_ok=True)
    counts = (300, 60) if chosen.quick else (chosen.pictures, chosen.clips)
    log = logging.getLogger("mmserve.vision")
    usual = log.level
    log.setLevel(logging.CRITICAL)
    try:
        record = fuzz(*counts, seed=chosen.seed, workers=chosen.workers, keep=chosen.keep)
    finally:
        log.setLevel(usual)
    report(record, chosen.json)
    return 1 if record.summary["broken_promises"] else 0


if __name__ == "__main__":
    sys.exit(main())

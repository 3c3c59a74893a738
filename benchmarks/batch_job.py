"""10,000 shuffled questions about 200 clips, as one process, and again with kills.

The rows go through `mmserve video-qa` on `tabletop`, whose right answers are known, in a
process of its own. Tokens computed, clips opened and frames encoded are those of the engine's
counters; the least possible is the run's own sum of all prompts, each shared beginning once. A
second run is killed (-9) at moments drawn by lot and taken up again until it has ended: see
`batch_kills`. Questions a second are those of the whole process, its start included.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.batch_kills import Kill, killed_run, moments, start
from benchmarks.batch_rows import Job, card_accuracy, write_job
from benchmarks.batch_witness import COUNTERS
from benchmarks.elsewhere import Watch
from benchmarks.record import Record, report

__all__ = ["WholeRun", "measure"]

_LEAST = re.compile(r"the least possible is ([\d,]+)")
_SECONDS = re.compile(r"; ([\d.]+) s;")


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A run that nobody disturbed.

    Args:
        seconds: of the process.
        answering_s: of them, those in which it answered.
        counters: of its engine, at the end.
        tokens_least: that its prompts could take.
        records: in the order of the rows.
        elsewhere_cores: cores that others kept busy meanwhile.
    """

    seconds: float
    answering_s: float
    counters: Mapping[str, float]
    tokens_least: int
    records: Sequence[Mapping[str, Any]]
    elsewhere_cores: float


def run_whole(job: Job, folder: Path) -> WholeRun:
    """The job in one go. Changes: `folder`. Raises SystemExit if it fails."""
    target, watch = folder / "whole.jsonl", Watch.start()
    run = start(job, target, folder / "notes whole")
    seconds, said = run.finish()
    elsewhere_cores = watch.elsewhere_cores()
    least, took = _LEAST.search(said), _SECONDS.search(said)
    if least is None or took is None:
        raise SystemExit(f"mmserve video-qa did not sum up its run: {said}")
    counters = json.loads((run.notes / COUNTERS).read_text(encoding="utf-8"))
    tokens_least = int(least[1].replace(",", ""))
    records = _records(target)
    return WholeRun(seconds, float(took[1]), counters, tokens_least, records, elsewhere_cores)


def _records(target: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]


def right_by_kind(job: Job, records: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """(right, asked) for each kind of question; a record's line tells its row. Pure."""
    table: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for record in records:
        kind, expected = job.expected[record["line"] - 1]
        right, asked = table[kind]
        is_right = (record["answer"] or "").strip() == expected
        table[kind] = (right + is_right, asked + 1)
    return dict(table)


def measure(job: Job, folder: Path, num_kills: int, seed: int) -> Record:
    """Both runs. Changes: `folder`."""
    whole = run_whole(job, folder)
    print(f"whole run: {whole.seconds:.1f} s", file=sys.stderr)
    chance = random.Random(seed)
    when = moments(num_kills, job.num_rows, whole.seconds - whole.answering_s, chance)
    target = folder / "killed.jsonl"
    kills, _ = killed_run(job, target, folder, when, chance)
    killed = _records(target)
    table = right_by_kind(job, whole.records)
    return Record(
        repeats=1,
        summary={
            **_whole_summary(job, whole, table),
            **_kill_summary(job, kills, killed),
            "different_answers": _num_different(whole.records, killed),
        },
        rows=[_whole_row(job, whole), *map(_kill_row, kills), *_kind_rows(table)],
    )


def _whole_summary(
    job: Job, whole: WholeRun, table: Mapping[str, tuple[int, int]]
) -> dict[str, float]:
    """Accuracy, and what was computed beside the least. Pure."""
    accuracy = sum(right for right, _ in table.values()) / job.num_rows
    expected = card_accuracy(kind for kind, _ in job.expected)
    counters = whole.counters
    return {
        "questions_per_second": job.num_rows / whole.seconds,
        "failed": sum(record["error"] is not None for record in whole.records),
        "accuracy": accuracy,
        "card_accuracy": expected,
        "accuracy_over_card": accuracy / expected,
        "computed_over_least": counters["prompt_tokens_computed_total"] / whole.tokens_least,
        "clips_opened_over_clips": counters["media_decodes_total"] / job.num_clips,
        "frames_encoded_over_frames": counters["encoded_items_total"] / job.num_frames,
    }


def _kill_summary(
    job: Job, kills: Sequence[Kill], records: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """What kills cost: records lost, asked again though finished, or there twice. Pure."""
    keys = Counter((record["line"], record["question_index"]) for record in records)
    num_missing = sum((line, 0) not in keys for line in range(1, job.num_rows + 1))
    return {
        "kills": sum(kill.is_made for kill in kills),
        "lost": num_missing + sum(kill.vanished for kill in kills),
        "repeated": sum(kill.repeated for kill in kills),
        "duplicates": keys.total() - len(keys),
        "asked_over_questions": sum(kill.asked for kill in kills) / job.num_rows,
    }


def _num_different(
    records: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> int:
    answers = {record["line"]: record["answer"] for record in records}
    return sum(answers[record["line"]] != record["answer"] for record in others)


def _whole_row(job: Job, whole: WholeRun) -> dict[str, Any]:
    counters = whole.counters
    return {
        "measured": "whole run",
        "seconds": whole.seconds,
        "rows": job.num_rows,
        "clips": job.num_clips,
        "frames": job.num_frames,
        "answering_s": whole.answering_s,
        "tokens_computed": int(counters["prompt_tokens_computed_total"]),
        "tokens_least": whole.tokens_least,
        "clips_opened": int(counters["media_decodes_total"]),
        "frames_encoded": int(counters["encoded_items_total"]),
        "busy_elsewhere_cores": round(whole.elsewhere_cores, 2),
    }


def _kill_row(kill: Kill) -> dict[str, Any]:
    name = f"killed at the {kill.moment.phase}" if kill.is_made else "not killed"
    return {
        "measured": name,
        "seconds": round(kill.seconds, 3),
        "asked": kill.asked,
        "repeated": kill.repeated,
        "records": kill.records,
        "vanished": kill.vanished,
    }


def _kind_rows(table: Mapping[str, tuple[int, int]]) -> list[dict[str, Any]]:
    return [
        {"measured": f"answers, {kind}", "asked": asked, "exact": round(right / asked, 4)}
        for kind, (right, asked) in sorted(table.items())
    ]


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--quick", action="store_true", help="300 rows, 12 clips, 3 kills")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20, help="of the second run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of kills")
    flags = parser.parse_args()
    sizes = (12, 300) if flags.quick else (flags.clips, flags.rows)
    num_kills = 3 if flags.quick else flags.kills
    with TemporaryDirectory(prefix="mmserve-job-") as name:
        folder = Path(name)
        record = measure(write_job(folder, *sizes), folder, num_kills, flags.seed)
    report(record, flags.json)


if __name__ == "__main__":
    main()

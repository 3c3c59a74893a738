"""One job file in the order of the planner and in that of its rows, where a tenth of it fits.

    rows.jsonl (shuffled)  -> Plan       clip by clip
                           -> RowOrder   as they stand in the file

Rows, engine, concurrency and all settings are the same; KV and encoded frames have room for a
tenth of the job. Each run begins with an empty cache. `--order` is no flag of the batch tool:
records are in the order of the rows when a run has ended, so all that it would give is a job
that takes longer.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.elsewhere import Watch
from benchmarks.media_asks import Writer
from benchmarks.models import byte_tokenizer
from benchmarks.video_model import FRAME_TOKENS, VOCAB_SIZE, clip
from mmserve.batch import AskSettings, BatchRun, BatchSettings, OutputMode, Summary
from mmserve.batch.job import Plan, Planned
from mmserve.core import EngineConfig, SchedConfig
from mmserve.engine import Engine

__all__ = ["PLANNER", "ROW_ORDER", "JobSizes", "RowOrder", "measure_orders", "order_summary"]

PLANNER, ROW_ORDER = "mmserve, a job by the planner", "mmserve, a job in row order"
_QUESTION_TOKENS, _ANSWER_TOKENS = 16, 16
_TEMPLATE_TOKENS = 8
_CLIP_S = 12
_ROOM = 10
_FLUSH_S = 30.0
_FIRST_SEED = 5000


@dataclass(frozen=True, slots=True)
class JobSizes:
    """A job: clips, frames of each, questions about each."""

    num_clips: int
    num_frames: int
    num_questions: int

    @property
    def clip_tokens(self) -> int:
        """About what a clip and all that is asked about it take of KV."""
        asked = _QUESTION_TOKENS + _ANSWER_TOKENS + _TEMPLATE_TOKENS
        return self.num_frames * FRAME_TOKENS + self.num_questions * asked

    @property
    def num_slots(self) -> int:
        """A tenth of the job, or one clip if that is more."""
        return max(self.num_clips * self.clip_tokens // _ROOM, self.clip_tokens * 5 // 4)


class RowOrder(Plan):
    """What is left to do, as it stands in the file. Memory: all rows."""

    def rows(self) -> Iterator[Planned]:
        """See `Plan`."""
        return iter(sorted(super().rows(), key=lambda planned: planned.line))


_ORDERS = {PLANNER: Plan, ROW_ORDER: RowOrder}


@dataclass(frozen=True, slots=True)
class _Ran:
    """One run of the job."""

    summary: Summary
    counters: Mapping[str, float]
    answers: tuple[str, ...]
    elsewhere_cores: float


def write_job(folder: Path, sizes: JobSizes, seed: int = 0) -> Path:
    """Clips, and a file of one row a question, shuffled. Changes: `folder`."""
    tokenizer, writer = byte_tokenizer(VOCAB_SIZE), Writer(VOCAB_SIZE, seed)
    rows = []
    for number in range(sizes.num_clips):
        path = folder / f"{number}.mp4"
        path.write_bytes(clip(_CLIP_S, _FIRST_SEED + seed + number))
        for ids in writer.questions(sizes.num_questions, _QUESTION_TOKENS):
            rows.append({"video": str(path), "question": tokenizer.decode(ids)})
    random.Random(seed).shuffle(rows)
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return source


def measure_orders(
    directory: Path, folder: Path, sizes: JobSizes, repeats: int
) -> list[dict[str, Any]]:
    """A row for each order, medians over rounds. Changes: `folder`."""
    source = write_job(folder, sizes)
    config = EngineConfig(
        model=str(directory),
        num_slots=sizes.num_slots,
        sched=SchedConfig(feature_cache_tokens=sizes.num_slots),
    )
    runs: dict[str, list[_Ran]] = {name: [] for name in _ORDERS}
    with Engine.from_config(config) as engine:
        warm = folder / "warm.jsonl"
        warm.write_text(source.read_text(encoding="utf-8").splitlines()[0] + "\n")
        _run(engine, warm, sizes, Plan)
        for number in range(repeats):
            names = list(_ORDERS) if number % 2 == 0 else list(_ORDERS)[::-1]
            for name in names:
                ran = _run(engine, source, sizes, _ORDERS[name])
                runs[name].append(ran)
                told = f"round {number + 1}, {name}: {ran.summary.seconds:.1f} s"
                print(told, file=sys.stderr)
    return [_row(name, runs, sizes) for name in _ORDERS]


def _run(engine: Engine, source: Path, sizes: JobSizes, order: type[Plan]) -> _Ran:
    """The whole job once, from an empty cache. Raises RuntimeError if a question fails."""
    if not engine.flush_cache(_FLUSH_S):
        message = "the engine is still busy"
        raise RuntimeError(message)
    ask = AskSettings(num_frames=sizes.num_frames, max_tokens=_ANSWER_TOKENS)
    settings = BatchSettings(ask=ask, mode=OutputMode.OVERWRITE)
    target = source.with_suffix(".out.jsonl")
    before, watch = engine.counters(), Watch.start()
    with BatchRun(source, target, settings, order) as run:
        summary = run.answer(engine)
    elsewhere_cores = watch.elsewhere_cores()
    if summary.failed:
        message = f"{summary.failed} questions failed, see {target}"
        raise RuntimeError(message)
    after = engine.counters()
    records = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    return _Ran(
        summary,
        {name: after[name] - before[name] for name in _COUNTED},
        tuple(record["answer"] for record in records),
        elsewhere_cores,
    )


_COUNTED = {
    "prompt_tokens_computed_total": "tokens_computed",
    "encoded_items_total": "items_encoded",
    "media_decodes_total": "clips_opened",
}
"""Counters of the engine and the columns they are told in."""


def _row(name: str, runs: Mapping[str, Sequence[_Ran]], sizes: JobSizes) -> dict[str, Any]:
    """Medians of one order; answers are compared with the planner's. Pure."""
    own, expected = runs[name], runs[PLANNER][0]
    times_s = [ran.summary.seconds for ran in own]
    seconds, num_rows = median(times_s), own[0].summary.answered
    pairs = zip(own[-1].answers, expected.answers, strict=True)
    return {
        "engine": name,
        "rounds": len(own),
        "seconds": seconds,
        "fastest_s": min(times_s),
        "slowest_s": max(times_s),
        "clips": sizes.num_clips,
        "frames_a_clip": sizes.num_frames,
        "rows": num_rows,
        "slots": sizes.num_slots,
        "questions_per_s": num_rows / seconds,
        **{told: int(own[-1].counters[counter]) for counter, told in _COUNTED.items()},
        "tokens_least": runs[PLANNER][-1].summary.tokens_least,
        "different_answers": sum(one != other for one, other in pairs),
        "busy_elsewhere_cores": round(median(ran.elsewhere_cores for ran in own), 2),
    }


def order_summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the order gives: questions a second over those in row order, and tokens. Pure."""
    table = {row["engine"]: row for row in rows}
    ours, other = table[PLANNER], table[ROW_ORDER]
    return {
        "planner_over_row_order": ours["questions_per_s"] / other["questions_per_s"],
        "planner_computed_over_least": ours["tokens_computed"] / ours["tokens_least"],
        "row_order_computed_over_least": other["tokens_computed"] / other["tokens_least"],
    }

"""What compiling a program gives: each of its parts on the workload that it is for.

    grouping  shuffled questions about many pictures, KV for a few pictures, 8 rows at once
    prefix    rows that share a long prefix, which nothing has cached
    media     a big picture that is shown behind an answer

Each is run as written and compiled, in turns, on one engine, the cache empty before each run.
Greedy answers are compared.
"""

from __future__ import annotations

import argparse
import io
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image

import mmserve as sgl
from benchmarks.models import llava_60m
from benchmarks.record import Record, report
from mmserve.core import EngineConfig, default_threads
from mmserve.engine import Engine
from mmserve.lang import Program, ProgramState

PICTURE_TOKENS = 576
_FEW_PICTURES = 4


@sgl.function
def ask(s: ProgramState, picture: bytes, question: str) -> None:
    """A question about a picture."""
    s += sgl.user(sgl.image(picture) + question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=8, ignore_eos=True))


@sgl.function
def classify(s: ProgramState, rules: str, text: str) -> None:
    """A long constant head, and a text."""
    s += sgl.system(rules)
    s += sgl.user(text) + sgl.assistant(sgl.gen("answer", max_tokens=4, ignore_eos=True))


@sgl.function
def look_later(s: ProgramState, question: str, picture: bytes) -> None:
    """An answer, and then a picture."""
    s += sgl.user(question) + sgl.assistant(sgl.gen("plan", max_tokens=24, ignore_eos=True))
    if s["plan"]:
        s += sgl.user(sgl.image(picture) + "And now?")
        s += sgl.assistant(sgl.gen("answer", max_tokens=4, ignore_eos=True))


@dataclass(frozen=True, slots=True)
class Work:
    """A program and its rows."""

    name: str
    program: Program
    rows: Sequence[dict[str, Any]]
    num_threads: int
    num_slots: int | None = None


def picture(seed: int, size: int = 336) -> bytes:
    """A seeded picture as JPEG. Pure."""
    chance = np.random.default_rng(seed)
    coarse = chance.integers(0, 256, (12, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def works(*, is_quick: bool) -> list[Work]:
    """The workloads. Pure."""
    num_pictures, num_questions = (8, 4) if is_quick else (16, 8)
    shown = [picture(seed) for seed in range(num_pictures)]
    rows = [
        {"picture": shown[i], "question": f"Question {j}: what of it?"}
        for i in range(num_pictures)
        for j in range(num_questions)
    ]
    random.Random(1).shuffle(rows)
    rules = " ".join(f"Rule {k} says that case {k} is of kind {k % 5}." for k in range(60))
    texts = [{"rules": rules, "text": f"Case {k * 7}?"} for k in range(32)]
    big = [{"question": f"Plan {k}.", "picture": picture(100 + k, 2400)} for k in range(6)]
    slots = _FEW_PICTURES * (PICTURE_TOKENS + 64)
    return [
        Work("grouping", ask, rows, 8, slots),
        Work("prefix", classify, texts, 32),
        Work("media", look_later, big, 1),
    ]


def measure(directory: Path, work: Work, repeats: int) -> dict[str, Any]:
    """Medians of both ways, and whether they answer alike."""
    config = EngineConfig(model=str(directory))
    if work.num_slots is not None:
        config = EngineConfig(model=str(directory), num_slots=work.num_slots)
    seconds: dict[str, list[float]] = {"as written": [], "compiled": []}
    counts: dict[str, dict[str, float]] = {}
    answers: dict[str, list[str]] = {}
    with Engine.from_config(config) as engine:
        ways = {"as written": work.program, "compiled": work.program.compile()}
        for turn in range(repeats + 1):  # the first warms up
            for name in sorted(ways, reverse=bool(turn % 2)):
                engine.flush_cache(timeout_s=30.0)
                before = engine.counters()
                start = time.perf_counter()
                states = ways[name].run_batch(
                    list(work.rows),
                    backend=engine,
                    num_threads=work.num_threads,
                    temperature=0,
                )
                answers[name] = [state.text() for state in states]
                if turn:
                    seconds[name].append(time.perf_counter() - start)
                after = engine.counters()
                counts[name] = {key: after[key] - before.get(key, 0) for key in after}
    written, compiled = (statistics.median(seconds[name]) for name in seconds)
    return {
        "part": work.name,
        "rows": len(work.rows),
        "rows_per_s": round(len(work.rows) / written, 3),
        "rows_per_s_compiled": round(len(work.rows) / compiled, 3),
        "speedup": round(written / compiled, 3),
        "tokens_computed": counts["as written"]["tokens_computed_total"],
        "tokens_computed_compiled": counts["compiled"]["tokens_computed_total"],
        "encoded": counts["as written"]["encoded_items_total"],
        "encoded_compiled": counts["compiled"]["encoded_items_total"],
        "different_answers": sum(
            a != b for a, b in zip(answers["as written"], answers["compiled"], strict=True)
        ),
    }


def main() -> None:
    """Parse flags, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows, one repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="write the record there; - is stdout")
    flags = parser.parse_args()
    repeats = 1 if flags.quick else flags.repeats
    torch.set_num_threads(default_threads())
    with TemporaryDirectory() as scratch:
        directory = llava_60m(Path(scratch) / "model")
        rows = [measure(directory, work, repeats) for work in works(is_quick=flags.quick)]
    summary = {f"speedup_{row['part']}": row["speedup"] for row in rows}
    summary["different_answers"] = sum(row["different_answers"] for row in rows)
    report(Record(repeats=repeats, summary=summary, rows=rows), flags.json)


if __name__ == "__main__":
    main()

"""Engines that are ready to run programs over pictures and clips, and rounds of all of them.

    round 1   mmserve, int8, transformers, vllm, ...     each from an empty cache
    round 2   int8, transformers, vllm, ..., mmserve     each round begins with another one

A lane gives what one run took; rows of a record are medians over rounds.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from benchmarks.elsewhere import Watch
from benchmarks.engines import EngineFailed
from benchmarks.media_asks import Ask, Clip, Picture, Program
from mmserve.core import (
    BytesSource,
    ImagePart,
    Part,
    Request,
    SamplingParams,
    Ticket,
    TokensPart,
    VideoPart,
)
from mmserve.engine import Engine, collect

__all__ = ["Done", "Lane", "MmserveLane", "Runs", "differences", "play", "row_of", "speedup"]

_FLUSH_S = 30.0


@dataclass(frozen=True, slots=True)
class Done:
    """One run of some programs.

    Args:
        seconds: that it took.
        answers: token ids by ask; empty where an engine gives none.
        elsewhere_cores: cores that others kept busy meanwhile.
        tokens_computed: positions of prompts and answers; None where an engine does not tell.
        items_encoded: pictures and frames that the tower saw; None as before.
    """

    seconds: float
    answers: Mapping[str, tuple[int, ...]]
    elsewhere_cores: float
    tokens_computed: int | None = None
    items_encoded: int | None = None


class Lane(Protocol):
    """An engine that runs programs from an empty cache.

    `most_programs` says that it is too slow for all of them.
    """

    name: str
    most_programs: int | None

    def run(self, programs: Sequence[Program]) -> Done:
        """All of them at once, or as the engine likes it best."""
        ...


class MmserveLane:
    """Our engine in this process: every program asks at once, and asks on when it knows more.

    Args:
        name: as in records.
        engine: is given an empty cache before each run.
        is_shared: False gives every request a salt of its own, so that nothing of it is shared.
    """

    most_programs: int | None = None

    def __init__(self, name: str, engine: Engine, *, is_shared: bool = True) -> None:
        self.name = name
        self._engine = engine
        self._is_shared = is_shared
        self._numbers = itertools.count()

    def run(self, programs: Sequence[Program]) -> Done:
        """See `Lane`. Raises RuntimeError if the engine is busy."""
        if not self._engine.flush_cache(_FLUSH_S):
            message = f"{self.name} is still busy"
            raise RuntimeError(message)
        before = self._engine.counters()
        watch, start = Watch.start(), time.perf_counter()
        firsts = [self._submit(program.next_asks({})) for program in programs]
        with ThreadPoolExecutor(max(1, len(programs))) as pool:
            answers = {}
            for found in pool.map(self._follow, programs, firsts):
                answers |= found
        seconds = time.perf_counter() - start
        after = self._engine.counters()
        computed, encoded = (
            int(after[name] - before[name])
            for name in ("tokens_computed_total", "encoded_items_total")
        )
        return Done(seconds, answers, watch.elsewhere_cores(), computed, encoded)

    def _follow(
        self, program: Program, tickets: dict[str, Ticket]
    ) -> dict[str, tuple[int, ...]]:
        """The answers of one program, from its first questions to its end."""
        answers: dict[str, tuple[int, ...]] = {}
        while tickets:
            for ask_id, ticket in tickets.items():
                answers[ask_id] = collect(ticket.outputs()).token_ids[0]
            tickets = self._submit(program.next_asks(answers))
        return answers

    def _submit(self, asks: Sequence[Ask]) -> dict[str, Ticket]:
        return {ask.ask_id: self._engine.submit(self._request(ask)) for ask in asks}

    def _request(self, ask: Ask) -> Request:
        return Request(
            request_id=ask.ask_id,
            parts=self._parts(ask),
            sampling=SamplingParams(
                max_new_tokens=ask.num_answer, temperature=0.0, ignore_eos=True
            ),
            cache_salt="" if self._is_shared else f"alone {next(self._numbers)}",
        )

    def _parts(self, ask: Ask) -> tuple[Part, ...]:
        """The prompt; before tokens, which are taken as they are, a BOS is put by hand."""
        bos = self._engine.model.bos_token_id
        parts = tuple(map(_part, ask.items))
        if bos is None or not isinstance(ask.items[0], tuple):
            return parts
        return (TokensPart((bos,)), *parts)


def _part(item: Picture | Clip | tuple[int, ...]) -> Part:
    if isinstance(item, Picture):
        return ImagePart(BytesSource(item.content))
    if isinstance(item, Clip):
        return VideoPart(BytesSource(item.content), num_frames=item.num_frames)
    return TokensPart(item)


Runs = dict[str, list[Done]]


def play(
    lanes: list[Lane], programs: Sequence[Program], rounds: int
) -> tuple[Runs, list[dict[str, Any]]]:
    """Every lane once a round; rounds begin with another lane each. Tells how far it is.

    Returns what the lanes took, and a row with the reason of each that failed, which is taken
    out. Changes: `lanes`.
    """
    runs: Runs = {lane.name: [] for lane in lanes}
    failed: list[dict[str, Any]] = []
    for number in range(rounds):
        first = number % len(lanes)
        for lane in (*lanes[first:], *lanes[:first]):
            try:
                done = lane.run(programs[: lane.most_programs])
            except EngineFailed as error:
                lanes.remove(lane)
                failed.append({"engine": lane.name, "not_run": str(error)})
                print(f"{lane.name}: {error}", file=sys.stderr)
                continue
            runs[lane.name].append(done)
            print(f"round {number + 1}, {lane.name}: {done.seconds:.1f} s", file=sys.stderr)
    return runs, failed


def differences(done: Done, expected: Done, num_tokens: int | None = None) -> int | str:
    """Answers that both gave and that differ, in their first tokens or (None) in any.

    Empty if the engine gives no token ids. Pure.
    """
    shared = done.answers.keys() & expected.answers.keys()
    if not shared:
        return ""
    pairs = ((done.answers[ask], expected.answers[ask]) for ask in shared)
    return sum(ours[:num_tokens] != theirs[:num_tokens] for ours, theirs in pairs)


def row_of(
    lane: Lane, dones: Sequence[Done], num_programs: int, expected: Done
) -> dict[str, Any]:
    """Medians of one lane. Pure.

    A slow lane may have run fewer programs than there are: its seconds, tokens and answers are
    those of `programs_run`, and its rate is theirs.
    """
    num_run = num_programs if lane.most_programs is None else lane.most_programs
    num_run = min(num_run, num_programs)
    times_s = [done.seconds for done in dones]
    seconds, last = median(times_s), dones[-1]
    return {
        "engine": lane.name,
        "programs": num_programs,
        "programs_run": num_run,
        "rounds": len(dones),
        "seconds": seconds,
        "fastest_s": min(times_s),
        "slowest_s": max(times_s),
        "programs_per_s": num_run / seconds,
        "tokens_computed": "" if last.tokens_computed is None else last.tokens_computed,
        "items_encoded": "" if last.items_encoded is None else last.items_encoded,
        "different_answers": differences(last, expected),
        "different_first_tokens": differences(last, expected, num_tokens=1),
        "answers_compared": len(last.answers.keys() & expected.answers.keys()),
        "busy_elsewhere_cores": round(median(done.elsewhere_cores for done in dones), 2),
    }


def speedup(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """Programs per second of one row over another's. Pure."""
    return float(ours["programs_per_s"] / theirs["programs_per_s"])

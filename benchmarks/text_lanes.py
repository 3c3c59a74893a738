"""Engines that are ready to answer texts on SmolLM2-135M, and rounds of all of them.

    round 1   mmserve, mmserve int8, llama.cpp, ...       each from an empty cache
    round 2   mmserve int8, llama.cpp, ..., mmserve       each round begins with another one

All get the same prompts of whole words, so that text and token ids say the same to every
tokenizer of the model. An engine that does not run here leaves a row with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from benchmarks.elsewhere import Watch
from benchmarks.engines import ENGINES, Answer, EngineAbsent, EngineFailed, Job, open_worker
from benchmarks.engines.export import Bits, checkpoint, export
from benchmarks.engines.worker import ENVIRONMENTS, Worker

__all__ = [
    "LANES",
    "LaneSpec",
    "Outcome",
    "Prompter",
    "TextLane",
    "absent_rows",
    "differences",
    "lanes_named",
    "open_lanes",
    "play",
    "smollm2",
    "warm",
]

MODEL = "smollm2-135m"
_MODELS_FOLDER = ENVIRONMENTS / "models"
_LOGS_FOLDER = ENVIRONMENTS / "logs"


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """An engine at some number of bits.

    Args:
        name: as in records.
        engine: one of `ENGINES`.
        bits: of the weights.
        options: of the engine's worker.
        is_slow: it takes a minute to load, or runs far behind the others.
    """

    name: str
    engine: str
    bits: Bits = "full"
    options: Mapping[str, Any] = field(default_factory=dict)
    is_slow: bool = False

    @property
    def takes_all(self) -> bool:
        """Whether the engine is handed all jobs together, and batches them itself. Pure."""
        return any(spec.name == self.engine and "at_once" in spec.can for spec in ENGINES)


LANES = (
    LaneSpec("mmserve", "mmserve"),
    LaneSpec("mmserve, int8", "mmserve", "int8", {"weights": "int8"}),
    LaneSpec("mmserve, torch alone", "mmserve", options={"kernels": "torch"}, is_slow=True),
    LaneSpec("transformers", "transformers"),
    LaneSpec("transformers, batched", "transformers-batched"),
    LaneSpec("transformers, continuous", "transformers-serve", is_slow=True),
    LaneSpec("llama.cpp", "llama.cpp"),
    LaneSpec("llama.cpp, int8", "llama.cpp", "int8", {"use_extra_bufts": False}),
    LaneSpec("vllm", "vllm", is_slow=True),
    LaneSpec("openvino", "openvino", is_slow=True),
    LaneSpec("openvino, int8", "openvino", "int8", is_slow=True),
)
"""Everything that may run; benchmarks take what they need.

llama.cpp 0.3.36 dies while it packs this model's 8-bit weights for AMX, so it leaves that out.
"""


def lanes_named(names: Sequence[str] | None, *, is_quick: bool) -> list[LaneSpec]:
    """Lanes by name; by default all, or in a quick run those that are not slow. Pure."""
    if names is None:
        return [lane for lane in LANES if not (is_quick and lane.is_slow)]
    return [lane for lane in LANES if lane.name in names]


def smollm2() -> Path:
    """SmolLM2-135M in float32 as a directory, kept between runs. Cost: half a minute once."""
    return checkpoint(MODEL, _MODELS_FOLDER)


class Prompter:
    """Draws prompts of whole words. Mutable: its generator moves on.

    Args:
        directory: checkpoint with the tokenizer.
        seed: of what is drawn.
    """

    def __init__(self, directory: Path, seed: int = 0) -> None:
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self._random = np.random.default_rng(seed)
        pieces = self._tokenizer.convert_ids_to_tokens(list(range(len(self._tokenizer))))
        self._words = np.array([i for i, piece in enumerate(pieces) if _is_word(piece)])

    def words(self, num_tokens: int) -> tuple[int, ...]:
        """Token ids. Changes: the generator."""
        return tuple(map(int, self._random.choice(self._words, num_tokens)))

    def job(self, job_id: str, token_ids: Sequence[int], max_tokens: int) -> Job:
        """A job of these token ids. Raises ValueError if its text has others. Pure."""
        text = self._tokenizer.decode(token_ids)
        if self._tokenizer(text, add_special_tokens=False)["input_ids"] != list(token_ids):
            raise ValueError(f"{text[:60]!r} does not have the tokens it was made of")
        return Job(id=job_id, text=text, token_ids=tuple(token_ids), max_tokens=max_tokens)


def _is_word(piece: str) -> bool:
    """A blank and three letters or more, none of them a capital. Pure."""
    word = piece[1:]
    return (
        piece.startswith("Ġ")
        and len(word) >= 3
        and word.isascii()
        and word.isalpha()
        and word.islower()
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Jobs answered from an empty cache.

    Args:
        seconds: that it took, in the engine's own process.
        answers: by job.
        elsewhere_cores: cores that others kept busy meanwhile.
    """

    seconds: float
    answers: Mapping[str, Answer]
    elsewhere_cores: float

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers. Pure."""
        return sum(answer.num_tokens for answer in self.answers.values())


@dataclass(frozen=True, slots=True)
class TextLane:
    """An engine with the model loaded, in a process of its own."""

    spec: LaneSpec
    version: str
    worker: Worker

    def run(self, jobs: Sequence[Job]) -> Outcome:
        """Answer jobs from an empty cache. Raises EngineFailed."""
        self.worker.forget()
        watch = Watch.start()
        ran = self.worker.run(jobs, at_once=self.spec.takes_all)
        return Outcome(ran.seconds, ran.by_id, watch.elsewhere_cores())


def open_lanes(
    wanted: Sequence[LaneSpec], threads: int, stack: ExitStack
) -> tuple[list[TextLane], dict[str, str]]:
    """Lanes that run here, and the reason of each that does not; `stack` ends them."""
    lanes, reasons = [], {}
    for spec in wanted:
        log = _LOGS_FOLDER / f"text, {spec.name}.log"
        try:
            directory = export(spec.engine, MODEL, _MODELS_FOLDER, bits=spec.bits)
            worker = stack.enter_context(open_worker(spec.engine, log=log))
            loaded = worker.load(directory, threads=threads, options=spec.options)
        except (EngineAbsent, EngineFailed) as error:
            reasons[spec.name] = str(error)
            print(f"{spec.name}: {error}", file=sys.stderr)
            continue
        lanes.append(TextLane(spec, loaded.version, worker))
        print(f"{spec.name}: loaded in {loaded.seconds:.0f} s", file=sys.stderr)
    return lanes, reasons


def warm(lanes: list[TextLane], jobs: Sequence[Job]) -> dict[str, str]:
    """Have every lane answer some jobs that are not timed; see `play`."""
    return play(lanes, 1, lambda lane, _: lane.run(jobs), lambda: None)


def play(
    lanes: list[TextLane],
    rounds: int,
    run: Callable[[TextLane, int], object],
    begin: Callable[[], None],
) -> dict[str, str]:
    """Every lane once a round; rounds begin with another lane each.

    Args:
        lanes: those that fail are taken out.
        rounds: how many.
        run: runs a lane in the round of this number.
        begin: called before each round.

    Returns:
        The reason of each lane that failed.
    """
    failed: dict[str, str] = {}
    for number in range(rounds):
        begin()
        first = number % max(1, len(lanes))
        for lane in (*lanes[first:], *lanes[:first]):
            try:
                run(lane, number)
            except EngineFailed as error:
                failed[lane.spec.name] = str(error)
                lanes.remove(lane)
                lane.worker.quit()
                print(f"{lane.spec.name}: {error}", file=sys.stderr)
    return failed


def absent_rows(reasons: Mapping[str, str], wanted: Sequence[LaneSpec]) -> list[dict[str, Any]]:
    """A row for each lane without a result: why it failed, or that it was left out. Pure."""
    asked = {spec.name for spec in wanted}
    left_out = {spec.name: "left out of this run" for spec in LANES if spec.name not in asked}
    return [
        {"engine": name, "not_run": reason} for name, reason in {**reasons, **left_out}.items()
    ]


def differences(
    answers: Mapping[str, Answer], expected: Mapping[str, Answer]
) -> tuple[int, int]:
    """Answers that both have as token ids: how many differ, and how many there are. Pure."""
    pairs = [
        (answer.token_ids, expected[job_id].token_ids)
        for job_id, answer in answers.items()
        if job_id in expected
        and answer.token_ids is not None
        and expected[job_id].token_ids is not None
    ]
    return sum(ours != theirs for ours, theirs in pairs), len(pairs)

"""Random answers under constraints, and what each call of a matcher takes meanwhile.

Times of masks, of accepting and of looking for jumps are processor time of the thread, which
neighbours on the machine disturb least; compiling is wall time, and processor time of all
threads beside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.constraint_cases import Case
from mmserve.constrained import GrammarCompiler
from mmserve.core import ConstraintRefused, Matcher
from mmserve.engine.load import locate_model
from mmserve.prompt import load_tokenizer

__all__ = ["OURS", "Timed", "Tokens", "Walk", "percentiles", "time_case"]

OURS = "mmserve"
_MAX_TOKENS = 96
_END_CHANCE = 0.2
_PLAIN_CHANCE = 0.5


class Tokens:
    """The vocabulary of a model, without its weights.

    Args:
        model: an embedded name, a directory or a `.gguf` file.
    """

    def __init__(self, model: str) -> None:
        tokenizer = load_tokenizer(locate_model(model))
        if tokenizer.eos_token_id is None:
            raise ValueError(f"{model} has no end token")
        self.eos_token_id = tokenizer.eos_token_id
        hidden = tokenizer.control_ids | {self.eos_token_id}
        self.pieces = tuple(
            b"" if number in hidden else piece for number, piece in enumerate(tokenizer.pieces)
        )
        """Bytes of tokens that stand for text; empty for all others."""
        self.is_plain = np.array([_is_plain(piece) for piece in self.pieces])
        self._tokenizer = tokenizer

    def compiler(self) -> GrammarCompiler:
        """A compiler that keeps nothing."""
        return GrammarCompiler(
            self._tokenizer.pieces,
            eos_token_ids=(self.eos_token_id,),
            vocab_size=len(self.pieces),
            special_ids=self._tokenizer.control_ids,
            encode=self._tokenizer.encode_onward,
            cache_bytes=0,
        )


def _is_plain(piece: bytes) -> bool:
    return piece.isascii() and piece.decode("ascii").isprintable() and piece != b""


@dataclass(slots=True)
class Walk:
    """Times of one answer in microseconds, a number for each token.

    `token_ids` do not hold the end token, for which no mask is computed anew.
    """

    token_ids: list[int] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)
    accept_us: list[float] = field(default_factory=list)
    jump_us: list[float] = field(default_factory=list)
    is_stuck: bool = False


@dataclass(frozen=True, slots=True)
class Timed:
    """What one engine took for one constraint; `refusal` says why it did not take it.

    The first of `walks` finds nothing computed but the mask at the beginning.
    """

    name: str
    kind: str
    compile_ms: float = 0.0
    processor_ms: float = 0.0
    first_mask_ms: float = 0.0
    walks: Sequence[Walk] = ()
    refusal: str | None = None


def time_case(
    compiler: GrammarCompiler, tokens: Tokens, case: Case, num_walks: int
) -> tuple[Timed, list[list[int]]]:
    """Compile and write some random answers; their tokens too, for other engines to follow."""
    kind = case.constraint.kind
    start, started = time.perf_counter(), time.process_time()
    try:
        new_matcher = compiler.compile(case.constraint)
        matcher = new_matcher()
    except ConstraintRefused as error:
        return Timed(case.name, kind, refusal=error.message), []
    ready, processor_s = time.perf_counter(), time.process_time() - started
    matcher.allowed()
    filled = time.perf_counter()
    chance = Random(case.name)
    walks = [_walk(new_matcher(), tokens, chance) for _ in range(num_walks)]
    timed = Timed(
        case.name,
        kind,
        compile_ms=(ready - start) * 1e3,
        processor_ms=processor_s * 1e3,
        first_mask_ms=(filled - ready) * 1e3,
        walks=walks,
    )
    return timed, [walk.token_ids for walk in walks]


def _walk(matcher: Matcher, tokens: Tokens, chance: Random) -> Walk:
    """Any allowed tokens, printable ones more often; an end now and then where there may be."""
    walk = Walk()
    while len(walk.token_ids) < _MAX_TOKENS and not matcher.is_finished:
        start = time.thread_time_ns()
        try:
            mask = matcher.allowed()
        except ConstraintRefused:
            walk.is_stuck = True
            break
        filled = time.thread_time_ns()
        token_id = _choose(mask, tokens, chance)
        if token_id is None:
            break
        chosen = time.thread_time_ns()
        matcher.accept(token_id)
        accepted = time.thread_time_ns()
        matcher.jump()
        looked = time.thread_time_ns()
        walk.token_ids.append(token_id)
        walk.mask_us.append((filled - start) / 1e3)
        walk.accept_us.append((accepted - chosen) / 1e3)
        walk.jump_us.append((looked - accepted) / 1e3)
    return walk


def _choose(mask: NDArray[np.uint32], tokens: Tokens, chance: Random) -> int | None:
    """A token that is allowed; None to end."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(tokens.pieces)]
    is_allowed = bits.astype(bool)
    may_end = bool(is_allowed[tokens.eos_token_id])
    is_allowed[tokens.eos_token_id] = False
    if chance.random() < _PLAIN_CHANCE and (is_allowed & tokens.is_plain).any():
        is_allowed &= tokens.is_plain
    allowed = np.flatnonzero(is_allowed)
    if len(allowed) == 0 or (may_end and chance.random() < _END_CHANCE):
        return None
    return int(allowed[chance.randrange(len(allowed))])


def percentiles(values: Iterable[float], name: str, unit: str) -> dict[str, Any]:
    """Median, 99th percentile and largest, named `NAME_p50_UNIT` and so on; empty for none."""
    numbers = np.fromiter(values, dtype=float)
    if len(numbers) == 0:
        return {}
    return {
        f"{name}_p50_{unit}": float(np.median(numbers)),
        f"{name}_p99_{unit}": float(np.percentile(numbers, 99)),
        f"{name}_max_{unit}": float(numbers.max()),
    }

"""One answer under way: the only thing in the house that changes while it is served."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mmserve.core import (
    CacheOutcome,
    CacheUse,
    Finish,
    Jump,
    Matcher,
    MediaSpan,
    Prompt,
    SamplingParams,
    Usage,
)
from mmserve.radix import Node

__all__ = ["GrowingArray", "MissMap", "Sequence", "SequenceSpec", "empty_slots", "first_score"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SequenceSpec:
    """What the engine hands in: one prompt, one answer wanted.

    Args:
        sequence_id: unique among all sequences ever handed in.
        seed: 64-bit seed of this answer.
        eos_token_ids: the model's end tokens.
        client: who asked; service is shared fairly between clients.
        priority: higher goes first among the client's own.
        matcher: the answer's grammar; owned by the sequence from now on.
        rivals: (position, token id): other tokens to score where the prompt has its own, or
            behind its end. Each position lies behind the first one that `sampling` scores, or
            at the prompt's end.
    """

    sequence_id: int
    prompt: Prompt
    sampling: SamplingParams
    seed: int
    eos_token_ids: tuple[int, ...]
    client: str = ""
    priority: int = 0
    matcher: Matcher | None = None
    rivals: tuple[tuple[int, int], ...] = ()


def first_score(spec: SequenceSpec) -> int:
    """First prompt position whose log-probability is wanted, or the prompt's length. Pure."""
    start = spec.sampling.prompt_logprobs_from
    return spec.prompt.num_tokens if start is None else max(1, start)


class GrowingArray:
    """An int64 array that only grows at its end, so that views of it never change.

    `size` is its length, to be read only: a step asks for it a hundred times.
    """

    __slots__ = ("_buffer", "size")

    def __init__(self, values: NDArray[np.int64]) -> None:
        self._buffer = values
        self.size = len(values)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, position: int) -> int:
        return int(self._buffer[position])

    def view(self, start: int, stop: int) -> NDArray[np.int64]:
        """Values of [start, stop), without copying; not to be written."""
        return self._buffer[start : min(stop, self.size)]

    def cut(self, size: int) -> None:
        """Keep the first `size` values. Changes: the length, not views handed out."""
        if size < self.size:
            self._buffer = self._buffer[:size].copy()
            self.size = size

    def append(self, value: int) -> None:
        """Put one value at the end. Changes: the length, not views handed out."""
        if self.size == len(self._buffer):
            self.extend(np.array((value,), dtype=np.int64))
            return
        self._buffer[self.size] = value
        self.size += 1

    def extend(self, values: NDArray[np.int64]) -> None:
        """Put values int64 [k] at the end. Changes: the length, not views handed out."""
        size = self.size + len(values)
        if size > len(self._buffer):
            grown = np.empty(max(size + 32, self.size * 3 // 2), dtype=np.int64)
            grown[: self.size] = self._buffer[: self.size]
            self._buffer = grown
        self._buffer[self.size : size] = values
        self.size = size


@dataclass(frozen=True, slots=True)
class MissMap:
    """What the tree knew of a prompt when its first step was planned.

    Args:
        ends: (position, outcome): tokens before the position had that outcome if they are
            computed, unless an earlier position lies behind them.
        moved_spans: places of spans that are cached behind other tokens.
    """

    ends: tuple[tuple[int, CacheOutcome], ...] = ()
    moved_spans: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one sequence; written only by this room.

        tokens   [ prompt ............................ | answer so far ]
        slots    [ in the tree, pinned . | own ....... |               ]
                 0                  depth      computed           known

    Between `plan` and `commit` the slots reach past `computed`: the step writes them.

    Args:
        arrival: number in the order of arrival.
        arrived_s: clock at arrival.
        num_prompt: tokens of the prompt; `num_image` and `num_video` of them stand for media.
        max_new: tokens the answer may have, fitted to the context and to the pool.
        tokens: token ids of prompt and answer.
        keys: prefix keys of the same.
        next_score: first known position whose log-probability is still to be reported.
        score_stop: where these positions end.
        end_ids: tokens that end the answer.
        atomic: [start, end) of spans that must not be cut.
        depth: tokens whose slots the tree owns; `node` ends there and is pinned.
        secured: positions in the prompt's list of spans whose features are pinned.
        hook: where it hangs in the tree while its prompt is not all planned.
        sweep: pass over its client's waiting sequences in which it starts.
        order_rank: its place in the order of those that wait; see `rules`.
        is_offered: whether it may start now.
        claimed: the ghost on its way that it computes next.
        passes: others that started while it found no slots.
        num_drawn: tokens of the answer that were drawn, those replaced since included.
        num_forced: tokens that jumps added to the answer.
        num_settled: tokens of the answer that no later jump may replace.
        opening: a jump taken before the first token was drawn, and not yet told.
        ending: the end that a jump brought; nothing is drawn any more.
        cache: what its prompt tokens found in the cache, of those accounted for; `hits` of
            text, pictures and frames among it.
        num_accounted: prompt tokens whose outcome is noted and whose cost is charged.
    """

    spec: SequenceSpec
    arrival: int
    arrived_s: float
    num_prompt: int
    max_new: int
    tokens: GrowingArray
    keys: GrowingArray
    next_score: int
    score_stop: int
    num_image: int = 0
    num_video: int = 0
    end_ids: tuple[int, ...] = ()
    atomic: tuple[tuple[int, int], ...] = ()
    slots: GrowingArray = field(default_factory=lambda: empty_slots())
    computed: int = 0
    depth: int = 0
    node: Node | None = None
    secured: set[int] = field(default_factory=set)
    hook: Node | None = None
    sweep: int = 0
    order_rank: tuple[tuple[int, int], int, int, int] = ((0, 0), 0, 0, 0)
    is_offered: bool = False
    claimed: Node | None = None
    passes: int = 0
    num_drawn: int = 0
    num_forced: int = 0
    num_settled: int = 0
    opening: Jump | None = None
    ending: Finish | None = None
    is_ended: bool = False
    admitted_s: float | None = None
    cache: tuple[CacheUse, ...] = ()
    hits: tuple[int, int, int] = (0, 0, 0)
    num_accounted: int = 0
    seen: MissMap = MissMap()
    num_retractions: int = 0
    prefill_ms: float = 0.0
    encode_ms: float = 0.0

    @property
    def sequence_id(self) -> int:
        """The engine's name for it."""
        return self.spec.sequence_id

    @property
    def num_output(self) -> int:
        """Tokens of the answer so far."""
        return self.tokens.size - self.num_prompt

    @property
    def num_cached(self) -> int:
        """Prompt tokens it did not compute itself."""
        return sum(self.hits)

    @property
    def known(self) -> int:
        """Tokens known, whether computed or not."""
        return self.tokens.size

    @property
    def missing(self) -> int:
        """Known tokens whose KV is still to be computed."""
        return self.tokens.size - self.computed

    @property
    def is_streaming(self) -> bool:
        """Whether all that is missing is the answer's latest token."""
        num_known = self.tokens.size
        return num_known - self.computed == 1 and num_known > self.num_prompt

    @property
    def match_limit(self) -> int:
        """Most tokens that may come from the tree; the last one and scored ones may not."""
        limit = self.known - 1
        if self.next_score < self.score_stop:
            limit = min(limit, self.next_score - 1)
        return max(limit, self.computed)

    def spans_in(self, start: int, stop: int) -> list[tuple[int, MediaSpan]]:
        """Spans with tokens in [start, stop), with their place in the prompt's list. Pure."""
        spans = self.spec.prompt.spans
        if not spans or start >= self.num_prompt:
            return []
        return [
            (place, span)
            for place, span in enumerate(spans)
            if span.start < stop and span.end > start
        ]

    def positions(self, start: int, stop: int) -> NDArray[np.int64] | None:
        """Time, row and column int64 [3, stop - start], if the prompt has them. Pure."""
        prompt = self.spec.prompt
        if prompt.positions is None:
            return None
        num = prompt.num_tokens
        answer = np.arange(max(start, num), max(stop, num)) + (prompt.next_position - num)
        known = prompt.positions[:, start:stop]
        return np.concatenate([known, np.tile(answer, (3, 1))], axis=1)

    def usage(self) -> Usage:
        """Token counts so far, without an opening that was not told. Pure."""
        num_untold = 0 if self.opening is None else len(self.opening.token_ids)
        return Usage(
            prompt_tokens=self.num_prompt,
            completion_tokens=self.num_output - num_untold,
            image_tokens=self.num_image,
            video_tokens=self.num_video,
            cached_tokens=self.num_cached,
            cached_text_tokens=self.hits[0],
            cached_image_tokens=self.hits[1],
            cached_video_tokens=self.hits[2],
            cache=self.cache,
            num_retractions=self.num_retractions,
            forced_tokens=self.num_forced - num_untold,
        )


def empty_slots() -> GrowingArray:
    """Slots of a sequence that holds none."""
    return GrowingArray(np.empty(0, dtype=np.int64))

"""Programs over media by hand-made plans: one prompt with a picture or clip, many questions.

    media, prefix  |== encoded once, its KV computed once ==|
    questions                                               |-- q 0 --|.... answer 0
                                                            |-- q 1 --|.... answer 1

Steps are launched before the one before them is read only where their tokens do not need it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.device.models import Pair
from benchmarks.device.sizes import Setting
from mmserve.core import (
    EncodeItem,
    FeatureUse,
    ForwardPlan,
    PlanRow,
    RowSampling,
    SampledTokens,
    SamplingParams,
)

__all__ = ["Medium", "Run", "answers", "decode_s", "greedy", "repeated", "theirs"]

_GREEDY = SamplingParams(temperature=0.0)
_NOTHING = np.zeros(0, dtype=np.int64)
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Medium:
    """A picture or clip in a prompt, and what is asked of it.

    Args:
        inputs: for the encoder.
        prefix: int64 [n], the prompt up to the questions.
        start: of the medium's tokens in it.
        num_tokens: of the medium.
        num_patches: what encoding costs.
        questions: int64 each.
        positions: int64 [3, n] of the prefix, for models that ask; None: places.
        extra: what transformers' `generate` takes beside ids.
    """

    inputs: dict[str, NDArray[Any]]
    prefix: Ints
    start: int
    num_tokens: int
    num_patches: int
    questions: Sequence[Ints]
    positions: Ints | None = None
    extra: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Sequence:
    """Tokens and slots of one row; `next_position` is that of its next token."""

    token_ids: list[int]
    slots: list[int]
    next_position: int


class Run:
    """Gives slots and step numbers to a runner's plans.

    Args:
        pair: whose runner.
        most_tokens: computed in one step.
    """

    def __init__(self, pair: Pair, most_tokens: int = 8192) -> None:
        self._runner = pair.runner
        self._has_grid = pair.model.decoder.shape.has_grid_positions
        self._most_tokens = most_tokens
        self._next_slot = 0
        self._step = 0
        self._digests = 0

    def execute(
        self, rows: Sequence[PlanRow], encode: Sequence[EncodeItem] = ()
    ) -> SampledTokens:
        """One step."""
        self._step += 1
        return self._runner.execute(ForwardPlan(self._step, tuple(rows), tuple(encode)))

    def slots(self, num: int) -> list[int]:
        """`num` slots that nobody has."""
        first, self._next_slot = self._next_slot, self._next_slot + num
        return list(range(first, first + num))

    def row(
        self,
        number: int,
        sequence: _Sequence,
        token_ids: Ints,
        **how: Any,  # noqa: ANN401
    ) -> PlanRow:
        """The row that computes `token_ids` behind a sequence. Changes: the sequence."""
        start = len(sequence.slots)
        sequence.slots += self.slots(len(token_ids))
        sequence.token_ids += token_ids.tolist()
        positions = how.pop("positions", None)
        if self._has_grid and positions is None:
            first = sequence.next_position
            positions = np.tile(np.arange(first, first + len(token_ids)), (3, 1))
        sequence.next_position += len(token_ids)
        if positions is not None:
            sequence.next_position = int(positions.max()) + 1
        slots = np.array(sequence.slots, dtype=np.int64)
        return PlanRow(number, start, token_ids, slots, positions=positions, **how)

    def prefill(self, media: Sequence[Medium]) -> list[_Sequence]:
        """KV of every prefix, its medium encoded once."""
        prefixes: list[_Sequence] = []
        rows: list[PlanRow] = []
        items: list[EncodeItem] = []
        for number, medium in enumerate(media):
            self._digests += 1
            digest = self._digests.to_bytes(16, "little")
            items.append(EncodeItem(digest, medium.inputs, medium.num_patches))
            sequence = _Sequence([], [], 0)
            use = FeatureUse(digest, 0, medium.start, medium.num_tokens)
            how = {"features": (use,), "positions": medium.positions}
            rows.append(self.row(number, sequence, medium.prefix, **how))
            prefixes.append(sequence)
            if sum(len(row.token_ids) for row in rows) >= self._most_tokens:
                self.execute(rows, items)
                rows, items = [], []
        if rows:
            self.execute(rows, items)
        return prefixes

    def sampled(
        self, sequences: Sequence[_Sequence], tokens: Sequence[Ints], position: int
    ) -> list[int]:
        """Compute tokens behind each sequence and draw one. Changes: the sequences."""
        sampling = RowSampling(_GREEDY, 0, position, _NOTHING)
        rows = [
            self.row(number, sequence, ids, sampling=sampling)
            for number, (sequence, ids) in enumerate(zip(sequences, tokens, strict=True))
        ]
        return [int(row.token_id or 0) for row in self.execute(rows).rows]


def answers(pair: Pair, media: Sequence[Medium], num_answer: int) -> list[list[int]]:
    """Greedy answers to every question of every medium, in order."""
    run = Run(pair)
    prefixes = run.prefill(media)
    sequences: list[_Sequence] = []
    questions: list[Ints] = []
    for prefix, medium in zip(prefixes, media, strict=True):
        for question in medium.questions:
            copy = _Sequence(list(prefix.token_ids), list(prefix.slots), prefix.next_position)
            sequences.append(copy)
            questions.append(question)
    found: list[list[int]] = [[] for _ in sequences]
    tokens = questions
    for position in range(num_answer):
        drawn = run.sampled(sequences, tokens, position)
        for answer, token_id in zip(found, drawn, strict=True):
            answer.append(token_id)
        tokens = [np.array([token_id], dtype=np.int64) for token_id in drawn]
    return found


def greedy(pair: Pair, prompts: Sequence[Ints], num_answer: int) -> list[list[int]]:
    """Greedy answers to prompts of text, all rows together."""
    run = Run(pair)
    sequences = [_Sequence([], [], 0) for _ in prompts]
    found: list[list[int]] = [[] for _ in prompts]
    tokens = list(prompts)
    for position in range(num_answer):
        drawn = run.sampled(sequences, tokens, position)
        for answer, token_id in zip(found, drawn, strict=True):
            answer.append(token_id)
        tokens = [np.array([token_id], dtype=np.int64) for token_id in drawn]
    return found


def decode_s(setting: Setting, pair: Pair, num_rows: int, context: int, steps: int) -> float:
    """Seconds of one decode step, host and device, the median of `steps`."""
    run = Run(pair)
    sequences = [_Sequence([], [], 0) for _ in range(num_rows)]
    prompt = np.arange(context, dtype=np.int64) % 97 + 8
    for sequence in sequences:
        run.sampled([sequence], [prompt], 0)
    token = np.array([9], dtype=np.int64)
    times = []
    for position in range(steps + 3):
        setting.wait()
        began = time.perf_counter()
        run.sampled(sequences, [token] * num_rows, position)
        times.append(time.perf_counter() - began)
    return float(np.median(times[3:]))


@torch.inference_mode()
def theirs(
    setting: Setting, pair: Pair, media: Sequence[Medium], num_answer: int
) -> list[list[int]]:
    """Greedy answers of transformers: each medium's questions as one batch, without padding.

    Questions of one medium have one length, so its batch needs no padding.
    """
    found: list[list[int]] = []
    for medium in media:
        ids = np.stack([np.concatenate([medium.prefix, one]) for one in medium.questions])
        tensor = torch.from_numpy(ids).to(setting.device)
        extra = {
            name: repeated(name, array, len(ids), setting)
            for name, array in medium.extra.items()
        }
        out = pair.theirs.generate(
            input_ids=tensor,
            attention_mask=torch.ones_like(tensor),
            max_new_tokens=num_answer,
            min_new_tokens=num_answer,
            do_sample=False,
            pad_token_id=0,
            **extra,
        )
        found += out[:, ids.shape[1] :].tolist()
    return found


def repeated(name: str, array: NDArray[Any], num: int, setting: Setting) -> torch.Tensor:
    """The same input for each row of a batch, one behind the other."""
    tensor = torch.from_numpy(np.concatenate([array] * num)).to(setting.device)
    is_whole = name.endswith("grid_thw")
    return tensor if is_whole else tensor.to(setting.dtype)

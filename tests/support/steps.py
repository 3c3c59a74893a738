"""Hand-made plans for a loaded runner, and the same answers from transformers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from mmserve.core import (
    EncodeItem,
    EngineConfig,
    FeatureUse,
    ForwardPlan,
    PlanRow,
    RowSampling,
    SampledRow,
    SampledTokens,
    SamplingParams,
)
from mmserve.runner import LoadedModel, load_model

__all__ = [
    "GREEDY",
    "Driver",
    "encode_item",
    "load",
    "pixels",
    "reference",
    "reference_logprobs",
    "scores_of",
]

GREEDY = SamplingParams(temperature=0.0, return_logprobs=True, top_logprobs=5)


def load(directory: Path, **settings: Any) -> LoadedModel:
    """A fresh runner with 2,048 slots on one thread, unless `settings` say otherwise."""
    return load_model(EngineConfig(**{"num_slots": 2048, "threads": 1, **settings}), directory)


@functools.cache
def reference(directory: Path) -> Any:
    """The same checkpoint in transformers, float32, in evaluation mode."""
    config = transformers.AutoConfig.from_pretrained(directory)
    auto = transformers.AutoModelForCausalLM
    if config.model_type == "llava":
        auto = transformers.LlavaForConditionalGeneration
    return auto.from_pretrained(directory, dtype=torch.float32).eval()


@torch.inference_mode()
def reference_logprobs(
    directory: Path, token_ids: Sequence[int], pictures: Sequence[np.ndarray] = ()
) -> torch.Tensor:
    """[n, V] log-probabilities that transformers gives after each token."""
    inputs: dict[str, Any] = {"input_ids": torch.tensor([list(token_ids)])}
    if pictures:
        inputs["pixel_values"] = torch.from_numpy(np.stack(pictures))
    return torch.log_softmax(reference(directory)(**inputs).logits[0].float(), dim=-1)


def pixels(seed: int, size: int) -> np.ndarray:
    """Made-up float32 pixels [3, size, size] as a processor would give them."""
    return np.random.default_rng(seed).standard_normal((3, size, size)).astype(np.float32)


def encode_item(seed: int, size: int) -> EncodeItem:
    """The picture of `pixels(seed, size)` under a digest of its own."""
    return EncodeItem(seed.to_bytes(16, "little"), {"pixel_values": pixels(seed, size)})


def scores_of(row: SampledRow) -> dict[int, float]:
    """A row's prompt log-probabilities by position."""
    return {position: logprob for position, logprob, _ in row.prompt_logprobs}


class Driver:
    """Keeps sequences for a runner, as a scheduler would: slots, positions, steps."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.num_steps = 0
        self._next_slot = 0

    def new_slots(self, num: int) -> np.ndarray:
        """`num` slots never used before."""
        first, self._next_slot = self._next_slot, self._next_slot + num
        return np.arange(first, first + num, dtype=np.int64)

    def step(
        self,
        rows: Sequence[PlanRow],
        encode: Sequence[EncodeItem] = (),
        drop: Sequence[bytes] = (),
    ) -> SampledTokens:
        """Run one plan."""
        self.num_steps += 1
        plan = ForwardPlan(self.num_steps, tuple(rows), tuple(encode), tuple(drop))
        return self.loaded.runner.execute(plan)

    def row(
        self,
        token_ids: Sequence[int],
        slots: np.ndarray,
        start: int = 0,
        *,
        params: SamplingParams | None = GREEDY,
        features: Sequence[FeatureUse] = (),
        sequence_id: int = 0,
        **changes: Any,
    ) -> PlanRow:
        """Tokens [start, len(token_ids)) of a sequence; samples unless params is None."""
        sampling = None
        if params is not None:
            sampling = RowSampling(params, params.seed or 0, 0, np.array([], dtype=np.int64))
        return PlanRow(
            sequence_id=sequence_id,
            start=start,
            token_ids=np.array(token_ids[start:], dtype=np.int64),
            slots=slots[: len(token_ids)],
            features=tuple(features),
            sampling=sampling,
            **changes,
        )

    def greedy(self, token_ids: Sequence[int], num_new: int) -> tuple[list[int], list[float]]:
        """Greedy tokens after a prompt and their log-probabilities."""
        slots = self.new_slots(len(token_ids) + num_new)
        known, start, logprobs = list(token_ids), 0, []
        for _ in range(num_new):
            answer = self.step([self.row(known, slots, start)]).rows[0]
            start = len(known)
            known.append(answer.token_id)
            logprobs.append(answer.logprob)
        return known[len(token_ids) :], logprobs

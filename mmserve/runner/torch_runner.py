"""Carries out plans with torch on one device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmserve.core import (
    ForwardPlan,
    MmserveError,
    PlanRow,
    RowSampling,
    RunnerFailed,
    SampledRow,
    SampledTokens,
)
from mmserve.kernels import Drawn, Ops
from mmserve.models import Model
from mmserve.runner.feature_store import FeatureStore
from mmserve.runner.kv_store import KvStore
from mmserve.runner.scores import Scores, score_prompt
from mmserve.runner.step import Layout, StepAttention, lay_out, to_device

__all__ = ["TorchRunner"]

Masks = Mapping[int, NDArray[np.uint32] | MmserveError]


class TorchRunner:
    """A `core.Runner`. Owns every tensor that outlives a layer: KV and encoded pictures.

    Args:
        model: loaded weights.
        kv: the KV store.
        features: the store of encoded pictures.
        ops: what computes beside the model.
        device: where the model lies.
    """

    def __init__(
        self,
        model: Model,
        kv: KvStore,
        features: FeatureStore,
        ops: Ops,
        device: torch.device,
    ) -> None:
        self._model = model
        self._kv = kv
        self._features = features
        self._ops = ops
        self._device = device

    @torch.inference_mode()
    def execute(self, plan: ForwardPlan) -> SampledTokens:
        """See `core.Runner`. Changes: KV store, feature store. Raises RunnerFailed."""
        try:
            began = time.monotonic()
            self._features.drop(plan.drop)
            self._features.encode(plan.encode)
            self._wait()
            encoded = time.monotonic()
            rows = self._run(plan) if plan.rows else ()
            self._wait()
        except RunnerFailed:
            raise
        except Exception as error:  # the seam promises one error, whatever torch raises
            message = f"step {plan.step} failed: {error}"
            raise RunnerFailed(message, step=plan.step) from error
        encode_ms = (encoded - began) * 1e3
        return SampledTokens(plan.step, rows, encode_ms, (time.monotonic() - encoded) * 1e3)

    def _run(self, plan: ForwardPlan) -> tuple[SampledRow, ...]:
        layout = lay_out(plan)
        decoder = self._model.decoder
        attention = StepAttention(
            self._ops.attention, self._kv.tensors, decoder.shape, plan.rows, layout
        )
        hidden = decoder.embed(to_device(layout.token_ids, self._device))
        deep = self._place(plan, layout, hidden)
        positions = to_device(layout.positions, self._device)
        keep = to_device(layout.keep, self._device)
        outputs = decoder.forward(hidden, positions, attention, keep, deep)
        return self._answers(plan, layout, outputs)

    def _place(self, plan: ForwardPlan, layout: Layout, hidden: Tensor) -> Tensor | None:
        """Put features over embeddings [T, E]; what early layers add, [num_deep, T, E].

        Changes: `hidden`.
        """
        num_deep, width = self._model.decoder.shape.num_deep, hidden.shape[1]
        deep: Tensor | None = None
        for first, row in zip(layout.firsts.tolist(), plan.rows, strict=True):
            for use in row.features:
                features = self._features.take(use)
                start = first + use.row_start
                hidden[start : start + use.num_tokens] = features[:, :width]
                if num_deep:
                    if deep is None:
                        deep = hidden.new_zeros((num_deep, *hidden.shape))
                    sets = features[:, width:].unflatten(1, (num_deep, width))
                    deep[:, start : start + use.num_tokens] = sets.transpose(0, 1)
        return deep

    def _answers(
        self, plan: ForwardPlan, layout: Layout, outputs: Tensor
    ) -> tuple[SampledRow, ...]:
        """Drawn tokens and prompt scores; `outputs` [Q, E] are those of `layout.keep`."""
        ends = layout.wanted.cumsum().tolist()
        sampled = [i for i, row in enumerate(plan.rows) if row.sampling is not None]
        drawn: dict[int, Drawn] = {}
        masks: Masks = {}
        if sampled:
            last = torch.tensor([ends[i] - 1 for i in sampled], device=self._device)
            logits = self._model.decoder.logits(outputs[last])
            masks = {} if plan.masks is None else plan.masks.fill()
            asked = _under(masks, plan)
            drawn = dict(zip(sampled, self._ops.draw(logits, asked).read(), strict=True))
        answers: list[SampledRow] = []
        for i, row in enumerate(plan.rows):
            scores = Scores()
            if row.logprobs_from is not None or row.rivals:
                mine = outputs[ends[i] - int(layout.wanted[i]) : ends[i]]
                scores = score_prompt(row, mine, self._model.decoder)
            mask = masks.get(i)
            if isinstance(mask, MmserveError):
                answers.append(SampledRow(row.sequence_id, error=mask))
            else:
                answers.append(_answer(plan.step, row, drawn.get(i, Drawn()), scores))
        return tuple(answers)

    def _wait(self) -> None:
        """Let the device finish, so that times are true."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _under(masks: Masks, plan: ForwardPlan) -> list[RowSampling]:
    """How rows are to be drawn, with the masks of those that have one. Pure."""
    asked = []
    for place, row in enumerate(plan.rows):
        mask = masks.get(place)
        if row.sampling is None:
            continue
        if mask is None or isinstance(mask, MmserveError):
            asked.append(row.sampling)
        else:
            asked.append(replace(row.sampling, allowed=mask))
    return asked


def _answer(step: int, row: PlanRow, drawn: Drawn, scores: Scores) -> SampledRow:
    error = None
    if drawn.fault is not None:
        message = f"sequence {row.sequence_id} failed in step {step}: {drawn.fault}"
        error = RunnerFailed(message, step=step, sequence_id=row.sequence_id)
    return SampledRow(
        sequence_id=row.sequence_id,
        token_id=drawn.token_id,
        logprob=drawn.logprob,
        top=drawn.top,
        prompt_logprobs=scores.known,
        rival_logprobs=scores.rivals,
        error=error,
    )

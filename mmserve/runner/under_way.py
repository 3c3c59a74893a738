"""A launched step: what the device works on, and how its answers are read.

launch: encode | rows, masks, draw -> PendingStep        finish: read -> SampledTokens
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
from mmserve.kernels import Drawn, Draws
from mmserve.models import LanguageModel
from mmserve.runner.clock import Mark
from mmserve.runner.scores import Scores, score_prompt
from mmserve.runner.step import Layout

__all__ = ["BegunRows", "Masks", "PendingStep", "RowsUnderWay", "under"]

Masks = Mapping[int, NDArray[np.uint32] | MmserveError]


@dataclass(frozen=True, slots=True, eq=False)
class RowsUnderWay:
    """The rows of a launched step.

    Args:
        sampled: places of the rows that draw.
        draws: of these rows; None if none draws.
        masks: of the plan.
        scored: the layout and the outputs [Q, E] that prompt scores need; None: none are asked.
        began: when the rows began.
        ended: when all of them is done, scores aside.
    """

    sampled: Sequence[int]
    draws: Draws | None
    masks: Masks
    scored: tuple[Layout, Tensor] | None
    began: Mark
    ended: Mark


@dataclass(frozen=True, slots=True, eq=False)
class BegunRows:
    """See `core.Begun`.

    Args:
        plan: what was foreseen.
        logits: [R, V] of its rows.
        began: when they began.
    """

    plan: ForwardPlan
    logits: Tensor
    began: Mark

    def places(self, plan: ForwardPlan) -> list[int]:
        """Where the rows of `plan` are among those begun. Pure. Raises KeyError."""
        known = {row.sequence_id: place for place, row in enumerate(self.plan.rows)}
        return [known[row.sequence_id] for row in plan.rows]


class PendingStep:
    """See `core.Pending`.

    Args:
        plan: the step.
        encoded: when its pictures began and ended to be encoded; None: there are none.
        rows: None: it has none.
        decoder: scores known tokens.
        device: whose step it is.
    """

    def __init__(
        self,
        plan: ForwardPlan,
        encoded: tuple[Mark, Mark] | None,
        rows: RowsUnderWay | None,
        decoder: LanguageModel,
        device: torch.device,
    ) -> None:
        self._plan = plan
        self._encoded = encoded
        self._rows = rows
        self._decoder = decoder
        self._device = device

    def draws_for(self, plan: ForwardPlan) -> tuple[Tensor, list[int]]:
        """Ids int64 [n] that this step draws, told or not, and the place of each row's. Pure.

        Raises KeyError: nothing is drawn for a row's sequence.
        """
        rows = self._rows
        if rows is None or rows.draws is None:
            raise KeyError("the step draws nothing")
        known = {self._plan.rows[i].sequence_id: n for n, i in enumerate(rows.sampled)}
        return rows.draws.token_ids, [known[row.sequence_id] for row in plan.rows]

    @torch.inference_mode()
    def finish(self) -> SampledTokens:
        """See `core.Pending.finish`. A step ends when its pictures are encoded, too."""
        try:
            return self._finish()
        except RunnerFailed:
            raise
        except Exception as error:  # as at the launch
            message = f"step {self._plan.step} failed: {error}"
            raise RunnerFailed(message, step=self._plan.step) from error

    def _finish(self) -> SampledTokens:
        encode_ms = forward_ms = 0.0
        answers: tuple[SampledRow, ...] = ()
        rows = self._rows
        if rows is not None:
            began = Mark(self._device) if self._device.type == "cpu" else None
            answers = self._answers(rows)
            forward_ms = rows.ended.ms_since(rows.began)
            if began is not None:  # what the host does here is part of the step
                forward_ms += Mark(self._device).ms_since(began)
        if self._encoded is not None:
            encode_ms = self._encoded[1].ms_since(self._encoded[0])
        return SampledTokens(self._plan.step, answers, encode_ms, forward_ms)

    def _answers(self, rows: RowsUnderWay) -> tuple[SampledRow, ...]:
        """Drawn tokens and prompt scores."""
        choices = [] if rows.draws is None else rows.draws.read()
        drawn = dict(zip(rows.sampled, choices, strict=True))
        ends = [] if rows.scored is None else rows.scored[0].wanted.cumsum().tolist()
        answers: list[SampledRow] = []
        for i, row in enumerate(self._plan.rows):
            scores = Scores()
            if rows.scored is not None and _is_scored(row):
                layout, outputs = rows.scored
                mine = outputs[ends[i] - int(layout.wanted[i]) : ends[i]]
                scores = score_prompt(row, mine, self._decoder)
            mask = rows.masks.get(i)
            if isinstance(mask, MmserveError):
                answers.append(SampledRow(row.sequence_id, error=mask))
            else:
                choice = drawn.get(i, Drawn())
                answers.append(_answer(self._plan.step, row, choice, scores))
        return tuple(answers)


def under(masks: Masks, plan: ForwardPlan) -> list[RowSampling]:
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


def _is_scored(row: PlanRow) -> bool:
    return row.logprobs_from is not None or bool(row.rivals)


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

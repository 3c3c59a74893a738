"""Carries out plans with torch on one device.

    launch: drop, encode (aside) -> stage -> embed, features -> decoder -> masks -> draw
            '- a decode step instead: staged ids, slots, positions -> graph -> masks -> draw

On a GPU nothing here waits for the device but `finish`, for the step it belongs to: arrays go
through page-locked buffers, drawn tokens come back by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmserve.core import Begun, ForwardPlan, Pending, RunnerFailed, SampledTokens
from mmserve.kernels import Ops
from mmserve.models import Model
from mmserve.runner.clock import Mark
from mmserve.runner.feature_store import FeatureStore
from mmserve.runner.graphs import DecodeGraphs
from mmserve.runner.kv_store import KvStore
from mmserve.runner.staging import staging_for
from mmserve.runner.step import Layout, StepAttention, lay_out
from mmserve.runner.under_way import BegunRows, Masks, PendingStep, RowsUnderWay, under

__all__ = ["TorchRunner"]


class TorchRunner:
    """A `core.Runner`. Owns every tensor that outlives a layer: KV and encoded pictures.

    Args:
        model: loaded weights.
        kv: the KV store.
        features: the store of encoded pictures.
        ops: what computes beside the model.
        device: where the model lies.
        graphs: run decode steps; None: these run as all others.
        looks_ahead: whether foreseen steps are begun; None: on a GPU.
    """

    def __init__(
        self,
        model: Model,
        kv: KvStore,
        features: FeatureStore,
        ops: Ops,
        device: torch.device,
        graphs: DecodeGraphs | None = None,
        *,
        looks_ahead: bool | None = None,
    ) -> None:
        self._model = model
        self._kv = kv
        self._features = features
        self._ops = ops
        self._device = device
        self._graphs = graphs
        self._looks_ahead = device.type == "cuda" if looks_ahead is None else looks_ahead
        self._staging = staging_for(device)

    @property
    def looks_ahead(self) -> bool:
        """See `core.Runner.looks_ahead`. Pure."""
        return self._looks_ahead

    def execute(self, plan: ForwardPlan) -> SampledTokens:
        """See `core.Runner.execute`."""
        return self.launch(plan).finish()

    @torch.inference_mode()
    def launch(self, plan: ForwardPlan, begun: Begun | None = None) -> Pending:
        """See `core.Runner.launch`. Changes: KV store, feature store. Raises RunnerFailed."""
        with _failing_as(plan):
            self._features.drop(plan.drop)
            encoded = self._features.encode(plan.encode)
            rows = self._launch_rows(plan, begun) if plan.rows else None
        return PendingStep(plan, encoded, rows, self._model.decoder, self._device)

    @torch.inference_mode()
    def begin(self, plan: ForwardPlan, after: Pending) -> Begun:
        """See `core.Runner.begin`. Changes: KV store. Raises RunnerFailed."""
        with _failing_as(plan):
            if not isinstance(after, PendingStep):
                raise TypeError(f"{type(after).__name__} is no step of this runner")
            token_ids = self._picked(*after.draws_for(plan))
            began = Mark(self._device)
            if self._graphs is not None and self._graphs.takes(plan):
                logits = self._graphs.logits(plan, self._staging, token_ids)
                if logits is not None:
                    return BegunRows(plan, logits, began)
            everybody = list(range(len(plan.rows)))
            run = self._forward(plan, lay_out(plan), everybody, token_ids)
            return BegunRows(plan, self._model.decoder.logits(run.drawing), began)

    def _launch_rows(self, plan: ForwardPlan, begun: Begun | None) -> RowsUnderWay:
        """Launch the rows and their draws. Changes: the KV store."""
        sampled = [i for i, row in enumerate(plan.rows) if row.sampling is not None]
        began = Mark(self._device)
        scored: tuple[Layout, Tensor] | None = None
        logits: Tensor | None = None
        if isinstance(begun, BegunRows):
            logits, began = self._picked(begun.logits, begun.places(plan)), begun.began
        elif self._graphs is not None and self._graphs.takes(plan):
            logits = self._graphs.logits(plan, self._staging)
        if logits is None:
            layout = lay_out(plan)
            run = self._forward(plan, layout, sampled)
            began = run.began or began
            if any(row.logprobs_from is not None or row.rivals for row in plan.rows):
                scored = (layout, run.outputs)
            if sampled:
                logits = self._model.decoder.logits(run.drawing)
        masks: Masks = {}
        draws = None
        if logits is not None:
            masks = {} if plan.masks is None else plan.masks.fill()
            draws = self._ops.draw(logits, under(masks, plan))
        return RowsUnderWay(sampled, draws, masks, scored, began, Mark(self._device))

    def _picked(self, rows: Tensor, places: list[int]) -> Tensor:
        """Some rows of a tensor on the device, or itself if they are all of it, in order."""
        if places == list(range(len(rows))):
            return rows
        (index,) = self._staging.put([np.array(places, dtype=np.int64)])
        return rows[index]

    def _forward(
        self,
        plan: ForwardPlan,
        layout: Layout,
        sampled: list[int],
        drawn: Tensor | None = None,
    ) -> _Run:
        """Run the decoder over the rows, with `drawn` for their tokens. Changes: KV store."""
        decoder = self._model.decoder
        attention = StepAttention(
            self._ops.attention, self._kv.tensors, decoder.shape, plan.rows, layout
        )
        arrays = [layout.token_ids, layout.positions, layout.keep]
        is_every = len(sampled) == len(layout.keep)
        if not is_every:
            arrays.append(layout.wanted.cumsum()[sampled] - 1)
        token_ids, positions, keep, *others = self._staging.put(arrays)
        hidden = decoder.embed(token_ids if drawn is None else drawn)
        features = [self._features.take(use) for use in layout.uses]
        deep = self._ops.place(hidden, features, layout.use_starts, decoder.shape.num_deep)
        is_late = bool(features) and self._device.type != "cpu"  # may have waited for pictures
        began = Mark(self._device) if is_late else None
        outputs = decoder.forward(hidden, positions, attention, keep, deep)
        return _Run(outputs, outputs if is_every else outputs[others[0]], began)


@contextmanager
def _failing_as(plan: ForwardPlan) -> Iterator[None]:
    """Whatever torch raises inside is a RunnerFailed: the seam promises one error."""
    try:
        yield
    except RunnerFailed:
        raise
    except Exception as error:
        message = f"step {plan.step} failed: {error}"
        raise RunnerFailed(message, step=plan.step) from error


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Outputs [Q, E] of the kept tokens, and those that draw; when layers began, if late."""

    outputs: Tensor
    drawing: Tensor
    began: Mark | None

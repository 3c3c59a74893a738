"""Decode steps as CUDA graphs: one launch for all of a step's kernels.

    plan --is_decode--> rows --size_for--> graph of that many rows, captured when first needed
    staged ids, slots, positions --copied--> its inputs;  rows --update--> its attention plans
    replay -> logits [rows, V]

A graph has a fixed number of rows. Those behind the plan's own are padding: token 0 at position
0, slot -1, which is not written, and nothing to attend to. The draw is not part of it, since
what rows ask for differs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmserve.core import ForwardPlan
from mmserve.kernels import AttentionPlan, KvTensors, KvWriter, QueryRow, Turn
from mmserve.models import Decoder
from mmserve.runner.staging import Staging

__all__ = ["GRAPH_SIZES", "Capture", "DecodeGraphs", "GraphAttention", "is_decode", "size_for"]

GRAPH_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Rows of the graphs; a step with more runs without."""
MAX_GRAPH_SLOTS = 32_768
"""Longest row of a graph: 32 rows of it take 4 MiB of indices."""
NO_SLOT = -1
"""Where padding writes: nowhere."""
_log = logging.getLogger(__name__)

Capture = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], None]]]
"""Runs work once or more; gives its result, and what runs it again into the same result."""


class GraphPlan(AttentionPlan, Protocol):
    """An attention plan whose launches and addresses stay."""

    def update(self, rows: Sequence[QueryRow]) -> None:
        """Read for `rows` from now on, in the order of the stream. Changes: the plan."""
        ...


class GraphAttention(Protocol):
    """Attention that can be captured."""

    def decode_plan(
        self,
        kv: KvTensors,
        capacity: Any,  # noqa: ANN401 - anything with both counts
        num_heads: int,
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> GraphPlan:
        """A plan of `num_heads` query heads, of rows with one query each.

        `capacity` has `num_rows` and `num_slots`, the tokens that each sees at most; the rest
        is as `AttentionBackend.plan` says.
        """
        ...

    def writer(self, kv: KvTensors, slots: Any) -> KvWriter:  # noqa: ANN401 - or a tensor
        """A writer to slots int64 [T] on the device, read anew at each write; -1: nowhere."""
        ...


@dataclass(frozen=True, slots=True)
class GraphCapacity:
    """Room of a graph: rows of one query, and the tokens that each sees."""

    num_rows: int
    num_slots: int


def size_for(num_rows: int, sizes: Sequence[int] = GRAPH_SIZES) -> int | None:
    """The least of `sizes`, which ascend, that holds so many rows; None if none does. Pure."""
    return next((size for size in sizes if size >= num_rows), None)


def is_decode(plan: ForwardPlan) -> bool:
    """Whether every row computes one token, draws one, and asks for nothing else. Pure."""
    return bool(plan.rows) and all(
        len(row.token_ids) == 1
        and row.sampling is not None
        and row.logprobs_from is None
        and not (row.features or row.rivals or row.two_way)
        for row in plan.rows
    )


class DecodeGraphs:
    """The graphs of one runner, by number of rows.

    Args:
        decoder: whose steps they are.
        attention: that can be captured.
        kv: the store.
        max_slots: longest row.
        capture: how work is captured; None: as a CUDA graph.
        sizes: rows of the graphs, ascending.
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: GraphAttention,
        kv: KvTensors,
        max_slots: int,
        capture: Capture | None = None,
        sizes: Sequence[int] = GRAPH_SIZES,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._kv = kv
        self._max_slots = min(max_slots, MAX_GRAPH_SLOTS)
        self._capture = capture or CudaCapture()
        self._sizes = tuple(sizes)
        self._graphs: dict[int, _Graph] = {}
        self.failure: str | None = None
        """Why nothing is captured any more, if so."""

    def takes(self, plan: ForwardPlan) -> bool:
        """Whether the plan can be run by a graph. Pure."""
        return (
            self.failure is None
            and size_for(len(plan.rows), self._sizes) is not None
            and is_decode(plan)
            and max(len(row.slots) for row in plan.rows) <= self._max_slots
        )

    def prepare(self, max_rows: int) -> None:
        """Capture every graph up to so many rows. Changes: the graphs."""
        for size in reversed([size for size in self._sizes if size <= max_rows]):
            if self._graph(size) is None:
                return

    def logits(
        self, plan: ForwardPlan, staging: Staging, drawn: Tensor | None = None
    ) -> Tensor | None:
        """Logits [R, V] of a plan that they take; None if it could not be captured.

        `drawn` int64 [R] are the rows' tokens, where the plan does not know them.

        The next step overwrites them. Changes: the KV store.
        """
        size = size_for(len(plan.rows), self._sizes)
        graph = None if size is None else self._graph(size)
        if graph is None:
            return None
        num_axes = 3 if self._decoder.shape.has_grid_positions else 1
        (staged,) = staging.put([decode_inputs(plan, num_axes)])
        rows = [QueryRow(1, row.slots) for row in plan.rows]
        return graph.run(rows, staged, drawn)

    def _graph(self, size: int) -> _Graph | None:
        """Changes: the graphs, or `failure`."""
        graph = self._graphs.get(size)
        if graph is None and self.failure is None:
            try:
                graph = _Graph(
                    self._decoder,
                    self._attention,
                    self._kv,
                    GraphCapacity(size, self._max_slots),
                    self._capture,
                )
            except Exception as error:  # noqa: BLE001 - whatever a kernel raises under capture
                self.failure = f"decode steps are not captured: {error}"
                _log.warning("%s", self.failure)
                return None
            self._graphs[size] = graph
        return graph


class _Graph:
    """A captured decode step, and the `models.Attention` that it is captured with."""

    def __init__(
        self,
        decoder: Decoder,
        attention: GraphAttention,
        kv: KvTensors,
        capacity: GraphCapacity,
        capture: Capture,
    ) -> None:
        shape = decoder.shape
        self._decoder = decoder
        self._size = size = capacity.num_rows
        self._has_grid = shape.has_grid_positions
        num_axes = 3 if self._has_grid else 1
        device = kv.keys.device
        self._inputs = torch.from_numpy(padding(num_axes, size)).to(device)
        self._keep = torch.arange(size, device=device)
        self._writer = attention.writer(kv, self._inputs[1])
        self._windows = shape.windows
        self._plans = {
            window: attention.decode_plan(
                kv, capacity, decoder.config.num_heads, window=window, softcap=shape.softcap
            )
            for window in set(shape.windows)
        }
        self._num_used = size
        self._logits, self._replay = capture(self._step)

    def run(self, rows: Sequence[QueryRow], staged: Tensor, drawn: Tensor | None) -> Tensor:
        """Logits [R, V] of R rows. Changes: the KV store, the inputs."""
        num = len(rows)
        if num < self._num_used:
            self._inputs[:, num:] = 0
            self._inputs[1, num:] = NO_SLOT
        self._num_used = num
        self._inputs[:, :num] = staged
        if drawn is not None:
            self._inputs[0, :num] = drawn
        for plan in self._plans.values():
            plan.update(rows)
        self._replay()
        return self._logits[:num]

    def _step(self) -> Tensor:
        """[size, V] logits of the inputs. Changes: the KV store."""
        positions = self._inputs[2:] if self._has_grid else self._inputs[2]
        hidden = self._decoder.embed(self._inputs[0])
        outputs = self._decoder.forward(hidden, positions, self, self._keep)
        return self._decoder.logits(outputs)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """See `models.Attention`. Changes: the KV store."""
        self._writer.write(layer, keys, values)

    def turn_and_write(self, layer: int, fused: Tensor, turn: Turn | None) -> Tensor:
        """See `models.Attention`. Changes: the KV store."""
        return self._writer.turn_and_write(layer, fused, turn)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """See `models.Attention`. Pure."""
        return self._plans[self._windows[layer]].attend(layer, queries)

    def attend_kept(self, layer: int, queries: Tensor) -> Tensor:
        """See `models.Attention`: every token is kept. Pure."""
        return self.attend(layer, queries)


def decode_inputs(plan: ForwardPlan, num_axes: int) -> NDArray[np.int64]:
    """int64 [2 + num_axes, R] of R rows with one token: ids, slots, positions. Pure."""
    inputs = np.empty((2 + num_axes, len(plan.rows)), dtype=np.int64)
    for place, row in enumerate(plan.rows):
        inputs[0, place] = row.token_ids[0]
        inputs[1, place] = row.slots[-1]
        inputs[2:, place] = row.start if row.positions is None else row.positions[:, 0]
    return inputs


def padding(num_axes: int, size: int) -> NDArray[np.int64]:
    """int64 [2 + num_axes, size] inputs of rows that are nobody's. Pure."""
    inputs = np.zeros((2 + num_axes, size), dtype=np.int64)
    inputs[1] = NO_SLOT
    return inputs


class CudaCapture:
    """Captures work as CUDA graphs that share one pool, since one runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """See `Capture`. Runs the work twice before: kernels compile at their first run."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work()
        self._pool = graph.pool()
        return result, graph.replay

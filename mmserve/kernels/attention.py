"""The port that attention backends implement, and its values.

    rows --plan()--> AttentionPlan --attend(layer, queries)--> outputs

A plan is made once a step and used by every layer; at each layer all rows write their KV before
any attends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["AttentionBackend", "AttentionPlan", "KvTensors", "QueryRow"]


@dataclass(frozen=True, slots=True, eq=False)
class QueryRow:
    """Queries of one sequence: the last `num_queries` of the tokens whose KV lies in `slots`.

    Args:
        num_queries: queries at positions [n - num_queries, n).
        slots: int64 [n], KV slot of every token from 0 on.
        two_way: [start, end) of positions whose tokens see each other both ways; a window
            bounds how far back they see, not how far ahead.
    """

    num_queries: int
    slots: NDArray[np.int64]
    two_way: tuple[tuple[int, int], ...] = ()

    @property
    def start(self) -> int:
        """Position of the first query."""
        return len(self.slots) - self.num_queries


@dataclass(frozen=True, slots=True, eq=False)
class KvTensors:
    """Keys and values of every layer, [layers, G, N, D] each; a run of a head is a matrix."""

    keys: Tensor
    values: Tensor


class AttentionPlan(Protocol):
    """How the queries of one step read the store; made once, used by every layer."""

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """Causal attention of [T, H, D] queries, rows in the plan's order, scaled by D ** -0.5.

        Returns:
            [T, H, D]. Pure.
        """
        ...


class AttentionBackend(Protocol):
    """A way to do paged attention on one device."""

    def plan(
        self,
        kv: KvTensors,
        rows: Sequence[QueryRow],
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> AttentionPlan:
        """Decide how `rows` read `kv`.

        Args:
            kv: the store; the plan keeps views of it, so later writes are seen.
            rows: ragged queries of the step.
            window: a query sees at most this many tokens, itself included, beside those of its
                two-way range; None for all.
            softcap: scores are bent to stay within it (`softcap * tanh(score / softcap)`).

        Pure. Cost: O(slots of all rows) on the host.
        """
        ...

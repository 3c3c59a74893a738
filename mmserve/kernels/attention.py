"""The port that attention backends implement, and its values.

    slots --writer()-> KvWriter --turn_and_write(layer, fused)-> queries
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

__all__ = ["AttentionBackend", "AttentionPlan", "KvTensors", "KvWriter", "QueryRow", "Turn"]

Turn = tuple[Tensor, Tensor]
"""Cosines and sines of a step's positions, [T, C] each; C pairs of a head turn."""


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
    """Keys and values of every layer, [layers, G, N, D] each.

    Strides follow the device: on a CPU the slots of a head lie together, so that a run of them
    is a matrix; on a GPU the heads of a slot do.
    """

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


class KvWriter(Protocol):
    """Where one step's KV goes; made once, used by every layer."""

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store [T, G, D] keys and values of `layer`. Changes: the store."""
        ...

    def turn_and_write(self, layer: int, fused: Tensor, turn: Turn | None) -> Tensor:
        """Turn queries and keys by their positions and store keys and values of `layer`.

        Args:
            layer: whose KV it is.
            fused: [T, H + 2 G, D] queries, keys and values. Changes: may be overwritten.
            turn: cosines and sines [T, C] of the dtype of `fused`; the first and second half of
                a head's first 2 C dimensions are the pairs' partners, the others stay. None:
                nothing turns.

        Returns:
            [T, H, D] queries, perhaps a view of `fused`. Changes: the store.
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
            window: a query sees at most this many tokens, itself included, and what comes after
                it in its two-way range; None for all.
            softcap: scores are bent to stay within it (`softcap * tanh(score / softcap)`).

        Pure. Cost: O(slots of all rows) on the host.
        """
        ...

    def writer(self, kv: KvTensors, slots: NDArray[np.int64]) -> KvWriter:
        """What writes the new tokens' KV of a step to `slots`, int64 [T]. Pure."""
        ...

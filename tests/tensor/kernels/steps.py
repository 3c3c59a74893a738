"""Rows of steps for tests of attention, drawn at random: answers, short extends, prompts."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np

from mmserve.kernels import QueryRow

__all__ = ["NUM_SLOTS", "Step", "steps"]

NUM_SLOTS = 1600


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Rows of one step, and the window of its layers."""

    rows: list[QueryRow]
    window: int | None


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Rows that branch off from each other at random places, slots in runs or scattered.

    Most rows are of few queries and some of many; pages of 1, 4 or 64 tokens lie anywhere.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    page = draw(st.sampled_from([1, 4, 64, NUM_SLOTS]))
    free = rng.permutation(np.arange(NUM_SLOTS).reshape(-1, page)).reshape(-1)
    most_new = draw(st.sampled_from([20, 150]))
    rows: list[QueryRow] = []
    taken = 0
    for _ in range(rng.integers(1, 30 if most_new == 20 else 8)):
        parent = (
            rows[rng.integers(len(rows))].slots if rows and rng.random() < 0.8 else free[:0]
        )
        kept = parent[: rng.integers(len(parent) + 1)] if rng.random() < 0.5 else parent[:-1]
        num_new = int(rng.integers(1, most_new))
        num_queries = int(rng.choice([1, 1, 2, 5, 12, num_new]))
        slots = np.concatenate([kept, free[taken : taken + num_new]])
        taken += num_new
        rows.append(QueryRow(min(num_queries, num_new), slots))
    return Step(rows, draw(st.sampled_from([None, None, 8, 50])))

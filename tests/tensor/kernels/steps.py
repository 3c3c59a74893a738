"""Rows of steps for tests of attention, drawn at random: answers, short extends, prompts."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
import pytest

from mmserve.kernels import QueryRow

__all__ = ["NUM_SLOTS", "Step", "narrowed", "steps"]

NUM_SLOTS = 1600


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Rows of one step. `limits` narrow the planner, so that small steps meet all its ways."""

    rows: list[QueryRow]
    window: int | None
    limits: dict[str, int]


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
    limits = {
        "segments.MIN_RUN": draw(st.sampled_from([8, 2048])),
        "segments.MAX_SHORT": draw(st.sampled_from([3, 64])),
        "segments.MAX_PAIRS": draw(st.sampled_from([50, 1 << 16])),
        "loose.TABLE_COST": draw(st.sampled_from([0, 100, 1500])),
        "attention_torch.MAX_GATHERED": draw(st.sampled_from([1, 4000, 1 << 19])),
    }
    return Step(rows, draw(st.sampled_from([None, None, 8, 50])), limits)


def narrowed(patch: pytest.MonkeyPatch, step: Step) -> None:
    """Let the planner have the step's limits. Changes: the modules, until `patch` ends."""
    for name, value in step.limits.items():
        patch.setattr(f"mmserve.kernels.{name}", value)

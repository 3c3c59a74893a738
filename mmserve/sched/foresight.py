"""The step after the one that is out, guessed while that one runs.

A device that is told of the next step early need not wait for the host. The guess changes no
book: the real step is planned as ever, once the tokens are known, and what was begun early is
used if it is the same work.

    step k      out .................... back
    step k + 1        foreseen, begun ........ planned -> the one begun? draw, or begin anew
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mmserve.core import UNDRAWN, ForwardPlan, PlanRow
from mmserve.sched.choice import row_sampling
from mmserve.sched.ledgers import Ledgers
from mmserve.sched.sequence import Sequence
from mmserve.sched.step import PlannedRow

__all__ = ["foreseen_plan", "is_foreseen"]


def foreseen_plan(
    step: int, running: Iterable[Sequence], rows: Iterable[PlannedRow], ledgers: Ledgers
) -> ForwardPlan | None:
    """The next token of every row of the step that is out; None if something else may come.

    Args:
        step: number of the step foreseen.
        running: sequences that run, in the order in which they are placed.
        rows: of the step that is out; those of all that run are among them.
        ledgers: tell which slots come next.

    Pure. Answers that end with the token now drawn are left out where that is known.
    """
    draws = {row.sequence.sequence_id for row in rows if row.is_last and row.row.sampling}
    jumps = ledgers.config.jump_forward
    staying = []
    for sequence in running:
        is_jumping = jumps and sequence.spec.matcher is not None
        if sequence.sequence_id not in draws or sequence.ending is not None or is_jumping:
            return None
        if sequence.num_output + 1 < sequence.max_new:
            staying.append(sequence)
    slots = ledgers.memory.next_slots(staying)
    if not slots:
        return None
    pairs = zip(staying, slots, strict=True)
    return ForwardPlan(step=step, rows=tuple(_next_row(*pair) for pair in pairs))


def _next_row(sequence: Sequence, slot: int) -> PlanRow:
    """The row that computes the token now drawn. Pure."""
    start = sequence.slots.size
    return PlanRow(
        sequence_id=sequence.sequence_id,
        start=start,
        token_ids=np.array([UNDRAWN], dtype=np.int64),
        slots=np.append(sequence.slots.view(0, start), slot),
        sampling=row_sampling(sequence),
        positions=sequence.positions(start, start + 1),
    )


def is_foreseen(foreseen: ForwardPlan, plan: ForwardPlan) -> bool:
    """Whether the rows of `plan` are among those foreseen, and it wants nothing else. Pure."""
    known = {row.sequence_id: row for row in foreseen.rows}
    is_same = all(_is_same(known.get(row.sequence_id), row) for row in plan.rows)
    return is_same and not plan.encode


def _is_same(foreseen: PlanRow | None, row: PlanRow) -> bool:
    is_plain = row.sampling is not None and row.logprobs_from is None and not row.rivals
    return (
        foreseen is not None
        and is_plain
        and len(row.token_ids) == 1
        and row.start == foreseen.start
        and not row.features
        and bool(np.array_equal(row.slots, foreseen.slots))
    )

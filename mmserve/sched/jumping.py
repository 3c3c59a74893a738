"""Text that a grammar forces is appended at once: one step instead of one for each token.

known      [ prompt | {" name ":" Har ry ]                       computed up to ry
jump       the last 2 tokens give way to   Harry "," house
known      [ prompt | {" name ":" Harry "," house ]
KV         [ kept .................. ]  the next step computes 3 tokens and draws the 4th
"""

from __future__ import annotations

import numpy as np

from mmserve.core import Finish, Jump
from mmserve.sched.memory import KvMemory
from mmserve.sched.sequence import Sequence

__all__ = ["jump_ahead", "open_answer"]


def open_answer(sequence: Sequence) -> None:
    """Put what is certain behind the prompt, before the first step; perhaps that is nothing.

    Raises ConstraintRefused: the grammar became too complex. Changes: the sequence's tokens,
    its matcher, perhaps its ending.
    """
    sequence.opening = _take(sequence, _find(sequence))
    matcher = sequence.spec.matcher
    if sequence.opening is None and matcher is not None and matcher.is_finished:
        sequence.ending = Finish("stop")


def jump_ahead(sequence: Sequence, memory: KvMemory) -> Jump | None:
    """Append what is certain after the answer so far; what was appended.

    Args:
        sequence: under a grammar, all of its tokens but the last one computed.
        memory: where it keeps its KV.

    Raises ConstraintRefused: the grammar became too complex. Changes: the sequence's tokens and
    matcher, perhaps its ending; KV of tokens that are replaced is let go of.
    """
    jump = _find(sequence)
    if jump is not None and jump.num_replaced:
        num_kept = sequence.known - jump.num_replaced
        # The score of the first new token is that of the token before it, computed once more.
        memory.cut(sequence, num_kept - sequence.spec.sampling.return_logprobs)
    return _take(sequence, jump)


def _find(sequence: Sequence) -> Jump | None:
    """A jump within the answer's limit, and not over a token that may end it. Pure."""
    matcher = sequence.spec.matcher
    if matcher is None or sequence.max_new == 0:
        return None
    settled = sequence.num_settled
    jump = matcher.jump(settled)
    if jump is None:
        return None
    most = sequence.max_new - sequence.num_output + jump.num_replaced
    for place, token_id in enumerate(jump.token_ids[:most]):
        if token_id in sequence.end_ids:
            most = place
            break
    return jump if most >= len(jump.token_ids) else matcher.jump(settled, most)


def _take(sequence: Sequence, jump: Jump | None) -> Jump | None:
    matcher = sequence.spec.matcher
    if jump is None or matcher is None:
        return None
    matcher.rollback(jump.num_replaced)
    for token_id in jump.token_ids:
        matcher.accept(token_id)
    first = sequence.known - jump.num_replaced
    new = np.array(jump.token_ids, dtype=np.int64)
    for array in (sequence.tokens, sequence.keys):
        array.cut(first)
        array.extend(new)
    sequence.num_settled = sequence.num_output
    sequence.num_forced += max(0, len(new) - jump.num_replaced)
    if sequence.spec.sampling.return_logprobs:
        if sequence.next_score >= sequence.score_stop:
            sequence.next_score = first
        sequence.score_stop = sequence.known
    if jump.is_end:
        sequence.ending = Finish("stop")
    elif sequence.num_output >= sequence.max_new:
        sequence.ending = Finish("length")
    return jump

"""What a step's result does to its sequences."""

from __future__ import annotations

from dataclasses import replace

from mmserve.core import (
    Broken,
    Finish,
    ForwardPlan,
    MmserveError,
    RunnerFailed,
    SampledRow,
    SampledTokens,
)
from mmserve.sched.choice import accept_token, matcher_error
from mmserve.sched.jumping import jump_ahead
from mmserve.sched.roster import Roster
from mmserve.sched.sequence import Sequence
from mmserve.sched.step import PlannedRow
from mmserve.sched.updates import Growth, SequenceUpdate

__all__ = ["take_failure", "take_results"]


def take_results(
    roster: Roster, plan: ForwardPlan, rows: tuple[PlannedRow, ...], sampled: SampledTokens
) -> tuple[SequenceUpdate, ...]:
    """News of a step that ran: rows that failed alone first, so that nobody builds on them.

    Changes: sequences, tree, slots, pins, totals.
    """
    pairs = list(zip(rows, sampled.rows, strict=True))
    roster.desk.encoded(plan.encode)
    roster.totals.encoded_items += len(plan.encode)
    encoded = {item.digest for item in plan.encode}
    failed = [
        (planned, _our_error(result.error, plan.step))
        for planned, result in pairs
        if result.error is not None
    ]
    updates = _fail_rows(roster, failed)
    for planned, result in pairs:
        if result.error is None:
            _note_work(roster, planned, sampled, encoded)
            updates.append(_commit_row(roster, planned, result))
    return tuple(update for update in updates if update is not None)


def take_failure(
    roster: Roster, plan: ForwardPlan, rows: tuple[PlannedRow, ...], error: Exception
) -> tuple[SequenceUpdate, ...]:
    """News of a step that failed as a whole: all its sequences end.

    Changes: undoes what planning put into tree, pool and ledgers, last row first.
    """
    ours = _our_error(error, plan.step)
    updates = _fail_rows(roster, [(planned, ours) for planned in rows])
    roster.desk.not_encoded(plan.encode, plan.drop)
    return tuple(update for update in updates if update is not None)


def _commit_row(
    roster: Roster, planned: PlannedRow, result: SampledRow
) -> SequenceUpdate | None:
    sequence, row = planned.sequence, planned.row
    roster.memory.commit(sequence)
    if sequence.is_ended:
        roster.memory.release(sequence)
        return None
    roster.desk.settle(sequence)
    scores = tuple(
        score
        for score in result.prompt_logprobs
        if sequence.next_score <= score[0] < sequence.score_stop
    )
    if row.logprobs_from is not None:
        num_reported = sequence.computed + (row.next_id is not None)
        sequence.next_score = max(sequence.next_score, num_reported)
    growth = Growth(scores, result.rival_logprobs, _opening(roster, sequence))
    if sequence.ending is not None:
        return _towards_end(roster, sequence, growth)
    if not planned.is_last:
        return roster.news(sequence, growth) if growth.is_news else None
    finish = _take_token(roster, sequence, result)
    if result.token_id is not None:
        growth = replace(growth, token=(result.token_id, result.logprob, result.top))
    if finish is None:
        return _jump(roster, sequence, growth)
    return roster.end(sequence, finish, growth)


def _opening(roster: Roster, sequence: Sequence) -> tuple[int, ...]:
    """Tokens that were certain from the start, to be told once the prompt is computed."""
    opening = sequence.opening
    if opening is None or sequence.computed < sequence.num_prompt:
        return ()
    sequence.opening = None
    roster.note_jump(sequence, opening)
    return opening.token_ids


def _take_token(roster: Roster, sequence: Sequence, result: SampledRow) -> Finish | None:
    if sequence.max_new == 0:
        return Finish("length")
    if result.token_id is None:
        return Finish("error", error=Broken("a row that was to draw a token drew none"))
    roster.totals.generated_tokens += 1
    try:
        return accept_token(sequence, result.token_id)
    except BaseException as error:  # noqa: BLE001  (a panic in Rust is no Exception)
        return Finish("error", error=matcher_error(error))


def _jump(roster: Roster, sequence: Sequence, growth: Growth) -> SequenceUpdate:
    """Append what is certain to come after the drawn token; the news with both."""
    try:
        jump = jump_ahead(sequence, roster.memory)
    except BaseException as error:  # noqa: BLE001  (as above)
        return roster.end(sequence, Finish("error", error=matcher_error(error)), growth)
    if jump is None:
        return roster.news(sequence, growth)
    roster.note_jump(sequence, jump)
    growth = replace(growth, jump=jump)
    is_scored = sequence.spec.sampling.return_logprobs
    if sequence.ending is not None and roster.jump_forward and not is_scored:
        return roster.end(sequence, sequence.ending, growth)
    return roster.news(sequence, growth)


def _towards_end(roster: Roster, sequence: Sequence, growth: Growth) -> SequenceUpdate | None:
    """News of an answer whose tokens are all known; it ends when the last is all that lacks."""
    if sequence.ending is not None and sequence.missing <= 1:
        return roster.end(sequence, sequence.ending, growth)
    return roster.news(sequence, growth) if growth.is_news else None


def _fail_rows(
    roster: Roster, failed: list[tuple[PlannedRow, MmserveError]]
) -> list[SequenceUpdate | None]:
    """End sequences whose rows gave nothing: all are undone before any lets go of its slots.

    So nobody's release keeps tokens that a failed row was to write.
    """
    undone = [
        (planned.pending, roster.memory.undo(planned.sequence, planned.pending))
        for planned, _ in reversed(failed)
    ]
    updates = [
        roster.end_landed(planned.sequence, Finish("error", error=error))
        for planned, error in failed
    ]
    for pending, above in undone:
        if pending is not None and above is not None:
            roster.memory.discard(pending, above)
    return updates


def _note_work(
    roster: Roster, planned: PlannedRow, sampled: SampledTokens, encoded: set[bytes]
) -> None:
    sequence, row, totals = planned.sequence, planned.row, roster.totals
    num_tokens = len(row.token_ids)
    num_prompt = max(0, min(sequence.num_prompt - row.start, num_tokens))
    totals.tokens_computed += num_tokens
    totals.prompt_tokens_computed += num_prompt
    if num_prompt:
        sequence.prefill_ms += sampled.forward_ms
    if any(use.digest in encoded for use in row.features):
        sequence.encode_ms += sampled.encode_ms


def _our_error(error: Exception, step: int) -> MmserveError:
    if isinstance(error, MmserveError):
        return error
    return RunnerFailed(f"step {step} failed: {error}", step=step)

"""The next token of a row: what its choice depends on, and whether it ends the answer."""

from __future__ import annotations

import logging
from dataclasses import replace

from mmserve.core import Broken, Finish, MmserveError, RowSampling
from mmserve.sched.sequence import Sequence

__all__ = ["accept_token", "matcher_error", "row_sampling"]

_log = logging.getLogger(__name__)


def row_sampling(sequence: Sequence) -> RowSampling | None:
    """How to draw the token after the last known one; None if none is wanted. Pure.

    The mask of a grammar comes later, from the plan's `masks`.
    """
    if sequence.ending is not None:
        return None
    params = sequence.spec.sampling
    is_scoring = sequence.max_new == 0
    if is_scoring:
        if not params.return_logprobs:
            return None
        params = replace(params, temperature=0.0)
    num_prompt, known = sequence.num_prompt, sequence.known
    needs_prompt = params.repetition_penalty != 1
    too_early = not is_scoring and sequence.num_output < params.min_new_tokens
    return RowSampling(
        params=params,
        seed=sequence.spec.seed,
        position=sequence.num_drawn,
        output_ids=sequence.tokens.view(num_prompt, known),
        prompt_ids=sequence.tokens.view(0, num_prompt) if needs_prompt else None,
        banned_ids=sequence.end_ids if too_early else (),
    )


def accept_token(sequence: Sequence, token_id: int) -> Finish | None:
    """Append a drawn token; the end it brings, if it does.

    Raises:
        Broken: the grammar did not allow the token.

    Changes: the sequence's tokens, its matcher.
    """
    params, matcher = sequence.spec.sampling, sequence.spec.matcher
    sequence.tokens.append(token_id)
    sequence.keys.append(token_id)
    sequence.num_drawn += 1
    if token_id in sequence.end_ids and sequence.num_output >= params.min_new_tokens:
        return Finish("stop", matched=token_id)
    if matcher is not None:
        matcher.accept(token_id)
        if matcher.is_finished:
            return Finish("stop")
    if sequence.num_output >= sequence.max_new:
        return Finish("length")
    return None


def matcher_error(error: BaseException) -> MmserveError:
    """What an answer ends with whose matcher failed: one row must never end its step.

    An error that is not ours is logged, and stands behind a Broken.
    """
    if isinstance(error, MmserveError):
        return error
    _log.error("a matcher failed", exc_info=error)
    broken = Broken("the grammar of the answer failed", hint="see the log")
    broken.__cause__ = error
    return broken

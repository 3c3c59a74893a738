"""From log-probabilities of options to an answer.

An option's probability is that of its tokens behind the prompt. Where it is the beginning of
another option, what belongs to the longer one is not its own:

    1 ---- 10        P(1, and no more) = P(1) - P(10)

All are then scaled to sum up to one: the answer is known to be one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mmserve.server.systemone.questions import Question

__all__ = ["answer_of", "probabilities"]


def probabilities(
    logprobs: Sequence[float], token_ids: Sequence[tuple[int, ...]]
) -> list[float]:
    """The probability of each option, given that one of them answers; they sum up to one.

    Args:
        logprobs: of all tokens of each option, behind the prompt.
        token_ids: of each option.

    Pure. Cost: O(all tokens).
    """
    most = max(logprobs)
    if most == -math.inf:
        return [1 / len(logprobs)] * len(logprobs)
    own = [math.exp(logprob - most) for logprob in logprobs]
    shares = list(own)
    places = {ids: place for place, ids in reversed(list(enumerate(token_ids)))}
    for place, ids in enumerate(token_ids):
        first = places[ids]
        if first != place:
            shares[place] = 0.0  # other letters, same tokens: the first one has it all
            continue
        shorter = next((ids[:n] for n in range(len(ids) - 1, 0, -1) if ids[:n] in places), None)
        if shorter is not None:
            shares[places[shorter]] -= own[place]
    shares = [max(0.0, share) for share in shares]
    total = sum(shares)
    return [share / total for share in shares]


def answer_of(question: Question, shares: Sequence[float]) -> dict[str, Any]:
    """What is told of a question whose options have these probabilities. Pure."""
    by_name: dict[str, float] = {}
    for option, share in zip(question.options, shares, strict=True):
        by_name[option.name] = by_name.get(option.name, 0.0) + share
    best = max(by_name, key=by_name.__getitem__)
    told: dict[str, Any] = {
        "id": question.question_id,
        "type": question.kind,
        "answer": question.answer(best),
        "probabilities": by_name,
    }
    values = [option.value for option in question.options if option.value is not None]
    if values:
        told["expected"] = sum(v * p for v, p in zip(values, shares, strict=True))
    return told

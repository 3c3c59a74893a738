"""Log-probabilities of prompt tokens that are already known."""

from __future__ import annotations

import torch
from torch import Tensor

from mmserve.core import PlanRow
from mmserve.kernels import top_of
from mmserve.models import Decoder

__all__ = ["Score", "score_prompt"]

Score = tuple[int, float, tuple[tuple[int, float], ...]]
_MAX_ROWS = 64
"""Rows of logits held at once."""


def score_prompt(row: PlanRow, hidden: Tensor, decoder: Decoder) -> tuple[Score, ...]:
    """(position, log-probability, top) of the row's known tokens from `logprobs_from` on.

    Args:
        row: with `logprobs_from` set.
        hidden: [n, E] outputs of the row's last n tokens.
        decoder: gives logits.

    Media positions are left out. Pure.
    """
    end = row.start + len(row.token_ids)
    known = _known(row)
    positions = [k for k in sorted(known) if k > end - len(hidden)]
    num_top = row.num_prompt_top
    if not num_top and row.sampling is not None:
        num_top = row.sampling.params.top_logprobs
    scores: list[Score] = []
    for first in range(0, len(positions), _MAX_ROWS):
        some = positions[first : first + _MAX_ROWS]
        places = torch.tensor([k - 1 - end + len(hidden) for k in some], device=hidden.device)
        logprobs = torch.log_softmax(decoder.logits(hidden[places]), dim=1)
        ids = torch.tensor([known[k] for k in some], device=hidden.device)
        values = logprobs.gather(1, ids[:, None]).squeeze(1).tolist()
        for k, value, line in zip(some, values, logprobs, strict=True):
            scores.append((k, value, top_of(line, num_top)))
    return tuple(scores)


def _known(row: PlanRow) -> dict[int, int]:
    """Token ids by position, for the text positions the row is asked to score."""
    if row.logprobs_from is None:
        return {}
    first = max(row.logprobs_from, row.start + 1)
    known = {
        row.start + i: int(token_id)
        for i, token_id in enumerate(row.token_ids)
        if row.start + i >= first
    }
    for use in row.features:
        begin = row.start + use.row_start
        for position in range(begin, begin + use.num_tokens):
            known.pop(position, None)
    end = row.start + len(row.token_ids)
    if row.next_id is not None and end >= first:
        known[end] = row.next_id
    return known

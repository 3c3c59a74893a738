"""Log-probabilities of prompt tokens that are already known, and of others in their place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmserve.core import PlanRow
from mmserve.kernels import top_of
from mmserve.models import LanguageModel

__all__ = ["RivalScore", "Score", "Scores", "score_prompt"]

Top = tuple[tuple[int, float], ...]
Score = tuple[int, float, Top]
RivalScore = tuple[int, int, float, Top]
_MAX_ROWS = 64
"""Rows of logits held at once."""


@dataclass(frozen=True, slots=True)
class Scores:
    """(position, log-probability, top) of known tokens; the same of rivals, with their ids."""

    known: tuple[Score, ...] = ()
    rivals: tuple[RivalScore, ...] = ()


def score_prompt(row: PlanRow, hidden: Tensor, decoder: LanguageModel) -> Scores:
    """Scores of the row's known tokens from `logprobs_from` on, and of its rivals.

    Args:
        row: which asks for some.
        hidden: [n, E] outputs of the row's last n tokens.
        decoder: gives logits.

    Media positions are left out. Pure.
    """
    end = row.start + len(row.token_ids)
    known, rivals = _known(row), _rivals(row)
    positions = [k for k in sorted(known.keys() | rivals.keys()) if k > end - len(hidden)]
    num_top = row.num_prompt_top
    if not num_top and row.sampling is not None:
        num_top = row.sampling.params.top_logprobs
    scores: list[Score] = []
    others: list[RivalScore] = []
    for first in range(0, len(positions), _MAX_ROWS):
        some = positions[first : first + _MAX_ROWS]
        places = torch.tensor([k - 1 - end + len(hidden) for k in some], device=hidden.device)
        logprobs = torch.log_softmax(decoder.logits(hidden[places]), dim=1)
        ids = torch.tensor([known.get(k, 0) for k in some], device=hidden.device)
        values = logprobs.gather(1, ids[:, None]).squeeze(1).tolist()
        for k, value, line in zip(some, values, logprobs, strict=True):
            top = top_of(line, num_top)
            if k in known:
                scores.append((k, value, top))
            if k in rivals:
                found = line[rivals[k]].tolist()
                others += [(k, *pair, top) for pair in zip(rivals[k], found, strict=True)]
    return Scores(tuple(scores), tuple(others))


def _rivals(row: PlanRow) -> dict[int, list[int]]:
    """Ids of rivals by position."""
    ids: dict[int, list[int]] = {}
    for position, token_id in row.rivals:
        ids.setdefault(position, []).append(token_id)
    return ids


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

"""Positions in time, rows and columns, for models that turn keys by all three.

    text      a  b            c  d        a picture of 2 rows and 3 columns begins where the
    time      0  1  2 2 2 2 2 2  5  6     text stands; the text goes on behind its longer side
    row       0  1  2 2 2 3 3 3  5  6
    column    0  1  2 3 4 2 3 4  5  6

A clip may reach further in time than its rows and columns do; text behind it still goes on
behind the longer side. An answer goes on as text, so that the same tokens in a later prompt
stand where they stood when they were generated.

Source: Qwen2-VL (2024), section 2.1; clips and answers as transformers 5 places them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mmserve.core import GridPlace, MediaSpan, Prompt

__all__ = ["grid_positions", "longer", "placed", "shorter"]


def grid_positions(
    num_tokens: int, spans: Sequence[MediaSpan]
) -> tuple[NDArray[np.int64], int]:
    """int64 [3, n] of a prompt with these spans, and where text or an answer goes on. Pure.

    A clip's later items begin where its first one did, later in time.
    """
    positions = np.empty((3, num_tokens), dtype=np.int64)
    done = following = origin = 0
    for span in spans:
        if span.grid is None:
            continue
        num_text = span.start - done
        positions[:, done : span.start] = following + np.arange(num_text)
        following += num_text
        if span.grid.is_first:
            origin = following
        positions[:, span.start : span.end] = origin + _of_item(span.grid)
        following = max(following, origin + max(span.grid.rows, span.grid.columns))
        done = span.end
    num_text = num_tokens - done
    positions[:, done:] = following + np.arange(num_text)
    return positions, following + num_text


def placed(prompt: Prompt) -> Prompt:
    """The prompt with positions in time, rows and columns. Pure."""
    positions, following = grid_positions(prompt.num_tokens, prompt.spans)
    return replace(prompt, positions=positions, next_position=following)


def longer(prompt: Prompt, token_ids: NDArray[np.int64]) -> Prompt:
    """The prompt with text tokens int64 [m] behind it. Pure."""
    ids = np.concatenate([prompt.token_ids, token_ids])
    if prompt.positions is None:
        return replace(prompt, token_ids=ids)
    end = prompt.next_position + len(token_ids)
    more = np.arange(prompt.next_position, end, dtype=np.int64)
    positions = np.concatenate([prompt.positions, np.tile(more, (3, 1))], axis=1)
    return replace(prompt, token_ids=ids, positions=positions, next_position=end)


def shorter(prompt: Prompt, num_tokens: int) -> Prompt:
    """The prompt without its last tokens, which are text. Pure."""
    end = prompt.num_tokens - num_tokens
    if prompt.positions is None:
        return replace(prompt, token_ids=prompt.token_ids[:end])
    return replace(
        prompt,
        token_ids=prompt.token_ids[:end],
        positions=prompt.positions[:, :end],
        next_position=int(prompt.positions[0, end]),
    )


def _of_item(grid: GridPlace) -> NDArray[np.int64]:
    """int64 [3, rows * columns] from its own beginning."""
    rows, columns = np.indices((grid.rows, grid.columns)).reshape(2, -1)
    return np.stack([np.full_like(rows, grid.time), rows, columns])

"""Log-probabilities of tokens as OpenAI's newer surfaces write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmserve.core import TokenLogprob
from mmserve.server.values import finite, piece_text

__all__ = ["token_entries"]


def token_entries(entries: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """An object for each token, with the likeliest of its place; forced ones say so. Pure."""
    return [
        {
            **_token(entry.piece, entry.logprob),
            "top_logprobs": [_token(piece, logprob) for _, logprob, piece in entry.top],
            **({"forced": True} if entry.is_forced else {}),
        }
        for entry in entries
    ]


def _token(piece: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": piece_text(piece), "logprob": finite(logprob), "bytes": list(piece)}

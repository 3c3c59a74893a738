"""How many prompt tokens must be computed if no beginning is computed twice.

A: <s> u s e r [clip 1 ............] w h o ?
B: <s> u s e r [clip 1 ............] w h e n ?
size of the prefix tree = len(A) + len(B) - what B has in common with A
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mmserve.core import PromptLook

__all__ = ["Interner", "common_length", "least_tokens", "prompt_keys"]

Keys = NDArray[np.int64]
_SPAN_BITS = 32


class Interner(dict[str, int]):
    """Numbers of media by identity. Mutable: those seen."""

    def number(self, identity: str) -> int:
        """A number of its own for each identity, from 1. Changes: those seen."""
        return self.setdefault(identity, len(self) + 1)


def prompt_keys(look: PromptLook, media: Interner) -> Keys:
    """One number a token, int64 [n]; equal where the KV is: a span's tell its media and place.

    Changes: `media`.
    """
    keys = np.array(look.token_ids, np.int64)
    for span in look.spans:
        base = media.number(span.identity) << _SPAN_BITS
        place = np.arange(span.num_tokens, dtype=np.int64)
        keys[span.start : span.start + span.num_tokens] = -(base + place)
    return keys


def least_tokens(prompts: Sequence[Keys]) -> int:
    """Nodes of the prefix tree of these prompts. Pure.

    Sorted, a prompt shares most with its neighbour; a sum over neighbours is exact.
    """
    ordered = sorted(prompts, key=lambda keys: keys.tobytes())
    shared = sum(common_length(a, b) for a, b in pairwise(ordered))
    return sum(len(keys) for keys in ordered) - shared


def common_length(a: Keys, b: Keys) -> int:
    """Tokens that two prompts have in common at their beginning. Pure."""
    most = min(len(a), len(b))
    differ = np.flatnonzero(a[:most] != b[:most])
    return int(differ[0]) if len(differ) else most

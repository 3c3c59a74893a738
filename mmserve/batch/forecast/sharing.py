"""How many prompt tokens must be computed if no beginning is computed twice.

A: <s> u s e r [clip 1 ............] w h o ?
B: <s> u s e r [clip 1 ............] w h e n ?
size of the prefix tree = len(A) + len(B) - what B has in common with A
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mmserve.core import PromptLook
from mmserve.core.beginnings import common_length

__all__ = ["Interner", "Keys", "least_tokens", "prompt_keys"]

Keys = tuple[int, ...]
"""One number a token, equal where the KV is."""
_SPAN_BITS = 32


class Interner(dict[str, int]):
    """Numbers of media by identity. Mutable: those seen."""

    def number(self, identity: str) -> int:
        """A number of its own for each identity, from 1. Changes: those seen."""
        return self.setdefault(identity, len(self) + 1)


def prompt_keys(look: PromptLook, media: Interner) -> Keys:
    """The prompt's tokens; those of a span tell its media and the place in it.

    Changes: `media`.
    """
    keys = list(look.token_ids)
    for span in look.spans:
        base = media.number(span.identity) << _SPAN_BITS
        places = range(base, base + span.num_tokens)
        keys[span.start : span.start + span.num_tokens] = [-place for place in places]
    return tuple(keys)


def least_tokens(prompts: Sequence[Keys]) -> int:
    """Nodes of the prefix tree of these prompts. Pure.

    Sorted, a prompt shares most with its neighbour; a sum over neighbours is exact.
    """
    ordered = sorted(prompts)
    shared = sum(common_length(a, b) for a, b in pairwise(ordered))
    return sum(len(keys) for keys in ordered) - shared

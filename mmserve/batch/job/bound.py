"""The least a run had to compute: the tokens of its prompts, each shared beginning once.

    <s> system  | clip A, frame by frame | question 1      [tokens that stand for pictures are
                |                        | question 2       told apart by whose they are]
                | clip B ...
    once a job  | once a group, forgotten when the group is done

Prompts are taken in as they come; the count does not depend on their order.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mmserve.batch.job.route import media_of, medium_id
from mmserve.core import PromptReport, Request, VideoPart
from mmserve.core.beginnings import common_length

__all__ = ["LeastTokens", "TokenTrie", "told_apart"]

_TOKEN_BYTES: Final = 8


@dataclass(slots=True)
class _Edge:
    tokens: tuple[int, ...]
    below: dict[int, _Edge] = field(default_factory=dict)


class TokenTrie:
    """Sequences of tokens, each shared beginning once. Mutable."""

    def __init__(self) -> None:
        self._root = _Edge(())

    def add(self, tokens: tuple[int, ...]) -> int:
        """How many of the first tokens were there. Changes: the trie. Cost: O(tokens)."""
        at, node = 0, self._root
        while at < len(tokens):
            edge = node.below.get(tokens[at])
            if edge is None:
                node.below[tokens[at]] = _Edge(tokens[at:])
                return at
            same = common_length(edge.tokens, tokens[at:])
            at += same
            if same < len(edge.tokens):
                _split(edge, same)
            node = edge
        return at


def _split(edge: _Edge, at: int) -> None:
    rest = _Edge(edge.tokens[at:], edge.below)
    edge.tokens, edge.below = edge.tokens[:at], {rest.tokens[0]: rest}


class LeastTokens:
    """Counts the least tokens a run could compute. Mutable.

    A prompt that was there already counts 1: logits of its last token are computed again.
    """

    def __init__(self) -> None:
        self.total_tokens = 0
        self._heads = TokenTrie()
        self._groups: dict[bytes, TokenTrie] = {}

    def add(self, group_id: bytes, tokens: tuple[int, ...], num_head_tokens: int) -> None:
        """Count a prompt.

        Args:
            group_id: whose trie it is in.
            tokens: of the prompt, see `told_apart`.
            num_head_tokens: those before the group's medium, which other groups may share.

        Changes: the count.
        """
        head = tokens[:num_head_tokens]
        new = len(head) - self._heads.add(head)
        found = self._groups.setdefault(group_id, TokenTrie()).add(tokens)
        new += len(tokens) - max(found, len(head))
        self.total_tokens += max(new, 1)

    def add_again(self, num_prompts: int) -> None:
        """Count prompts that were there, of further samples. Changes: the count."""
        self.total_tokens += num_prompts

    def forget(self, group_id: bytes) -> None:
        """Let a group go of which nothing more comes. Idempotent."""
        self._groups.pop(group_id, None)


def told_apart(
    request: Request, report: PromptReport, placeholder_ids: frozenset[int]
) -> tuple[tuple[int, ...], int]:
    """The prompt's tokens with each picture's own, and how many stand before the first picture.

    A clip's frames are those of its file at their times; pictures are those of their files, if
    each is one run of placeholders, else all count as the first one. So prompts may be taken
    for more alike than they are, never for less. Pure.
    """
    tokens = list(report.token_ids)
    places = [at for at, token in enumerate(tokens) if token in placeholder_ids]
    if not places:
        return tuple(tokens), len(tokens)
    for identity, own in zip(*_shares(request, report, places), strict=True):
        own_id = hashlib.blake2b(identity, digest_size=_TOKEN_BYTES).digest()
        value = -1 - int.from_bytes(own_id, "big")  # below all token ids
        for at in own:
            tokens[at] = value
    return tuple(tokens), places[0]


def _shares(
    request: Request, report: PromptReport, places: list[int]
) -> tuple[list[bytes], list[Sequence[int]]]:
    """Identities of pictures and frames, and the places that stand for each."""
    media = media_of(request)
    if len(media) == 1 and isinstance(media[0], VideoPart) and report.clips:
        times_s = report.clips[0].timestamps_s
        clip_id, num = medium_id(media[0]), len(times_s)
        cuts = [len(places) * n // num for n in range(num + 1)]
        names = [clip_id + repr(round(time_s, 6)).encode() for time_s in times_s]
        return names, [places[a:b] for a, b in itertools.pairwise(cuts)]
    identities = [medium_id(part) for part in media]
    starts = [n for n, at in enumerate(places) if n == 0 or at != places[n - 1] + 1]
    if len(starts) != len(identities):
        return identities[:1], [places]
    ends = [*starts[1:], len(places)]
    return identities, [places[a:b] for a, b in zip(starts, ends, strict=True)]

"""Options of one request as a tree of tokens, and who scores each of them.

Every place of the tree is computed once, by the first sequence that comes by. Its logits score
all tokens that follow it: the sequence's own next one, and the others as *rivals*.

    prompt -+- may -+- be            sequence 0   computes the prompt   scores may, no
            |       +- not           sequence 1   computes may be       scores be, not
            +- no                    sequence 2   computes not
                                     sequence 3   computes no
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mmserve.core import BadRequest, Request

__all__ = ["OptionTree", "check_options", "tree_of"]

_ROOT = 0


@dataclass(frozen=True, slots=True)
class OptionTree:
    """The options of one request; sequence 0 is the prompt, sequence k is option k - 1.

    Args:
        options: token ids of each option.
        places: for each option, the numbers of its tokens' places. The prompt's end is place 0.
        children: place by the place before it and a token.
        num_shared: for each option, tokens at its start that an earlier one has, too.
        rivals: for each sequence (offset, token id), counted from the prompt's end: what it
            scores beside its own tokens.
    """

    options: tuple[tuple[int, ...], ...]
    places: tuple[tuple[int, ...], ...]
    children: dict[tuple[int, int], int]
    num_shared: tuple[int, ...]
    rivals: tuple[tuple[tuple[int, int], ...], ...]

    def first_own(self, option: int) -> int:
        """Offset of the first token that the option's sequence scores itself. Pure."""
        return min(self.num_shared[option] + 1, len(self.options[option]))

    def place(self, sequence: int, offset: int, token_id: int) -> int:
        """Place of a token that a sequence scores at this offset. Pure."""
        before = _ROOT if offset == 0 else self.places[sequence - 1][offset - 1]
        return self.children[before, token_id]


def tree_of(options: Iterable[Sequence[int]]) -> OptionTree:
    """The tree of these options. Pure. Cost: O(tokens)."""
    known = tuple(map(tuple, options))
    children: dict[tuple[int, int], int] = {}
    owners = [0]  # by place: the sequence that computes it
    rivals: list[list[tuple[int, int]]] = [[] for _ in range(len(known) + 1)]
    places, num_shared = [], []
    for sequence, token_ids in enumerate(known, start=1):
        path: list[int] = []
        shared = 0
        for offset, token_id in enumerate(token_ids):
            before = path[-1] if path else _ROOT
            place = children.setdefault((before, token_id), len(owners))
            if place == len(owners):
                if owners[before] != sequence:
                    rivals[owners[before]].append((offset, token_id))
                owners.append(sequence)
            else:
                shared += 1
            path.append(place)
        places.append(tuple(path))
        num_shared.append(shared)
    return OptionTree(
        known, tuple(places), children, tuple(num_shared), tuple(map(tuple, rivals))
    )


def check_options(request: Request) -> None:
    """Raise BadRequest if the options cannot be scored under the request's parameters. Pure."""
    options, sampling = request.options, request.sampling
    if not isinstance(options, tuple) or not all(isinstance(text, str) for text in options):
        raise BadRequest("options holds something else than texts", field="options")
    if not all(options):
        place = options.index("")
        message = f"option {place} is empty"
        raise BadRequest(message, field="options", reason="empty", position=place)
    is_plain = sampling.max_new_tokens == 0 and sampling.n == 1 and sampling.constraint is None
    if options and not is_plain:
        raise BadRequest(
            "options are scored, nothing is generated behind them",
            field="options",
            reason="conflict",
            hint="set max_new_tokens to 0, and leave out n and constraint",
        )

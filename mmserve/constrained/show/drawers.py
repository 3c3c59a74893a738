"""Who draws the tokens of an answer that is drawn: a text, chance, or a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.show.way import Drawer, Way
from mmserve.constrained.vocabulary import Vocabulary
from mmserve.core import BadRequest

__all__ = ["check_followed", "drawn_at_random", "drawn_from", "drawn_in_turn"]


def check_followed(text: str, way: Way) -> None:
    """Raise BadRequest unless a way is that of an answer, or of its beginning. Pure."""
    if way.text.startswith(text) or (text.startswith(way.text) and not way.is_whole):
        return
    num_same = _num_same(text.encode(), way.text.encode())
    raise _misfit(text.encode(), num_same)


def drawn_from(text: str, vocabulary: Vocabulary) -> Drawer:
    """Draws what makes this answer, or this beginning of one, in the tokenizer's own tokens.

    What it gives raises BadRequest where it is asked for a token and none fits; that all of the
    text was followed is for `check_followed` to say.
    """
    whole = text.encode()
    tokens: tuple[int, ...] = vocabulary.encode(whole) or ()
    pieces = vocabulary.pieces

    def draw(token_ids: Sequence[int], allowed: NDArray[np.bool_]) -> int | None:
        so_far = b"".join(pieces[one] for one in token_ids)
        if not whole.startswith(so_far):
            if so_far.startswith(whole):
                return None
            raise _misfit(whole, _num_same(whole, so_far))
        if so_far == whole:
            return next((one for one in vocabulary.eos_token_ids if allowed[one]), None)
        ahead = tokens[len(token_ids) :]
        if ahead and (*token_ids, *ahead) == tokens and allowed[ahead[0]]:
            return ahead[0]
        for stop in range(len(whole), len(so_far), -1):
            for token_id in vocabulary.ids.get(whole[len(so_far) : stop], ()):
                if allowed[token_id]:
                    return token_id
        raise _misfit(whole, len(so_far))

    return draw


def drawn_at_random(seed: int) -> Drawer:
    """Draws each token that may come alike. Changes: what it draws next."""
    chance = np.random.default_rng(seed)

    def draw(_: Sequence[int], allowed: NDArray[np.bool_]) -> int | None:
        return int(chance.choice(np.flatnonzero(allowed)))

    return draw


def drawn_in_turn(token_ids: Iterable[int]) -> Drawer:
    """Draws these tokens one after the other. Changes: what it draws next."""
    rest = iter(token_ids)

    def draw(_: Sequence[int], allowed: NDArray[np.bool_]) -> int | None:
        del allowed
        return next(rest, None)

    return draw


def _num_same(one: bytes, other: bytes) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _misfit(whole: bytes, num_bytes: int) -> BadRequest:
    position = len(whole[:num_bytes].decode(errors="ignore"))
    rest = whole[num_bytes:].decode(errors="ignore")[:20]
    return BadRequest(
        f"the answer does not fit at character {position}, before {rest!r}",
        field="answer",
        reason="misfit",
        position=position,
    )

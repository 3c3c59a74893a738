"""Two answers to one prompt: whether they are the same, and if not, where they part.

    A   The  cat  sat  on  the  mat .        place 3 is the first that differs
    B   The  cat  sat  by  the  door .       gap_a = logprob_A(on) - logprob_A(by)

A small gap on both sides is a near tie that rounding decided; a large one says that the two
computed something else, or were asked in another manner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mmserve.batch.drift.said import Said, Token

__all__ = ["Difference", "Pair", "Result", "compare"]

Result = Literal["same", "flipped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two answers part.

    Args:
        place: of the first difference, counted from 0.
        unit: characters where a side tells no tokens.
        a, b: what stands there; None where that answer has ended.
        gap_a: how much likelier A found its own token than B's, in log-probability; None if A
            does not tell, or B's token was not among the likeliest that it tells.
        gap_b: the same of B.
    """

    place: int
    unit: Literal["token", "character"]
    a: str | None
    b: str | None
    gap_a: float | None = None
    gap_b: float | None = None

    @property
    def gap(self) -> float | None:
        """The larger of the two gaps, of those that are known. Pure."""
        known = [gap for gap in (self.gap_a, self.gap_b) if gap is not None]
        return max(known, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What became of one prompt on both sides.

    Args:
        line, row_id, task: of its row.
        a, b: what the sides said.
        result: "failed" where a side gave no answer, whatever the other said.
        difference: None unless it is flipped.
        logprob_off: the most that the log-probability of a token differs before the answers
            part; None where a side tells none.
        has_other_tokens: the words are the same, but not the tokens that spell them.
    """

    line: int
    row_id: str | int
    task: str
    a: Said
    b: Said
    result: Result
    difference: Difference | None = None
    logprob_off: float | None = None
    has_other_tokens: bool = False


def compare(line: int, row_id: str | int, task: str, a: Said, b: Said) -> Pair:
    """Put two answers beside each other. Pure."""
    if a.error is not None or b.error is not None:
        return Pair(line=line, row_id=row_id, task=task, a=a, b=b, result="failed")
    is_same = a.text == b.text
    off, has_other = None, False
    if a.tokens is not None and b.tokens is not None:
        common = _common(_raws(a.tokens), _raws(b.tokens))
        off = _largest_off(a.tokens[:common], b.tokens[:common])
        has_other = is_same and not common == len(a.tokens) == len(b.tokens)
    return Pair(
        line=line,
        row_id=row_id,
        task=task,
        a=a,
        b=b,
        result="same" if is_same else "flipped",
        difference=None if is_same else _difference(a, b),
        logprob_off=off,
        has_other_tokens=has_other,
    )


def _difference(a: Said, b: Said) -> Difference:
    by_token = None
    if a.tokens is not None and b.tokens is not None:
        by_token = _token_difference(a.tokens, b.tokens)
    if by_token is not None:
        return by_token
    place = _common(a.text, b.text)
    return Difference(
        place=place,
        unit="character",
        a=a.text[place : place + 1] or None,
        b=b.text[place : place + 1] or None,
    )


def _token_difference(a: Sequence[Token], b: Sequence[Token]) -> Difference | None:
    """None if the tokens do not say where the words part."""
    place = _common(_raws(a), _raws(b))
    mine = a[place] if place < len(a) else None
    other = b[place] if place < len(b) else None
    if mine is None and other is None:
        return None
    return Difference(
        place=place,
        unit="token",
        a=None if mine is None else mine.text,
        b=None if other is None else other.text,
        gap_a=_gap(mine, other),
        gap_b=_gap(other, mine),
    )


def _gap(own: Token | None, other: Token | None) -> float | None:
    if own is None or other is None or own.logprob is None:
        return None
    rival = own.logprob_of(other.raw)
    return None if rival is None else own.logprob - rival


def _largest_off(a: Sequence[Token], b: Sequence[Token]) -> float | None:
    return max(
        (
            abs(left.logprob - right.logprob)
            for left, right in zip(a, b, strict=True)
            if left.logprob is not None and right.logprob is not None
        ),
        default=None,
    )


def _raws(tokens: Sequence[Token]) -> list[bytes]:
    return [token.raw for token in tokens]


def _common(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the common prefix."""
    pairs = zip(a, b, strict=False)
    return next((k for k, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))

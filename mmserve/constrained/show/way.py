"""An answer's way through its grammar: what was forced, what might have come, what was drawn.

{" shape ":"           forced: nothing is asked of the model
star                   drawn: 9 of 768 tokens might have come
"," colour ":"         forced
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.automaton import Automaton
from mmserve.constrained.vocabulary import Vocabulary
from mmserve.core import Matcher

__all__ = ["Drawer", "Forced", "Step", "Way", "readable", "walk"]

_MAX_SOME = 12

Drawer = Callable[[Sequence[int], NDArray[np.bool_]], int | None]
"""Says the next token of an answer so far, of those that may come; None: it is cut there."""


@dataclass(frozen=True, slots=True)
class Forced:
    """A jump.

    Args:
        replaced: tokens that gave way.
        tokens: what came instead, and after them.
        waiting: text that is certain, too, but not yet its tokens.
        is_end: whether the answer ends there.
    """

    replaced: tuple[str, ...]
    tokens: tuple[str, ...]
    waiting: str
    is_end: bool


@dataclass(frozen=True, slots=True)
class Step:
    """A jump, if there was one, and the token drawn after it.

    Args:
        forced: the jump.
        drawn: the token; "" for an end token, None if none was drawn.
        num_allowed: tokens that might have come, end tokens included.
        may_end: whether an end token might.
        some: a few of the others.
    """

    forced: Forced | None
    drawn: str | None
    num_allowed: int = 0
    may_end: bool = False
    some: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Way:
    """All steps of an answer.

    Args:
        text: the answer.
        num_tokens: its tokens.
        num_forced: tokens by which jumps made it longer.
        is_whole: whether it ended; else it was cut.
        num_vocabulary: tokens of the model.
    """

    text: str
    steps: tuple[Step, ...]
    num_tokens: int
    num_forced: int
    is_whole: bool
    num_vocabulary: int

    @property
    def num_drawn(self) -> int:
        """Tokens that the model was asked for; an end token counts. Pure."""
        return sum(step.drawn is not None for step in self.steps)

    @property
    def jumps(self) -> tuple[Forced, ...]:
        """All jumps in order. Pure."""
        return tuple(step.forced for step in self.steps if step.forced is not None)


def walk(
    matcher: Matcher,
    vocabulary: Vocabulary,
    draw: Drawer,
    *,
    max_steps: int,
    automaton: Automaton | None = None,
) -> Way:
    """Make an answer as the scheduler would, at most so many tokens drawn.

    Args:
        matcher: at the start.
        vocabulary: of the matcher.
        draw: in place of the model.
        max_steps: tokens drawn.
        automaton: of the matcher; tells what waits.

    Changes: the matcher. Raises what `draw` raises.
    """
    walker = _Walker(matcher, vocabulary, automaton)
    steps: list[Step] = []
    while True:
        forced = walker.jump()
        if matcher.is_finished or len(steps) == max_steps:
            if forced is not None:
                steps.append(Step(forced, None))
            break
        step, goes_on = walker.draw(forced, draw)
        if step.forced is not None or step.drawn is not None:
            steps.append(step)
        if not goes_on:
            break
    token_ids = walker.token_ids
    return Way(
        text=walker.spell(token_ids).decode(errors="replace"),
        steps=tuple(steps),
        num_tokens=len(token_ids),
        num_forced=walker.num_forced,
        is_whole=matcher.is_finished,
        num_vocabulary=int(sum(1 for piece in vocabulary.pieces if piece)),
    )


class _Walker:
    """The answer so far. Mutable."""

    def __init__(
        self, matcher: Matcher, vocabulary: Vocabulary, automaton: Automaton | None
    ) -> None:
        self.token_ids: list[int] = []
        self.num_forced = 0
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._automaton = automaton
        self._num_settled = 0

    def jump(self) -> Forced | None:
        """Take what is certain. Changes: the answer."""
        jump = self._matcher.jump(self._num_settled)
        if jump is None:
            return None
        self._matcher.rollback(jump.num_replaced)
        for token_id in jump.token_ids:
            self._matcher.accept(token_id)
        first = len(self.token_ids) - jump.num_replaced
        replaced = self.token_ids[first:]
        self.token_ids[first:] = jump.token_ids
        self._num_settled = len(self.token_ids)
        self.num_forced += len(jump.token_ids) - jump.num_replaced
        return Forced(
            self._told(replaced), self._told(jump.token_ids), self._waiting(), jump.is_end
        )

    def draw(self, forced: Forced | None, draw: Drawer) -> tuple[Step, bool]:
        """One token, and whether more may come. Changes: the answer."""
        vocabulary = self._vocabulary
        allowed = _bits(self._matcher.allowed())
        token_id = draw(self.token_ids, allowed)
        if token_id is None:
            return Step(forced, None), False
        self._matcher.accept(token_id)
        is_end = token_id in vocabulary.eos_token_ids
        if not is_end:
            self.token_ids.append(token_id)
        step = Step(
            forced,
            "" if is_end else self._told((token_id,))[0],
            int(allowed.sum()),
            any(allowed[one] for one in vocabulary.eos_token_ids),
            self._some(allowed),
        )
        return step, not is_end

    def spell(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of tokens. Pure."""
        return b"".join(self._vocabulary.pieces[one] for one in token_ids)

    def _waiting(self) -> str:
        """Text that is forced behind the answer."""
        automaton = self._automaton
        if automaton is None:
            return ""
        state = automaton.after(automaton.start, self.spell(self.token_ids))
        if state is None:
            return ""
        return automaton.forced(state).decode(errors="ignore")

    def _some(self, allowed: NDArray[np.bool_]) -> tuple[str, ...]:
        """A few tokens that may come, those of several bytes first, in the model's order."""
        ends = self._vocabulary.eos_token_ids
        found = [int(one) for one in np.flatnonzero(allowed) if one not in ends]
        found.sort(key=lambda one: len(self._vocabulary.pieces[one]) == 1)
        return self._told(found[:_MAX_SOME])

    def _told(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(readable(self._vocabulary.pieces[one]) for one in token_ids)


def readable(piece: bytes) -> str:
    """A token for people: escapes for what cannot be seen. Pure."""
    text = piece.decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def _bits(mask: NDArray[np.uint32]) -> NDArray[np.bool_]:
    return np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little").astype(np.bool_)

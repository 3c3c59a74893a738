"""What a compiler keeps of one grammar, as drawings and statistics want it."""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.constrained.automaton import Automaton
from mmserve.constrained.automaton.characters import CharacterMachine
from mmserve.core import Constraint

__all__ = ["KeptGrammar"]


@dataclass(frozen=True, slots=True, eq=False)
class KeptGrammar:
    """A compiled grammar at one moment.

    Args:
        constraint: what it was compiled from.
        num_bytes: estimate of memory held, masks included.
        num_uses: times it was asked for since it was compiled.
        automaton: of regular expressions and choices; None for what runs on llguidance.
    """

    constraint: Constraint
    num_bytes: int
    num_uses: int
    automaton: Automaton | None

    @property
    def num_states(self) -> int | None:
        """States between characters, None where they are not counted. Pure."""
        machine = None if self.automaton is None else self.automaton.machine
        return machine.num_states if isinstance(machine, CharacterMachine) else None

    @property
    def num_masks(self) -> int | None:
        """Masks remembered now, None if that is not known. Pure."""
        if self.automaton is None:
            return None
        mask_bytes = self.automaton.num_bytes - self.automaton.machine.num_bytes
        return max(0, mask_bytes) // (4 * self.automaton.vocabulary.num_words)

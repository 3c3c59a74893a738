"""Patterns and lists of choices to automata."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.automaton.atoms import Atoms, partition
from mmserve.constrained.automaton.automaton import Automaton
from mmserve.constrained.automaton.characters import CharacterMachine
from mmserve.constrained.automaton.continuations import continuations
from mmserve.constrained.automaton.minimise import minimise
from mmserve.constrained.automaton.options import OptionMachine
from mmserve.constrained.automaton.subsets import determinise
from mmserve.constrained.automaton.tokens import token_trie
from mmserve.constrained.charsets import Ranges
from mmserve.constrained.regex_tree import read_pattern
from mmserve.constrained.vocabulary import Vocabulary

__all__ = ["compile_choices", "compile_regex"]

_MASK_BYTES = 8 << 20
_UNUSED: tuple[Ranges, ...] = (((0, 0),),)
"""A class for patterns that have none, so that no table is without columns."""


def compile_regex(
    pattern: str, vocabulary: Vocabulary, *, mask_bytes: int = _MASK_BYTES
) -> Automaton:
    r"""The automaton of exactly the texts that `re.fullmatch` accepts.

    Args:
        pattern: a regular expression of Python's `re`.
        vocabulary: the model's tokens.
        mask_bytes: most bytes of masks that are remembered.

    Raises:
        ConstraintRefused: not a pattern, empty, too large, or with a feature that no automaton
            has; fields: field ("regex"), reason, position.

    Cost: milliseconds; tens of them for the first pattern with `\w`, and for the first of a
    vocabulary. Pure.
    """
    found = continuations(read_pattern(pattern))
    atoms, masks = partition(found.classes or _UNUSED)
    table, is_end = determinise(found, masks, atoms.num_atoms)
    table, is_end, _ = minimise(table, is_end)
    table, atoms = _joined(table, atoms)
    machine = CharacterMachine(table, is_end, atoms, token_trie(vocabulary))
    return _ready(Automaton(machine, vocabulary, mask_bytes))


def compile_choices(
    options: Sequence[str], vocabulary: Vocabulary, *, mask_bytes: int = _MASK_BYTES
) -> Automaton:
    """The automaton of some texts.

    Args:
        options: at least one text, none with surrogates; some may be equal, or begin others.
        vocabulary: the model's tokens.
        mask_bytes: most bytes of masks that are remembered.

    Pure.
    """
    machine = OptionMachine(options, vocabulary)
    return _ready(Automaton(machine, vocabulary, mask_bytes))


def _ready(automaton: Automaton) -> Automaton:
    """The first mask is needed at once, and off the step loop is the time for it."""
    automaton.allowed(automaton.start)
    return automaton


def _joined(table: NDArray[np.int32], atoms: Atoms) -> tuple[NDArray[np.int32], Atoms]:
    """Atoms that no state tells apart become one."""
    columns: dict[bytes, int] = {}
    names = np.array(
        [columns.setdefault(column.tobytes(), len(columns)) for column in table.T],
        dtype=np.int32,
    )
    if len(columns) == table.shape[1]:
        return table, atoms
    _, first = np.unique(names, return_index=True)
    return np.ascontiguousarray(table[:, first]), atoms.renamed(names, len(columns))

"""Characters that a pattern never tells apart, as atoms: the coarsest partition by its classes.

classes  [a-z]  [0-9a-f]       atoms  0: 0-9   1: a-f   2: g-z   (all others: none)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.automaton.limits import MAX_ATOMS, Work, refuse_size
from mmserve.constrained.charsets import Ranges

__all__ = ["Atoms", "partition"]

_MAX_PAIRS = 500_000


@dataclass(frozen=True, slots=True)
class Atoms:
    """Which atom each character belongs to.

    Args:
        low, high: int64 [N] inclusive ranges of code points, sorted, apart.
        atom: int32 [N] the atom of each range, in [0, num_atoms).
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    atom: NDArray[np.int32]
    num_atoms: int

    def of(self, codes: NDArray[np.int64]) -> NDArray[np.int32]:
        """Atoms int32 of code points, -1 for none. Pure."""
        place = np.searchsorted(self.low, codes, side="right") - 1
        found = self.atom[place]  # place -1 is masked below
        return np.where((place >= 0) & (codes <= self.high[place]), found, np.int32(-1))

    def renamed(self, names: NDArray[np.int32], num_atoms: int) -> Atoms:
        """The same with atom k as `names[k]`; neighbours of one name are joined. Pure."""
        named = names[self.atom]
        joins = (named[1:] == named[:-1]) & (self.low[1:] == self.high[:-1] + 1)
        is_first = np.concatenate(([True], ~joins))
        is_last = np.concatenate((~joins, [True]))
        return Atoms(self.low[is_first], self.high[is_last], named[is_first], num_atoms)

    def ranges(self, atoms: set[int]) -> Ranges:
        """The characters of some atoms. Pure."""
        chosen = np.isin(self.atom, list(atoms))
        joined: list[tuple[int, int]] = []
        for low, high in zip(
            self.low[chosen].tolist(), self.high[chosen].tolist(), strict=True
        ):
            if joined and joined[-1][1] + 1 == low:
                joined[-1] = (joined[-1][0], high)
            else:
                joined.append((low, high))
        return tuple(joined)


def partition(classes: Sequence[Ranges]) -> tuple[Atoms, list[int]]:
    """The atoms of some classes, and each class as a bitmask of its atoms.

    Raises ConstraintRefused if they are too many. Pure.
    """
    work = Work("pairs of a class and a range of characters", _MAX_PAIRS)
    work.add(sum(map(len, classes)))
    edges = np.concatenate([np.array(ranges, dtype=np.int64) for ranges in classes])
    low, past = edges[:, 0], edges[:, 1] + 1
    number = np.repeat(np.arange(len(classes)), [len(ranges) for ranges in classes])
    bounds = np.unique(np.concatenate((low, past)))
    first = np.searchsorted(bounds, low)
    counts = np.searchsorted(bounds, past) - first
    work.add(int(counts.sum()))
    before = np.cumsum(counts) - counts
    piece = np.repeat(first - before, counts) + np.arange(int(counts.sum()))
    owner = np.repeat(number, counts).astype(np.int32)[np.argsort(piece, kind="stable")]
    ends = np.cumsum(np.bincount(piece, minlength=len(bounds) - 1)) * owner.itemsize
    return _numbered(owner.tobytes(), ends, bounds, len(classes))


def _numbered(
    owners: bytes, ends: NDArray[np.int64], bounds: NDArray[np.int64], num_classes: int
) -> tuple[Atoms, list[int]]:
    """Pieces between neighbouring bounds that the same classes own are one atom."""
    names: dict[bytes, int] = {}
    kept: list[int] = []
    atom: list[int] = []
    start = 0
    for place, end in enumerate(ends.tolist()):
        if end > start:
            kept.append(place)
            atom.append(names.setdefault(owners[start:end], len(names)))
        start = end
    if len(names) > MAX_ATOMS:
        refuse_size("kinds of characters", MAX_ATOMS)
    masks = [0] * num_classes
    for key, one in names.items():
        for owner in np.frombuffer(key, dtype=np.int32).tolist():
            masks[owner] |= 1 << one
    atoms = Atoms(
        bounds[kept], bounds[np.array(kept) + 1] - 1, np.array(atom, np.int32), len(names)
    )
    return atoms.renamed(np.arange(len(names), dtype=np.int32), len(names)), masks

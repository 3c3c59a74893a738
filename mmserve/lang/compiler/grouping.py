"""The order in which rows of a batch start: those that share a prefix or media side by side.

rows        a1 b2 a3 b4 a1      first argument a picture, second a question
order       a1 a1 a3 b2 b4      each picture is at work once, and each question of it
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

__all__ = ["grouped"]


def grouped(rows: Sequence[Mapping[str, object]], order: Sequence[str]) -> list[int]:
    """Row numbers, grouped by equal arguments in the order in which they reach the prompt.

    Arguments that differ in every row tell nothing and are passed over. Groups come in the
    order of their first rows, and equal rows keep theirs. Pure.
    """
    ranks: list[list[int]] = []
    for name in order:
        first: dict[object, int] = {}
        column = [
            first.setdefault(_key(row.get(name)), index) for index, row in enumerate(rows)
        ]
        if len(first) < len(rows):
            ranks.append(column)
    return sorted(range(len(rows)), key=lambda index: [column[index] for column in ranks])


def _key(value: object) -> object:
    # Equal texts and bytes are one thing; pictures, arrays and lists are compared by identity.
    if isinstance(value, Hashable) and isinstance(value, (str, bytes, int, float, tuple)):
        try:
            return (type(value), hash(value), value)
        except TypeError:  # a tuple of something that cannot be hashed
            return id(value)
    return id(value)

"""Whether a given JSON value satisfies places: which values of an `enum` may be written."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from mmserve.constrained.schemas.expand import Expander, child, item
from mmserve.constrained.schemas.facts import Conj, Facts, key_of, type_of
from mmserve.constrained.schemas.matching import holds, may_hold

__all__ = ["satisfies", "suits"]


def satisfies(expander: Expander, value: Any, places: Conj) -> bool:  # noqa: ANN401
    """Whether the value satisfies all the places. Raises as `Expander.together`."""
    return any(suits(expander, value, facts) for facts in expander.together(places))


def suits(expander: Expander, value: Any, facts: Facts) -> bool:  # noqa: ANN401
    """Whether the value has these facts. Raises as `Expander.together`."""
    kind = type_of(value)
    if kind not in facts.types or not _is_named(value, facts):
        return False
    if kind == "array":
        return _suits_array(expander, value, facts)
    if kind == "object":
        return _suits_object(expander, value, facts)
    if kind == "string":
        return _suits_text(value, facts)
    return kind in ("null", "boolean") or _suits_number(value, facts)


def _is_named(value: Any, facts: Facts) -> bool:  # noqa: ANN401
    key = key_of(value)
    return (facts.values is None or key in map(key_of, facts.values)) and key not in map(
        key_of, facts.banned
    )


def _suits_text(value: str, facts: Facts) -> bool:
    return (
        _is_within(len(value), facts.min_length, facts.max_length)
        and all(holds(text.written, value) for text in facts.texts)
        and not any(may_hold(text.written, value) for text in facts.unlike)
    )


def _suits_number(value: float, facts: Facts) -> bool:
    exact = Fraction(value)
    if facts.low is not None and (exact, False) < facts.low:
        return False
    if facts.high is not None and (exact, facts.high[1]) > (facts.high[0], False):
        return False
    return all(_is_multiple(value, step) for step in facts.steps)


def _is_multiple(value: float, step: Fraction) -> bool:
    """By exact arithmetic, and by the floating division that validators make."""
    if step.denominator == 1:
        return Fraction(value) % step == 0
    quotient = value / float(step)
    return Fraction(str(value)) % step == 0 and quotient == int(quotient)


def _suits_array(expander: Expander, value: list[Any], facts: Facts) -> bool:
    if not _is_within(len(value), facts.min_items, facts.max_items):
        return False
    if facts.is_unique and len({key_of(one) for one in value}) < len(value):
        return False
    if not all(satisfies(expander, one, item(facts, n)) for n, one in enumerate(value)):
        return False
    for place, least, most in facts.contained:
        count = sum(satisfies(expander, one, (place,)) for one in value)
        if not _is_within(count, least, most):
            return False
    return True


def _suits_object(expander: Expander, value: dict[str, Any], facts: Facts) -> bool:
    return (
        _is_within(len(value), facts.min_names, facts.max_names)
        and all(name in value for name in facts.required)
        and all(satisfies(expander, name, facts.names) for name in value)
        and all(satisfies(expander, one, child(facts, name)) for name, one in value.items())
    )


def _is_within(count: int, least: int, most: int | None) -> bool:
    return least <= count and (most is None or count <= most)

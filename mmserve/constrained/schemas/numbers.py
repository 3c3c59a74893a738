"""Bounds and steps of numbers, as llguidance takes them: inclusive, and exact as floats.

    exclusiveMinimum 0, integer   minimum 1
    exclusiveMaximum 1, number    maximum 0.999999999

Bounds beyond 9 * 10**15 come closer, as floats do not tell whole numbers apart from there on;
numbers with a step lie within them, so that they end.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from mmserve.constrained.schemas.facts import Facts
from mmserve.constrained.schemas.refusal import refuse

__all__ = ["whole_numbers_inside", "write_numbers"]

_FAR = 9 * 10**15
_ENDLESS = 10**18
"""Numbers have fewer digits than this one, so a bound beyond it holds by itself."""
_TINY = Fraction(1, 10**9)
_MAX_STEP = 10**4
_MAX_HOLES = 16


def write_numbers(facts: Facts) -> list[dict[str, Any]]:
    """Plain schemas of the numbers that have these facts; none if there are none.

    Raises:
        ConstraintRefused: steps that floats do not divide exactly, or whole numbers only to
            be left out.

    Pure.
    """
    whole, step = _steps(facts)
    if "fraction" in facts.types and whole_numbers_inside(facts) is None:
        _refuse(facts, "type", "numbers that are not whole cannot be enforced", "unsupported")
    is_whole = whole or "fraction" not in facts.types
    found = []
    for low, high in _ranges(facts):
        written = _whole(low, high, step) if is_whole else _any_number(low, high, step)
        if written is not None:
            found.append(written)
    if not found and facts.types <= {"integer", "fraction"} and _is_far(facts):
        keyword = "minimum" if facts.low is not None else "maximum"
        _refuse(facts, keyword, f"must not be beyond {_FAR}", "too_large")
    return found


def _is_far(facts: Facts) -> bool:
    return (facts.low is not None and facts.low[0] > _FAR) or (
        facts.high is not None and facts.high[0] < -_FAR
    )


def whole_numbers_inside(facts: Facts) -> range | None:
    """The whole numbers that are to be left out; None if there are too many of them. Pure."""
    if "integer" in facts.types or "fraction" not in facts.types:
        return range(0)
    if facts.low is None or facts.high is None:
        return None
    found = range(math.ceil(facts.low[0]), math.floor(facts.high[0]) + 1)
    return found if len(found) <= _MAX_HOLES else None


def _refuse(facts: Facts, keyword: str, what: str, reason: str) -> None:
    refuse(keyword, facts.paths.get(keyword, ""), what, reason)


def _steps(facts: Facts) -> tuple[bool, Fraction | None]:
    """Whether only whole numbers are left, and the step that they or all numbers keep."""
    whole = [step for step in facts.steps if step.denominator == 1]
    broken = [step for step in facts.steps if step.denominator != 1]
    is_whole = bool(whole) or "fraction" not in facts.types
    for step in broken:
        is_exact = step.denominator & (step.denominator - 1) == 0
        if not is_exact and not (is_whole and _divides_whole_numbers(step)):
            what = f"{float(step)} does not divide floating-point numbers exactly"
            _refuse(facts, "multipleOf", what, "inexact")
    if is_whole:
        broken = [step for step in broken if step.numerator != 1]
    if not whole and not broken:
        return is_whole, None
    least = Fraction(1) if is_whole else broken[0]
    for step in whole + broken:
        least = _lcm(least, step)
    if least > _MAX_STEP:
        _refuse(facts, "multipleOf", f"must be at most {_MAX_STEP}", "too_large")
    return is_whole, least


def _lcm(one: Fraction, two: Fraction) -> Fraction:
    numerator = math.lcm(one.numerator * two.denominator, two.numerator * one.denominator)
    return Fraction(numerator, one.denominator * two.denominator)


def _divides_whole_numbers(step: Fraction) -> bool:
    """Whether a whole number over the step, in floats, is always whole."""
    error = abs(Fraction(float(step)) / step - 1)
    return step.numerator == 1 and error < Fraction(1, 2**54)


def _ranges(facts: Facts) -> list[tuple[Any, Any]]:
    """The bounds, cut in two at each banned number."""
    found = [(facts.low, facts.high)]
    numbers = {
        Fraction(one)
        for one in facts.banned
        if isinstance(one, int | float) and not isinstance(one, bool)
    }
    numbers |= {Fraction(one) for one in whole_numbers_inside(facts) or ()}
    for number in sorted(numbers):
        low, high = found.pop()
        is_inside = (low is None or (number, False) >= low) and (
            high is None or (number, high[1]) <= (high[0], False)
        )
        if is_inside:
            found += [(low, (number, True)), ((number, True), high)]
        else:
            found.append((low, high))
    return found


def _whole(low: Any, high: Any, step: Fraction | None) -> dict[str, Any] | None:  # noqa: ANN401
    found: dict[str, Any] = {"type": "integer"}
    least = most = None
    if low is not None and low[0] > -_ENDLESS:
        least = max(math.floor(low[0]) + 1 if low[1] else math.ceil(low[0]), -_FAR)
        found["minimum"] = least
    if high is not None and high[0] < _ENDLESS:
        most = min(math.ceil(high[0]) - 1 if high[1] else math.floor(high[0]), _FAR)
        found["maximum"] = most
    if (least or 0) > _FAR or (most or 0) < -_FAR:
        return None
    if step is not None and step != 1:
        found = {"minimum": -_FAR, "maximum": _FAR, **found, "multipleOf": int(step)}
    if least is not None and most is not None:
        size = int(step or 1)
        if -(-least // size) * size > most:
            return None
    return found


def _any_number(low: Any, high: Any, step: Fraction | None) -> dict[str, Any] | None:  # noqa: ANN401
    least = None if low is None else _inside(low, 1)
    most = None if high is None else _inside(high, -1)
    found: dict[str, Any] = {"type": "number"}
    if least is not None:
        if least > _FAR:
            return None
        found["minimum"] = max(least, -float(_FAR))
    if most is not None:
        if most < -_FAR:
            return None
        found["maximum"] = min(most, float(_FAR))
    if step is not None:
        limit = float(_FAR)
        found = {"minimum": -limit, "maximum": limit, **found, "multipleOf": float(step)}
    if least is not None and most is not None:
        if least > most:
            return None
        if step is not None and math.ceil(Fraction(least) / step) * step > Fraction(most):
            return None
    return found


def _inside(bound: tuple[Fraction, bool], sign: int) -> float:
    """The nearest float that is inside, a little further in for an exclusive bound.

    llguidance 1.9 lets exclusive bounds through in ranges shorter than 1, and many digits round
    up to a bound that they do not reach. The numbers between are lost; no one will miss them.
    """
    value, is_outside = bound
    if is_outside:
        value += sign * (_TINY if abs(value) < 10**6 else Fraction(1, 1000))
    found = float(value)
    while sign * (Fraction(found) - value) < 0:
        found = math.nextafter(found, sign * math.inf)
    if 0 < abs(found) < _TINY:
        found = sign * float(_TINY) if sign * found > 0 else 0.0
    return found

"""Facts that a subschema states by itself, without those it combines."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from mmserve.constrained.regex_syntax import translate_search
from mmserve.constrained.schemas.document import Place
from mmserve.constrained.schemas.facts import Facts, ItemLayer, NameLayer, Text, type_of
from mmserve.constrained.schemas.formats import FORMATS
from mmserve.constrained.schemas.matching import is_unsure
from mmserve.constrained.schemas.refusal import refuse
from mmserve.core import ConstraintRefused

__all__ = ["bounds", "contained", "item_layer", "plain_facts", "texts_of", "types_named"]

_KINDS = {"number": ("integer", "fraction")}


def plain_facts(place: Place, known: Mapping[str, Any]) -> Facts:
    """What the keywords say that need no other subschema's alternatives. Pure.

    Raises:
        ConstraintRefused: a pattern that no automaton has.
    """
    facts = Facts()
    if "type" in known:
        facts = _met(facts, Facts(types=types_named(known["type"])))
    for values in (
        known.get("enum"),
        [known["const"]] if "const" in known else None,
    ):
        if values is not None:
            kinds = frozenset(map(type_of, values))
            facts = _met(facts, Facts(types=kinds, values=tuple(values)))
    low, high = bounds(known)
    layers = _name_layers(place, known)
    items = item_layer(place, known)
    path = place.path
    rest = Facts(
        low=low,
        high=high,
        steps=(Fraction(str(known["multipleOf"])),) if "multipleOf" in known else (),
        min_length=int(known.get("minLength", 0)),
        max_length=_count(known, "maxLength"),
        texts=texts_of(place, known),
        items=(items,) if items is not None else (),
        min_items=int(known.get("minItems", 0)),
        max_items=_count(known, "maxItems"),
        is_unique=known.get("uniqueItems") is True,
        contained=contained(place, known),
        layers=layers,
        required=tuple(dict.fromkeys(known.get("required", ()))),
        names=(place.below("propertyNames"),) if "propertyNames" in known else (),
        min_names=int(known.get("minProperties", 0)),
        max_names=_count(known, "maxProperties"),
        paths=dict.fromkeys(known, path),
    )
    return _met(facts, rest)


def _met(one: Facts, two: Facts) -> Facts:
    met = one.meet(two)
    return Facts(types=frozenset()) if met is None else met


def types_named(value: Any) -> frozenset[str]:  # noqa: ANN401 - parsed JSON
    """The types that a `type` names. Pure."""
    names = [value] if isinstance(value, str) else value
    return frozenset(kind for name in names for kind in _KINDS.get(name, (name,)))


def bounds(
    known: Mapping[str, Any],
) -> tuple[tuple[Fraction, bool] | None, tuple[Fraction, bool] | None]:
    """The tighter of the inclusive and the exclusive bound, either side. Pure."""
    found = []
    for inclusive, exclusive, choose in (
        ("minimum", "exclusiveMinimum", max),
        ("maximum", "exclusiveMaximum", min),
    ):
        outer = known.get(exclusive)
        sides = []
        if inclusive in known:
            sides.append((Fraction(known[inclusive]), outer is True))
        if outer is not None and not isinstance(outer, bool):
            sides.append((Fraction(outer), True))
        sign = 1 if choose is max else -1
        found.append(max(sides, key=lambda side: (sign * side[0], side[1]), default=None))
    return found[0], found[1]


def item_layer(place: Place, known: Mapping[str, Any]) -> ItemLayer | None:
    """What is said of items by order, in the draft's words. Pure."""
    items = known.get("items")
    if isinstance(items, list):
        first = tuple(place.below("items", order) for order in range(len(items)))
        rest = place.below("additionalItems") if "additionalItems" in known else None
        return ItemLayer(first, rest)
    count = len(known.get("prefixItems", ()))
    if items is None and not count:
        return None
    first = tuple(place.below("prefixItems", order) for order in range(count))
    return ItemLayer(first, place.below("items") if items is not None else None)


def contained(
    place: Place, known: Mapping[str, Any]
) -> tuple[tuple[Place, int, int | None], ...]:
    """What some of an array's items must satisfy. Pure."""
    if "contains" not in known:
        return ()
    most = _count(known, "maxContains")
    return ((place.below("contains"), int(known.get("minContains", 1)), most),)


def _name_layers(place: Place, known: Mapping[str, Any]) -> tuple[NameLayer, ...]:
    if not known.keys() & {"properties", "patternProperties", "additionalProperties"}:
        return ()
    named = {name: place.below("properties", name) for name in known.get("properties", ())}
    patterns = tuple(
        (
            pattern,
            _translated("patternProperties", pattern, place),
            place.below("patternProperties", pattern),
        )
        for pattern in known.get("patternProperties", ())
    )
    has_rest = "additionalProperties" in known
    rest = place.below("additionalProperties") if has_rest else None
    return (NameLayer(named, patterns, rest),)


def texts_of(place: Place, known: Mapping[str, Any]) -> tuple[Text, ...]:
    """What `pattern` and `format` ask of a string. Raises as `plain_facts`. Pure."""
    found = []
    if "pattern" in known:
        pattern = known["pattern"]
        translated = _translated("pattern", pattern, place)
        found.append(Text(translated, pattern, is_exact=not is_unsure(pattern)))
    name = known.get("format")
    if name in FORMATS:
        found.append(Text(FORMATS[name], rf"^(?:{FORMATS[name]})\Z"))
    return tuple(found)


def _translated(keyword: str, pattern: str, place: Place) -> str:
    try:
        return translate_search(pattern)
    except ConstraintRefused as error:
        refuse(keyword, place.path, error.message, str(error.fields.get("reason")))


def _count(known: Mapping[str, Any], keyword: str) -> int | None:
    return int(known[keyword]) if keyword in known else None

"""What breaks a subschema: for each keyword the facts of values that do not satisfy it.

    {"type": "object", "required": ["a"]}   not an object; or one without `a`

Keywords whose opposite facts cannot say (`pattern`, `uniqueItems`) are passed over: values that
break only those are not let through. If no keyword is left, the negation is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from mmserve.constrained.schemas.dialects import Draft, is_known
from mmserve.constrained.schemas.document import Place
from mmserve.constrained.schemas.facts import TYPES, Facts, ItemLayer, NameLayer, type_of
from mmserve.constrained.schemas.formats import FORMATS
from mmserve.constrained.schemas.plain import (
    bounds,
    contained,
    item_layer,
    texts_of,
    types_named,
)
from mmserve.constrained.schemas.refusal import refuse

__all__ = ["broken", "is_unclear"]

_Ways = tuple[Facts, ...]
_NUMBERS = frozenset(("integer", "fraction"))


class _Expander(Protocol):
    def narrow(self) -> None: ...

    def of(self, place: Place) -> _Ways: ...

    def product(self, parts: Iterable[_Ways], place: Place) -> _Ways: ...

    def target(self, place: Place, keyword: str) -> Place: ...


def broken(expander: _Expander, place: Place) -> _Ways:
    """The ways to break a subschema, given as the place that stands for its negation.

    Raises:
        ConstraintRefused: none of them can be said.

    Pure, but for what the expander remembers.
    """
    known = {
        keyword: value
        for keyword, value in place.schema.items()
        if is_known(keyword, place.draft)
    }
    found: list[Facts] = []
    passed_over = None
    for keyword in known:
        if keyword in _SILENT or (keyword == "format" and known[keyword] not in FORMATS):
            continue
        rule = None if is_unclear(place, keyword) else _RULES.get(keyword)
        ways = rule(expander, place, known) if rule is not None else None
        if ways is None:
            passed_over = keyword
        else:
            found += ways
    if passed_over is not None:
        if not found:
            refuse(passed_over, place.path, "cannot be negated", "unsupported")
        expander.narrow()
    return tuple(found)


_SILENT = frozenset(("then", "else", "minContains", "maxContains"))
"""Said together with another keyword, or nothing by themselves."""


def is_unclear(place: Place, keyword: str) -> bool:
    """Whether validators that take the newest draft for granted do not know the keyword."""
    if place.draft is not Draft.OPEN:
        return False
    value = place.schema[keyword]
    if keyword == "items":
        return isinstance(value, list)
    if keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        return isinstance(value, bool)
    return keyword in ("dependencies", "additionalItems", "$recursiveRef")


def _only(*kinds: str, **facts: Any) -> list[Facts]:  # noqa: ANN401
    narrowed = Facts(types=frozenset(kinds), **facts).narrowed()
    return [] if narrowed is None else [narrowed]


def _type(_: _Expander, __: Place, known: dict[str, Any]) -> list[Facts]:
    others = frozenset(TYPES) - types_named(known["type"])
    return [Facts(types=others)] if others else []


def _values(expander: _Expander, __: Place, known: dict[str, Any]) -> list[Facts]:
    values = [*known.get("enum", ()), *([known["const"]] if "const" in known else [])]
    if "enum" in known and "const" in known:
        return [Facts(banned=tuple(known["enum"])), Facts(banned=(known["const"],))]
    simple = [one for one in values if type_of(one) not in ("array", "object")]
    if len(simple) < len(values):
        expander.narrow()
    types = frozenset(TYPES) - {type_of(one) for one in values if one not in simple}
    narrowed = Facts(types=types, banned=tuple(simple)).narrowed()
    return [] if narrowed is None else [narrowed]


def _bound(_: _Expander, __: Place, known: dict[str, Any]) -> list[Facts]:
    low, high = bounds(known)
    found = []
    if low is not None:
        found += _only(*_NUMBERS, high=(low[0], not low[1]))
    if high is not None:
        found += _only(*_NUMBERS, low=(high[0], not high[1]))
    return found


def _fewer(kind: str, least: str, most: str) -> Callable[..., list[Facts]]:
    def rule(_: _Expander, __: Place, known: dict[str, Any]) -> list[Facts]:
        found: list[Facts] = []
        if least in known and known[least] > 0:
            found += _only(kind, **{_FIELDS[most]: int(known[least]) - 1})
        if most in known:
            found += _only(kind, **{_FIELDS[least]: int(known[most]) + 1})
        return found

    return rule


_FIELDS = {
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_items",
    "maxItems": "max_items",
    "minProperties": "min_names",
    "maxProperties": "max_names",
}


def _text(_: _Expander, place: Place, known: dict[str, Any]) -> list[Facts]:
    texts = texts_of(place, known)
    return [fact for text in texts for fact in _only("string", unlike=(text,))]


def _required(_: _Expander, __: Place, known: dict[str, Any]) -> list[Facts]:
    names = known["required"]
    return [fact for name in names for fact in _only("object", absent=frozenset((name,)))]


def _properties(_: _Expander, place: Place, known: dict[str, Any]) -> list[Facts]:
    found = []
    for name in known["properties"]:
        inner = place.below("properties", name).negation()
        if inner.schema is True or inner.schema == {}:
            continue
        layer = NameLayer({name: inner}, is_silent=True)
        found += _only("object", required=(name,), layers=(layer,))
    return found


def _items(expander: _Expander, place: Place, known: dict[str, Any]) -> list[Facts]:
    layer = item_layer(place, known)
    found: list[Facts] = []
    if layer is None:
        return found
    for order, inner in enumerate(layer.first):
        broken_item = ItemLayer((*(_TRUE,) * order, inner.negation()), is_silent=True)
        found += _only("array", items=(broken_item,), min_items=order + 1)
    if layer.rest is not None and layer.first:
        expander.narrow()
    elif layer.rest is not None:
        found += _only("array", contained=((layer.rest.negation(), 1, None),))
    return found


_TRUE = Place("#true")


def _contains(_: _Expander, place: Place, known: dict[str, Any]) -> list[Facts]:
    inner, least, most = contained(place, known)[0]
    found: list[Facts] = []
    if least == 1:
        found += _only("array", items=(ItemLayer((), inner.negation(), is_silent=True),))
    elif least > 1:
        found += _only("array", contained=((inner, 0, least - 1),))
    if most is not None:
        found += _only("array", contained=((inner, most + 1, None),))
    return found


def _all_of(expander: _Expander, place: Place, known: dict[str, Any]) -> list[Facts]:
    orders = range(len(known["allOf"]))
    inner = [place.below("allOf", order).negation() for order in orders]
    return [fact for one in inner for fact in expander.of(one)]


def _none_of(keyword: str) -> Callable[..., list[Facts]]:
    def rule(expander: _Expander, place: Place, known: dict[str, Any]) -> list[Facts]:
        orders = range(len(known[keyword]))
        inner = [expander.of(place.below(keyword, order).negation()) for order in orders]
        return list(expander.product(inner, place))

    return rule


def _one_of(expander: _Expander, place: Place, known: dict[str, Any]) -> list[Facts]:
    if len(known["oneOf"]) > 1:
        expander.narrow()  # values of two branches are left out
    return _none_of("oneOf")(expander, place, known)


def _not(expander: _Expander, place: Place, _: dict[str, Any]) -> list[Facts]:
    return list(expander.of(place.below("not")))


def _if(expander: _Expander, place: Place, known: dict[str, Any]) -> list[Facts]:
    condition = place.below("if")
    found: list[Facts] = []
    for keyword, side in (("then", condition), ("else", condition.negation())):
        if keyword in known:
            inner = expander.of(place.below(keyword).negation())
            found += expander.product((expander.of(side), inner), place)
    return found


def _dependent(keyword: str) -> Callable[..., list[Facts]]:
    def rule(expander: _Expander, place: Place, known: dict[str, Any]) -> list[Facts]:
        found: list[Facts] = []
        for name, value in known[keyword].items():
            names = [value] if isinstance(value, str) else value
            wanted = _only("object", required=(name,))
            if isinstance(names, list):
                for other in names:
                    absent = frozenset((other,))
                    found += _only("object", required=(name,), absent=absent)
            else:
                inner = expander.of(place.below(keyword, name).negation())
                found += expander.product((tuple(wanted), inner), place)
        return found

    return rule


def _reference(keyword: str) -> Callable[..., list[Facts]]:
    def rule(expander: _Expander, place: Place, _: dict[str, Any]) -> list[Facts]:
        return list(expander.of(expander.target(place, keyword).negation()))

    return rule


_RULES: dict[str, Callable[..., list[Facts]]] = {
    "type": _type,
    "enum": _values,
    "const": _values,
    "minimum": _bound,
    "maximum": _bound,
    "exclusiveMinimum": _bound,
    "exclusiveMaximum": _bound,
    "minLength": _fewer("string", "minLength", "maxLength"),
    "maxLength": _fewer("string", "minLength", "maxLength"),
    "pattern": _text,
    "format": _text,
    "minItems": _fewer("array", "minItems", "maxItems"),
    "maxItems": _fewer("array", "minItems", "maxItems"),
    "minProperties": _fewer("object", "minProperties", "maxProperties"),
    "maxProperties": _fewer("object", "minProperties", "maxProperties"),
    "required": _required,
    "properties": _properties,
    "items": _items,
    "prefixItems": _items,
    "contains": _contains,
    "allOf": _all_of,
    "anyOf": _none_of("anyOf"),
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "dependencies": _dependent("dependencies"),
    "dependentRequired": _dependent("dependentRequired"),
    "dependentSchemas": _dependent("dependentSchemas"),
    **{keyword: _reference(keyword) for keyword in ("$ref", "$recursiveRef", "$dynamicRef")},
}

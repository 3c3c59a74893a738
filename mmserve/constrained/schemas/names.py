"""The names an object's properties may have: listed ones, patterns, and all others.

properties a, b; patternProperties ^x-; additionalProperties S
->  named {a, b}   patterns [^x-]   rest S
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from mmserve.constrained.schemas.document import Place
from mmserve.constrained.schemas.expand import NOTHING, Expander, child
from mmserve.constrained.schemas.facts import Conj, Facts, join
from mmserve.constrained.schemas.matching import is_unsure
from mmserve.constrained.schemas.refusal import refuse
from mmserve.constrained.schemas.texts import (
    are_disjoint,
    listed_names,
    other_names,
    plain_names,
)

__all__ = ["NameClasses", "name_classes"]

_MAX_COUNT = 1_000


@dataclass(frozen=True, slots=True)
class NameClasses:
    """What the values of an object's properties must satisfy; None: no such property."""

    named: dict[str, Conj | None]
    patterns: tuple[tuple[str, Conj], ...]
    rest: Conj | None


def name_classes(
    facts: Facts, is_name: Callable[[str], bool], expander: Expander
) -> NameClasses:
    """Sorts the names of an object into listed ones, patterns and others.

    Args:
        facts: an alternative with objects.
        is_name: whether `propertyNames` lets a name through.
        expander: of the same document.

    Raises:
        ConstraintRefused: `propertyNames` says what names cannot be held to.
    """
    listed = [name for layer in facts.layers for name in layer.named]
    names = dict.fromkeys([*listed, *facts.required, *sorted(facts.absent)])
    patterns: dict[str, str] = {}
    for layer in facts.layers:
        patterns |= {pattern: written for written, pattern, _ in layer.patterns}
    settled = expander.settled
    unsure: list[str] = []
    for pattern, written in list(patterns.items()):
        few = listed_names(written)
        if few:
            names |= dict.fromkeys(few)
            unsure += [f"{name}\n" for name in few]
            del patterns[pattern]
    rest: Conj | None = settled(join(*(layer.rest for layer in facts.layers)))
    if len(patterns) > 1 or (patterns and not _is_false(rest)):
        classes = _agreed(facts, patterns, expander)
    else:
        classes = [(one, settled(_matching(facts, one))) for one in patterns]
    if facts.names:
        banned, texts, values = _name_facts(facts, expander)
        if values is not None:
            names |= dict.fromkeys(values)
            classes, rest = [], None
        else:
            names |= dict.fromkeys(banned)
            if texts is not None:
                if classes:
                    path = facts.paths.get("propertyNames", "")
                    what = "cannot be enforced beside patternProperties"
                    refuse("propertyNames", path, what, "unsupported")
                classes, rest = [(texts, rest or ())], None
    named: dict[str, Conj | None] = {
        name: settled(child(facts, name)) if not facts.names or is_name(name) else None
        for name in names
        if name not in facts.absent
    }
    named |= dict.fromkeys((*facts.absent, *unsure))
    return NameClasses(named, tuple(classes), rest)


def _is_false(places: Conj | None) -> bool:
    return any(place.schema is False for place in places or ())


def _agreed(
    facts: Facts, patterns: dict[str, str], expander: Expander
) -> list[tuple[str, Conj]]:
    """Classes of names that all validators put into the same one, and one for no others."""
    is_ascii = any(map(is_unsure, patterns.values()))
    found = []
    for pattern, written in patterns.items():
        narrowed = plain_names(written, is_ascii=is_ascii)
        if narrowed is not None:
            found.append((narrowed, expander.settled(_matching(facts, pattern))))
    grouped = _grouped(found)
    for (one, _), (two, _) in itertools.combinations(grouped, 2):
        if not are_disjoint((one, two)):
            path = facts.paths.get("patternProperties", "")
            refuse("patternProperties", path, "has patterns that overlap", "unsupported")
    return [*grouped, (other_names(is_ascii=is_ascii), NOTHING)]


def _grouped(classes: list[tuple[str, Conj]]) -> list[tuple[str, Conj]]:
    """Patterns whose values must satisfy the same as one."""
    found: dict[Conj, str] = {}
    for pattern, places in classes:
        found[places] = f"(?:{found[places]})|(?:{pattern})" if places in found else pattern
    return [(pattern, places) for places, pattern in found.items()]


def _matching(facts: Facts, pattern: str) -> Conj:
    parts: list[Place | None] = []
    for layer in facts.layers:
        found = [place for _, other, place in layer.patterns if other == pattern]
        parts += found or [layer.rest]
    return join(*parts)


def _name_facts(
    facts: Facts, expander: Expander
) -> tuple[tuple[str, ...], str | None, tuple[str, ...] | None]:
    """Names that are out, a pattern that all others must match, or all names there are."""
    ways = [way for way in expander.together(facts.names) if "string" in way.types]
    path = facts.paths.get("propertyNames", "")
    if all(way.values is not None for way in ways):
        return (), None, tuple(one for way in ways for one in way.values or () if _is_text(one))
    if len(ways) > 1:
        refuse("propertyNames", path, "has too many alternatives", "unsupported")
    way = ways[0]
    banned = tuple(one for one in way.banned if isinstance(one, str))
    texts = [text.pattern for text in way.texts]
    if way.min_length or way.max_length is not None:
        most = "" if way.max_length is None else min(way.max_length, _MAX_COUNT)
        texts.append(f"(?s:.{{{min(way.min_length, _MAX_COUNT)},{most}}})")
    if len(texts) > 1:
        refuse("propertyNames", path, "says more than can be enforced at once", "unsupported")
    return banned, texts[0] if texts else None, None


def _is_text(value: object) -> bool:
    return isinstance(value, str)

"""A schema as a document: its places, the URIs they carry, and what references name.

#/properties/a   a place: the subschema there, its draft and its base URI
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from mmserve.constrained.schemas.dialects import Draft, draft_of
from mmserve.constrained.schemas.refusal import refuse

__all__ = ["Document", "Place"]

_VALUES = frozenset(("enum", "const", "default", "examples", "example"))


@dataclass(frozen=True, slots=True)
class Place:
    """A subschema where it stands; negated if values must not satisfy it."""

    path: str
    is_negated: bool = False
    schema: Any = field(default=True, compare=False)
    draft: Draft = field(default=Draft.OPEN, compare=False)
    base: str = field(default="", compare=False)

    def negation(self) -> Place:
        """The same place, the other way round. Pure."""
        return replace(self, is_negated=not self.is_negated)

    def below(self, *steps: str | int) -> Place:
        """The subschema below; never negated. Pure."""
        found = self
        for step in steps:
            key = str(step)
            inner = found.schema[int(key) if isinstance(found.schema, list) else key]
            found = _place(inner, f"{found.path}/{_escaped(key)}", found.draft, found.base)
        return found


class Document:
    """All of one schema. Never changes after it was made."""

    def __init__(self, schema: Any) -> None:  # noqa: ANN401 - parsed JSON
        self.root = _place(schema, "#", Draft.OPEN, "")
        self._resources: dict[str, Place] = {"": self.root}
        self._anchors: dict[str, Place] = {}
        self._num_dynamic: dict[str, int] = {}
        for place in _walk(self.root):
            self._register(place)

    def _register(self, place: Place) -> None:
        identifier = _identifier(place.schema, place.draft)
        if identifier is not None:
            if identifier.startswith("#"):
                self._anchors.setdefault(place.base + identifier, place)
            else:
                self._resources.setdefault(place.base, place)
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = place.schema.get(keyword)
            if isinstance(name, str):
                self._anchors.setdefault(f"{place.base}#{name}", place)
                if keyword == "$dynamicAnchor":
                    self._num_dynamic[name] = self._num_dynamic.get(name, 0) + 1
        if place.schema.get("$recursiveAnchor") is True:
            self._num_dynamic[""] = self._num_dynamic.get("", 0) + 1

    def follow(self, place: Place, keyword: str) -> Place:
        """What a reference names.

        Raises:
            ConstraintRefused: it names nothing in the document, or what it names depends on
                the way there.

        Pure.
        """
        reference = place.schema[keyword]
        whole = reference if reference.startswith("#") else urljoin(place.base, reference)
        uri, fragment = urldefrag(whole)
        uri, fragment = uri or place.base, unquote(fragment)
        if keyword != "$ref" and self._num_dynamic.get(fragment, 0) > 1:
            refuse(keyword, place.path, "may name more than one place", "unsupported")
        resource = self._resources.get(uri)
        if resource is None:
            what = f"names {reference[:80]!r}, which is not in the schema"
            refuse(keyword, place.path, what, "reference")
        found = (
            self._anchors.get(f"{uri}#{fragment}")
            if fragment and not fragment.startswith("/")
            else _pointed(resource, fragment)
        )
        if found is None:
            what = f"names {reference[:80]!r}, which is not there"
            refuse(keyword, place.path, what, "reference")
        return found


def _place(schema: Any, path: str, draft: Draft, base: str) -> Place:  # noqa: ANN401
    if isinstance(schema, Mapping):
        draft = draft_of(schema.get("$schema")) or draft
        identifier = _identifier(schema, draft)
        if identifier is not None and not identifier.startswith("#"):
            base = urldefrag(urljoin(base, identifier)).url
    return Place(path, schema=schema, draft=draft, base=base)


def _identifier(schema: Mapping[str, Any], draft: Draft) -> str | None:
    if draft <= Draft.D7 and "$ref" in schema:
        return None
    found = schema.get("id" if draft is Draft.D4 else "$id")
    return found if isinstance(found, str) and found else None


def _walk(place: Place) -> Iterator[Place]:
    """Every object of the document that may be a subschema, values left out."""
    stack = [place]
    while stack:
        found = stack.pop()
        if isinstance(found.schema, Mapping):
            yield found
            stack += [found.below(key) for key in found.schema if key not in _VALUES]
        elif isinstance(found.schema, list):
            stack += [found.below(order) for order in range(len(found.schema))]


def _pointed(place: Place, pointer: str) -> Place | None:
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        inner = place.schema
        if isinstance(inner, Mapping):
            if key not in inner:
                return None
        elif not (isinstance(inner, list) and key.isdecimal() and int(key) < len(inner)):
            return None
        place = place.below(key)
    return place if isinstance(place.schema, Mapping | bool) else None


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")

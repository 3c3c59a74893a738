"""Whether a JSON Schema has a value that ends: references must not only lead in circles.

{"$ref": "#"}                                     no value
{"required": ["a"], "properties": {"a": loop}}    only endless ones, if nothing else may come
{"properties": {"kids": loop}}                    fine: leave the kids out
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

__all__ = ["has_finite_value"]

_MAX_VISITS = 20_000


def has_finite_value(schema: Any) -> bool:  # noqa: ANN401 - parsed JSON
    """False only if every value of the schema would have to be endless. Pure."""
    return _Search(schema).holds(schema, frozenset())


class _Search:
    """Looks for a value depth first; a reference already on the path cannot help to end it."""

    def __init__(self, root: Any) -> None:  # noqa: ANN401
        self._root = root
        self._num_visits = 0
        self._good: set[str] = set()

    def holds(self, schema: Any, path: frozenset[str]) -> bool:  # noqa: ANN401
        self._num_visits += 1
        if not isinstance(schema, Mapping) or self._num_visits > _MAX_VISITS:
            return schema is not False
        wanted = [*schema.get("allOf", ())]
        choices = [schema[keyword] for keyword in ("anyOf", "oneOf") if keyword in schema]
        if (
            ("$ref" in schema and not self._follow(schema["$ref"], path))
            or not all(self.holds(one, path) for one in wanted)
            or not all(any(self.holds(one, path) for one in some) for some in choices)
        ):
            return False
        if "const" in schema or "enum" in schema:
            return True
        types = schema.get("type", "null")
        return any(
            self._has_type(schema, kind, path)
            for kind in ([types] if isinstance(types, str) else types)
        )

    def _has_type(self, schema: Mapping[str, Any], kind: str, path: frozenset[str]) -> bool:
        if kind == "object":
            known = schema.get("properties", {})
            other = schema.get("additionalProperties", True)
            if "patternProperties" in schema:
                other = True
            names = schema.get("required", ())
            return all(self.holds(known.get(name, other), path) for name in names)
        if kind == "array":
            first = schema.get("prefixItems", [])
            num_items = int(schema.get("minItems", 0))
            more = [schema.get("items", True)] if num_items > len(first) else []
            return all(self.holds(one, path) for one in [*first[:num_items], *more])
        return True

    def _follow(self, reference: str, path: frozenset[str]) -> bool:
        if reference in self._good:
            return True
        if reference in path:
            return False
        is_good = self.holds(self._target(reference), path | {reference})
        if is_good:
            self._good.add(reference)
        return is_good

    def _target(self, reference: str) -> Any:  # noqa: ANN401
        """What a pointer names; anything if it names nothing (the compiler will say so)."""
        found = self._root
        for step in unquote(reference).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                return True
        return found

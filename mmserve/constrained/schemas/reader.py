"""From the text of a JSON Schema to the text of the plain schema that is enforced."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from mmserve.constrained.schemas.document import Document
from mmserve.constrained.schemas.graph import Graph
from mmserve.constrained.schemas.refusal import refuse
from mmserve.constrained.schemas.uniques import Position, find_uniques
from mmserve.constrained.schemas.write import write_schema
from mmserve.core import ConstraintRefused

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

__all__ = ["JSON_OPTIONS", "PlainSchema", "read_schema"]

JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": False,
    "json_allowed_escapes": 'nrbtf\\"',
}
"""How llguidance writes JSON: compactly, each text in one way only, so that no escaped name
passes for another."""


@dataclass(frozen=True, slots=True)
class PlainSchema:
    """What is to be enforced: by a grammar, and where items of arrays must differ."""

    text: str
    uniques: tuple[Position, ...]


def read_schema(text: str) -> PlainSchema:
    """The schema as JSON text of a plain one, and what no grammar can say.

    Raises:
        ConstraintRefused: not JSON, not a schema, with a keyword that cannot be enforced, or
            nothing satisfies it; fields: keyword or position, path, reason.

    Pure. Cost: about a millisecond for each thousand characters.
    """
    try:
        schema = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        return _read(schema)
    except json.JSONDecodeError as error:
        raise ConstraintRefused(
            f"the JSON schema is not JSON: {error}",
            field="json_schema",
            reason="syntax",
            position=error.pos,
        ) from None
    except RecursionError:
        refuse("$schema", "", "is nested too deeply", "too_large")


def _read(schema: Any) -> PlainSchema:  # noqa: ANN401 - parsed JSON
    if schema is False:
        refuse("false", "", "allows no value at all", "unsatisfiable")
    if schema is not True and not isinstance(schema, Mapping):
        refuse("$schema", "", "must be an object or a boolean", "type")
    document = Document(schema)
    graph = Graph(document)
    if not graph.is_alive(graph.root):
        if graph.expander.num_narrowings:
            refuse("not", "#", "leaves no value that can be enforced", "unsupported")
        refuse("$schema", "#", "no value that ends satisfies it", "unsatisfiable")
    plain = write_schema(graph)
    text = json.dumps(plain, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        refuse("$schema", "", "holds half of a surrogate pair", "surrogate")
    return PlainSchema(text, find_uniques(graph))


def _refuse_constant(name: str) -> NoReturn:
    refuse(name, "", "is not JSON", "syntax")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        refuse(text, "", "is too large for a number", "inexact")
    return number

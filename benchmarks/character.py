"""A character record, as a regex and as a JSON schema of the same values; requests for it.

    {                                                  {"name":"Ada Stone",
        "name": "Ada Stone",                            "house":"Otter",
        "house": "Otter",          by regex             "age":31, ...}        by schema
        ...                        (indented)                                 (compact)

Both are made from one table of fields, so a record of either form is valid under the schema.
The kind of workload is that of the SGLang paper (2024), section 4: fixed keys, short values.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema

from mmserve.core import (
    BytesSource,
    Constraint,
    ImagePart,
    Request,
    SamplingParams,
    TextPart,
    Turn,
)
from mmserve.testing import TEST_SEEDS, scene

__all__ = ["CONSTRAINTS", "NAMES", "REGEX", "SCHEMA", "is_valid", "requests"]

_MAX_TOKENS = 500
_TEXT = r"[\w ]{1,16}"

NAMES = (
    "Ada Stone",
    "Bram Holloway",
    "Cora Finch",
    "Dorian Vale",
    "Edda Marsh",
    "Felix Thorne",
    "Greta Lowe",
    "Hugo Winter",
    "Ines Calder",
    "Jonas Reed",
    "Kaja Brook",
    "Leo Ashdown",
    "Mira Kestrel",
    "Nils Harrow",
    "Olga Penrose",
    "Piet Sandler",
)


@dataclass(frozen=True, slots=True)
class _Field:
    """A key, its value as a pattern and as a schema; or the fields of a record inside."""

    key: str
    pattern: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    inside: tuple[_Field, ...] = ()


def _text(key: str) -> _Field:
    return _Field(key, f'"{_TEXT}"', {"type": "string", "pattern": f"^{_TEXT}$"})


def _one_of(key: str, *options: str) -> _Field:
    return _Field(key, f'"({"|".join(options)})"', {"enum": list(options)})


def _number(key: str) -> _Field:
    return _Field(key, "[1-9][0-9]?", {"type": "integer", "minimum": 1, "maximum": 99})


_FIELDS = (
    _text("name"),
    _one_of("house", "Gull", "Heron", "Otter", "Seal"),
    _number("age"),
    _one_of("occupation", "fisher", "baker", "teacher", "smith", "keeper of the lamp"),
    _Field("boat", inside=(_text("wood"), _text("sail"), _number("length"))),
    _Field("alive", "(true|false)", {"type": "boolean"}),
    _text("greatest fear"),
    _text("secret wish"),
)


def _regex_of(fields: Sequence[_Field], indent: str = "") -> str:
    inner = indent + "    "
    lines = [
        f'{inner}"{one.key}": {_regex_of(one.inside, inner) if one.inside else one.pattern}'
        for one in fields
    ]
    body = ",\\n".join(lines)
    return rf"\{{\n{body}\n{indent}\}}"


def _schema_of(fields: Sequence[_Field]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            one.key: _schema_of(one.inside) if one.inside else dict(one.schema)
            for one in fields
        },
        "required": [one.key for one in fields],
        "additionalProperties": False,
    }


REGEX = _regex_of(_FIELDS)
SCHEMA = _schema_of(_FIELDS)
CONSTRAINTS = {
    "regex": Constraint("regex", REGEX),
    "schema": Constraint("json_schema", json.dumps(SCHEMA)),
}


def is_valid(kind: str, text: str) -> bool:
    """Whether an answer is a record, and of the regex if it was asked for by that. Pure."""
    if kind == "regex" and re.fullmatch(REGEX, text) is None:
        return False
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def requests(kind: str, count: int, *, has_picture: bool) -> list[Request]:
    """One request a character, greedy; each with a picture of its own in front, or none.

    Pure. Cost: about 15 ms a picture.
    """
    sampling = SamplingParams(
        max_new_tokens=_MAX_TOKENS, temperature=0.0, constraint=CONSTRAINTS[kind]
    )
    made = []
    for number in range(count):
        name = NAMES[number % len(NAMES)]
        text = TextPart(
            f"{name} is a character of a story about a harbour town. "
            "Please fill in the following information about this character."
        )
        picture = (ImagePart(BytesSource(_picture(number))),) if has_picture else ()
        turns = (Turn("user", (*picture, text)), Turn("assistant", (), is_open=True))
        made.append(Request(request_id=str(number), parts=turns, sampling=sampling))
    return made


def _picture(number: int) -> bytes:
    buffer = io.BytesIO()
    scene(TEST_SEEDS[number]).image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()

"""Sampling parameters from JSON, derived from `core.SamplingParams`: names, types and ranges.

core field  ->  wire name (a surface may rename it)  ->  check made from type and metadata
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from mmserve.core import (
    BadRequest,
    Constraint,
    ConstraintKind,
    ConstraintRefused,
    ModelInfo,
    SamplingParams,
    check_sampling,
)
from mmserve.server.fields import (
    Body,
    Check,
    boolean,
    integer,
    integers,
    list_of,
    number,
    shown,
    text,
    text_or_texts,
    word,
    wrong,
)

__all__ = [
    "NATIVE_NAMES",
    "OPENAI_NAMES",
    "AskedForm",
    "build_sampling",
    "take_form",
    "take_json_schema",
    "take_named_schema",
    "take_openai_constraint",
    "take_sampling",
    "take_text_constraint",
]

OPENAI_NAMES: Mapping[str, str] = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_patterns": "stop_regex",
}
"""Core names that OpenAI's surfaces spell otherwise."""

NATIVE_NAMES: Mapping[str, str] = {"seed": "sampling_seed", "stop_patterns": "stop_regex"}
"""Core names that the native surface spells otherwise."""

_SET_BY_SURFACES = frozenset(
    {"constraint", "return_logprobs", "top_logprobs", "prompt_logprobs_from"}
)
_DECIMAL = re.compile(r"-?[0-9]{1,10}")


def _bias(value: object, name: str) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, dict):
        raise wrong(name, value, "an object of token ids and numbers")
    pairs = []
    for key, amount in value.items():
        if not _DECIMAL.fullmatch(key):
            message = f"{name} has the key {shown(key)}, allowed are decimal token ids"
            raise BadRequest(message, field=name, reason="token_id")
        pairs.append((int(key), number(-100, 100)(amount, name)))
    if len({token_id for token_id, _ in pairs}) < len(pairs):
        raise BadRequest(f"{name} names a token twice", field=name, reason="token_id")
    return tuple(pairs)


def _patterns(value: object, name: str) -> tuple[str, ...]:
    """Stop patterns; an empty one counts as absent."""
    return tuple(pattern for pattern in text_or_texts(value, name) if pattern)


def _checks() -> dict[str, Check[Any]]:
    checks: dict[str, Check[Any]] = {
        "stop": text_or_texts,
        "stop_patterns": _patterns,
        "stop_token_ids": integers(-(2**31), 2**31),
        "logit_bias": _bias,
        "seed": integer(-(2**63), 2**64 - 1),
    }
    hints = get_type_hints(SamplingParams)
    for spec in fields(SamplingParams):
        if spec.name in checks or spec.name in _SET_BY_SURFACES:
            continue
        if hints[spec.name] is bool:
            checks[spec.name] = boolean
        elif hints[spec.name] is float:
            checks[spec.name] = number(spec.metadata["low"], spec.metadata["high"])
        else:
            checks[spec.name] = integer(spec.metadata["low"], spec.metadata["high"])
    return checks


_CHECKS = _checks()


def take_sampling(body: Body, names: Mapping[str, str]) -> dict[str, Any]:
    """Values that `body` gives, by core name. Changes: the fields count as known."""
    found = {}
    for core_name, check in _CHECKS.items():
        value = body.take(names.get(core_name, core_name), check, None)
        if value is not None:
            found[core_name] = value
    return found


def build_sampling(
    values: Mapping[str, Any], names: Mapping[str, str], model: ModelInfo
) -> SamplingParams:
    """Checked parameters; a refusal names the field as the surface spells it. Pure."""
    params = SamplingParams(**values)
    try:
        check_sampling(params, model.vocab_size)
    except BadRequest as error:
        core_name = error.param or ""
        wire_name = names.get(core_name, core_name)
        message = " ".join(names.get(word, word) for word in error.message.split(" "))
        raise BadRequest(
            message, hint=error.hint, **{**error.fields, "field": wire_name}
        ) from None
    return params


def take_json_schema(value: object, name: str) -> str:
    """A JSON schema as text, given as text or as a value. Pure."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict | bool):
        raise wrong(name, value, "a JSON schema, as an object or as text")
    return json.dumps(value, ensure_ascii=False)


def take_text_constraint(body: Body) -> Constraint | None:
    """The one of `regex`, `choices`, `json_schema`, `ebnf` that is given; "" counts as absent.

    Changes: the fields count as known. Raises BadRequest for two at once.
    """
    values: dict[ConstraintKind, str] = {
        "regex": body.take("regex", text, ""),
        "choices": body.take("choices", _choices, ""),
        "json_schema": body.take("json_schema", take_json_schema, ""),
        "ebnf": body.take("ebnf", text, ""),
    }
    return _only(
        body, {kind: Constraint(kind, value) for kind, value in values.items() if value}
    )


@dataclass(frozen=True, slots=True)
class AskedForm:
    """A constraint and the field that it came from.

    `sent` is the schema that the client sent, if the constraint is one made from it.
    """

    field: str
    constraint: Constraint
    sent: str = ""

    def refusal(self, error: ConstraintRefused) -> ConstraintRefused:
        """The engine's refusal by the name of the field. Pure."""
        fields = {**error.fields, "field": self.field}
        return ConstraintRefused(error.message, hint=error.hint, **fields)


def take_openai_constraint(body: Body) -> AskedForm | None:
    """The constraint among `response_format`, `regex`, `choices`, `ebnf`, `json_schema`.

    Changes: the fields count as known. Raises BadRequest for two at once.
    """
    shaped = body.take("response_format", _response_format, None)
    return take_form(body, {} if shaped is None else {"response_format": shaped})


def take_form(body: Body, shaped: Mapping[str, Constraint]) -> AskedForm | None:
    """The constraint that `shaped` has by its field, or that `regex` and the like ask for.

    Changes: the fields count as known. Raises BadRequest for two at once.
    """
    found = dict(shaped)
    readers: dict[ConstraintKind, Check[str]] = {
        "regex": text,
        "choices": _choices,
        "ebnf": text,
        "json_schema": take_json_schema,
    }
    for kind, reader in readers.items():
        value = body.take(kind, reader, None)
        if value is not None:
            found[kind] = Constraint(kind, value)
    constraint = _only(body, found)
    return None if constraint is None else AskedForm(body.name(next(iter(found))), constraint)


def _choices(value: object, name: str) -> str:
    options = list_of(text, most=10_000)(value, name)
    if not options:
        raise wrong(name, value, "a list of at least one text")
    return json.dumps(options, ensure_ascii=False)


def _only(body: Body, found: Mapping[str, Constraint]) -> Constraint | None:
    names = list(found)
    if len(names) > 1:
        message = f"{' and '.join(names)} are given, one answer takes one constraint"
        raise BadRequest(message, field=body.name(names[1]), reason="conflict")
    return found[names[0]] if names else None


def _response_format(value: object, name: str) -> Constraint | None:
    body = Body(value, name)
    kind = body.need("type", word("text", "json_object", "json_schema"))
    constraint: Constraint | None = None
    if kind == "json_object":
        constraint = Constraint("json_object", "")
    elif kind == "json_schema":
        constraint = Constraint("json_schema", body.need("json_schema", _named_schema))
    body.finish()
    return constraint


def _named_schema(value: object, name: str) -> str:
    body = Body(value, name)
    schema = take_named_schema(body)
    body.finish()
    return schema


def take_named_schema(body: Body) -> str:
    """A schema beside its name, description and `strict`, as text.

    Changes: the fields count as known.
    """
    body.take("name", text, None)
    body.take("description", text, None)
    body.take("strict", boolean, None)
    return body.need("schema", _schema_object)


def _schema_object(value: object, name: str) -> str:
    if not isinstance(value, dict | bool):
        raise wrong(name, value, "a JSON schema object")
    return json.dumps(value, ensure_ascii=False)

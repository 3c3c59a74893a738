"""Random schemas: refused with a reason, or all answers that end are valid."""

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan.constrained.sampling import matcher
from plan.constrained.schema_answers import assert_valid

from mmserve.core import ConstraintRefused

NAMES = ("a", "b", "x-1", "é", 'q"')
PATTERNS = ("^a", "b$", "^[a-z]+$", "[0-9]", "^x-", ".", "^$", r"^\w{2}$", "^(a|b)+$")
TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
DRAFTS = (
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)
REASONS = {"unsupported", "unsatisfiable", "inexact", "too_large", "reference", "invalid"}

scalars = st.sampled_from([None, True, False, 0, 1, -1, 2.5, 10, "", "a", "ab", "é", "x-1"])
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    ),
    max_leaves=3,
)
counts = st.integers(0, 3)
bounds = st.sampled_from([0, 1, -1, 2.5, 0.5, -7, 10, 1000])


def one_keyword(inner):
    """A schema of one keyword, or of some that belong together."""
    many = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=2)
    some_names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
    by_pattern = st.dictionaries(st.sampled_from(PATTERNS), inner, min_size=1, max_size=2)
    keywords = {
        "enum": st.lists(values, min_size=1, max_size=4),
        "const": values,
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), counts),
        **dict.fromkeys(("minProperties", "maxProperties"), st.integers(0, 2)),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), bounds),
        "multipleOf": st.sampled_from([1, 2, 5, 0.5, 0.25, 1.5]),
        "pattern": st.sampled_from(PATTERNS),
        "format": st.sampled_from(["date", "email", "ipv4", "uuid", "unheard-of"]),
        "required": some_names,
        "properties": named,
        "patternProperties": by_pattern,
        "additionalProperties": inner,
        "propertyNames": inner | st.fixed_dictionaries({"pattern": st.sampled_from(PATTERNS)}),
        "items": inner,
        "prefixItems": many,
        "contains": inner,
        "uniqueItems": st.booleans(),
        **dict.fromkeys(("anyOf", "oneOf", "allOf"), many),
        "not": inner,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), some_names, max_size=2),
        "dependentSchemas": named,
        **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), inner),
        "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
    }
    single = [st.fixed_dictionaries({name: rule}) for name, rule in keywords.items()]
    choice = st.fixed_dictionaries({"if": inner, "then": inner, "else": inner})
    return st.one_of(*single, choice)


def schema_of(inner):
    """A schema of a few keywords, most often with a type."""
    typed = st.fixed_dictionaries({"type": st.sampled_from(TYPES)}) | st.just({})
    parts = st.lists(one_keyword(inner), min_size=1, max_size=3)
    return st.builds(
        lambda kind, parts: {key: one for part in (kind, *parts) for key, one in part.items()},
        typed,
        parts,
    )


leaves = st.booleans() | st.fixed_dictionaries({"type": st.sampled_from(TYPES)})
schemas = schema_of(st.recursive(leaves, schema_of, max_leaves=4))


@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(schema=schemas, one=schemas, two=schemas, draft=st.sampled_from(DRAFTS))
def test_accepted_is_enforced(schema, one, two, draft):
    """No mixture of keywords is let through without being enforced."""
    whole = {**schema, "$schema": draft, "$defs": {"one": one, "two": two}}
    try:
        matcher("json_schema", whole)
    except ConstraintRefused as error:
        assert error.fields["reason"] in REASONS
        return
    try:
        assert_valid(whole, seed=1, num_answers=2)
    except (RecursionError, jsonschema.exceptions._WrappedReferencingError):
        pytest.skip("the validator itself goes in circles")

"""`/openapi.json` is complete and true: routes, fields, errors and keys.

To describe a surface, give it a `SURFACE` and put bodies that touch all its fields in `BODIES`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.echo_client import EchoClient

from mmserve.core import ServerConfig
from mmserve.server import STATUS, create_app
from mmserve.server.admin import ADMIN_PATHS
from mmserve.server.describe.document import shown_path
from mmserve.server.describe.schema import Schema
from mmserve.server.errors import ANSWERS, is_anthropic
from mmserve.server.fields import Body
from mmserve.server.guard import OPEN_PATHS
from mmserve.server.page.files import page_types

APP = create_app(EchoClient(), ServerConfig())
DOCUMENT = APP.openapi()
UPLOADED = "file-of-the-test"
PNG = "data:image/png;base64,QUFB"
SAID = {"role": "user", "content": "x"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}
PARTS = [
    {"type": "text", "text": "x"},
    {"type": "image_url", "image_url": PNG},
    {"type": "image_url", "image_url": {"url": PNG}},
    {"type": "input_image", "image_url": PNG},
    {"type": "input_image", "file_id": UPLOADED},
    {"type": "image", "source": {"type": "url", "url": PNG}},
    {"type": "image", "source": {"type": "file", "file_id": UPLOADED}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUFB"}},
    {"type": "video_url", "video_url": {"url": PNG}},
]
MARK = {"cache_control": {"type": "ephemeral"}}
BLOCKS = [
    {"type": "text", "text": "x", **MARK},
    {"type": "image_url", "image_url": {"url": PNG}, **MARK},
    *({**part, **MARK} for part in PARTS if part["type"] in ("image", "video_url")),
]
USED = {"type": "tool_use", "id": "t", "name": "f", "input": {}, **MARK}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": BLOCKS, **MARK}
ASKED = {
    "system": [BLOCKS[0]],
    "messages": [
        {"role": "user", "content": BLOCKS},
        {"role": "assistant", "content": [BLOCKS[0], USED]},
        {"role": "user", "content": [RESULT]},
    ],
    "tools": [{"name": "f", "input_schema": {}, **MARK}],
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "disabled"},
    **MARK,
}
SHAPED = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
FUNCTION = {"type": "function", "name": "f"}
SPOKEN = {"type": "output_text", "text": "x"}
ITEM_CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
ITEM_RESULT = {"type": "function_call_output", "call_id": "c", "output": [*PARTS, SPOKEN]}
TALK = [
    {"role": "user", "content": PARTS},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "x"},
]
QUESTIONS = [
    {"type": "yes_no"},
    {"type": "choice", "choices": ["a", "b"]},
    {"type": "score", "min": 1, "max": 2},
    {"type": "score", "labels": [{"label": "a", "value": 1}, {"label": "b", "value": 2}]},
]
FORM = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
ITEMS = [{"image": {"url": "QUFB"}}, {"video": {"url": "QUFB"}}]

BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": [SAID], "stream": True, "stream_options": {}},
        {"messages": [{"role": "user", "content": PARTS}], "response_format": FORM},
        {
            "messages": [
                SAID,
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c", "content": "x"},
            ],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
    ],
    "/v1/completions": [
        {"prompt": "x", "stream": True, "stream_options": {}},
        {"prompt": [1, 2], "response_format": FORM},
    ],
    "/v1/responses": [
        {"input": "x", "stream": True, "stream_options": {}},
        {
            "input": [
                {"role": "user", "content": PARTS},
                {"role": "assistant", "content": [SPOKEN]},
                ITEM_CALL,
                ITEM_RESULT,
            ],
            "tools": [FUNCTION],
            "tool_choice": FUNCTION,
        },
        {
            "input": "x",
            "tools": [FUNCTION],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION]},
        },
        {"input": "x", "text": {"format": {"type": "json_schema", "schema": {}}}},
    ],
    "/v1/messages": [
        {**ASKED, "max_tokens": 9},
        {
            "messages": [SAID],
            "max_tokens": 9,
            "metadata": {},
            "output_config": SHAPED,
        },
    ],
    "/v1/messages/count_tokens": [ASKED, {"messages": [SAID], "output_config": SHAPED}],
    "/v1/systemone": [
        {"state": PARTS, "questions": QUESTIONS},
        {"state": TALK, "questions": QUESTIONS},
        {"messages": TALK, "questions": QUESTIONS},
    ],
    "/generate": [
        {"text": "x", "sampling_params": {}},
        {"text": ["x"], "sampling_params": [{}]},
        {
            "input_ids": [258, 258],
            "image_data": [{"url": "QUFB"}, {"url": "QUFB"}],
        },
        {"input_ids": [258], "video_data": [{"url": "QUFB"}]},
        {
            "parts": [
                {"role": "user", "parts": [{"text": "x"}, {"raw": "x"}, *ITEMS]},
                {"tokens": [1]},
                {"text": "x"},
                {"raw": "x"},
                *ITEMS,
            ]
        },
    ],
    "/prepare": [{"media": ITEMS}],
    "/detokenize": [{"tokens": [1]}],
    "/abort_request": [{"rid": "x"}],
    "/concate_and_append_request": [{"src_rids": ["x"], "dst_rid": "y"}],
}
BODIES["/v1/render"] = BODIES["/v1/chat/completions"]
BODIES["/tokenize"] = [{"prompt": "x"}, *BODIES["/v1/chat/completions"]]
"""Bodies by route; together they lead the parser to every kind of object that it reads."""


@pytest.fixture
def bodies(site) -> dict[str, list[dict[str, Any]]]:
    """`BODIES` with the id of a file that is there."""
    kept = site.http.post(
        "/v1/files", files={"file": ("a.png", b"AAA")}, data={"purpose": "vision"}
    )
    return json.loads(json.dumps(BODIES).replace(UPLOADED, kept.json()["id"]))


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and description of each operation."""
    for path, methods in DOCUMENT["paths"].items():
        for method, told in methods.items():
            yield path, method, told


def schema_of(path: str) -> Schema:
    """The schema of the JSON body of a route."""
    content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]
    return resolved(content["application/json"]["schema"])


def resolved(schema: Schema) -> Schema:
    """The schema, or what it refers to."""
    if "$ref" not in schema:
        return schema
    return DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]


def documented(schema: Schema, place: str = "") -> Iterator[tuple[str, set[str]]]:
    """The fields of each closed object in a schema, by its place; lists add nothing to it."""
    for one in schema.get("anyOf", ()):
        yield from documented(one, place)
    if "items" in schema:
        yield from documented(schema["items"], place)
    if schema.get("additionalProperties") is False and "properties" in schema:
        yield place, set(schema["properties"])
    for name, inner in schema.get("properties", {}).items():
        yield from documented(inner, f"{place}.{name}" if place else name)


def by_place(pairs: Iterator[tuple[str, set[str]]]) -> dict[str, set[str]]:
    """All fields at a place, whatever the kinds of objects that may stand there."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for place, names in pairs:
        found[place] |= names
    return dict(found)


def test_every_route_is_described_and_no_other():
    """Path by path, method by method; HEAD goes with GET."""
    served = {
        (shown_path(route.path), method.lower())
        for route in APP.routes
        for method in route.methods
        if route.path != "/openapi.json" and method != "HEAD"
    }
    assert {(path, method) for path, method, _ in operations()} == served


def test_it_is_served_as_it_is(site):
    """And says which version of OpenAPI it is."""
    told = site.http.get("/openapi.json").json()
    assert told["openapi"].startswith("3.1")
    assert told["paths"].keys() == DOCUMENT["paths"].keys()


def test_all_schemas_are_schemas():
    """By the metaschema of the draft that OpenAPI 3.1 means."""
    for _, _, told in operations():
        contents = [told.get("requestBody", {}), *told["responses"].values()]
        schemas = [kind["schema"] for c in contents for kind in c.get("content", {}).values()]
        schemas += [p["schema"] for p in told["parameters"] if "schema" in p]
        for schema in map(resolved, schemas):
            Draft202012Validator.check_schema(schema)


def test_operations_have_ids_of_their_own():
    """Generated clients name functions by them."""
    names = [told["operationId"] for _, _, told in operations()]
    assert len(set(names)) == len(names)
    assert all(told["summary"].endswith(".") for _, _, told in operations())


def test_refusals_have_the_one_form():
    """Every status of an error has the envelope of its surface, and the id in a header."""
    for path, _, told in operations():
        form = "AnthropicError" if is_anthropic(path) else "Error"
        for status, response in told["responses"].items():
            assert "X-Request-Id" in response["headers"]
            if status != "200":
                schema = response["content"]["application/json"]["schema"]
                assert schema == {"$ref": f"#/components/schemas/{form}"}
            if status == "429":
                assert "Retry-After" in response["headers"]


def test_described_statuses_are_those_of_errors():
    """What an error class is told as has its meaning written down."""
    assert set(STATUS.values()) <= {status for status, _ in ANSWERS.values()}


@pytest.mark.parametrize(
    ("settings", "is_open"),
    [({}, True), ({"api_key": "a"}, False), ({"client_keys": (("b", "c"),)}, False)],
)
def test_keys_are_told_as_they_are_asked_for(settings: dict, is_open: bool):
    """Without a configured one none is needed; probes and the page never need one."""
    told = create_app(EchoClient(), ServerConfig(**settings)).openapi()
    for path, methods in told["paths"].items():
        for operation in methods.values():
            security = operation["security"]
            if path in OPEN_PATHS or path in page_types():
                assert security == []
                assert "401" not in operation["responses"]
            else:
                assert ({} in security) is is_open
                assert {"adminKey": []} in security
                assert ({"key": []} in security) is (path not in ADMIN_PATHS)
                assert ("403" in operation["responses"]) >= (path in ADMIN_PATHS)


@pytest.mark.parametrize("path", BODIES)
def test_parser_and_schema_know_the_same_fields(site, bodies, path: str, monkeypatch):
    """At every place of the body: none undocumented, none documented and unknown."""
    known: defaultdict[str, set[str]] = defaultdict(set)
    finish = Body.finish

    def watched(self: Body) -> None:
        known[re.sub(r"\[\d+\]", "", self._where)].update(self._known)
        finish(self)

    monkeypatch.setattr(Body, "finish", watched)
    for body in bodies[path]:
        response = site.http.post(path, json=body)
        assert response.status_code == 200, response.text
    told = by_place(documented(schema_of(path)))
    assert set(known) == set(told)
    for place, names in told.items():
        assert known[place] == names, place


def examples(schema: Schema) -> Iterator[Any]:
    """A value or more for each alternative of a schema."""
    if "enum" in schema:
        yield from schema["enum"]
        return
    if "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from examples(one)
        return
    kinds = schema.get("type", "null")
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        yield from _of_kind(kind, schema)


def _of_kind(kind: str, schema: Schema) -> Iterator[Any]:
    if kind in ("integer", "number"):
        yield from (schema["minimum"], schema["maximum"])
    elif kind == "string":
        address = "pattern" in schema and "data:" in schema["pattern"]
        yield PNG if address else "QUFB"
    elif kind == "boolean":
        yield from (True, False)
    elif kind == "array":
        for item in examples(schema["items"]):
            yield [item]
    elif kind == "object":
        needed = schema.get("required", ())
        yield {name: next(examples(schema["properties"][name])) for name in needed}
    else:
        yield None


@pytest.mark.parametrize("path", BODIES)
def test_documented_values_are_accepted(site, path: str):
    """Each field by itself, by each of its alternatives: its kind and range are right.

    What depends on other fields, on the model or on the content may be refused for that.
    """
    schema = schema_of(path)
    for variant in schema.get("anyOf", [schema]):
        needed = variant.get("required", ())
        for name, inner in variant["properties"].items():
            for value in examples(inner):
                body = {need: next(examples(variant["properties"][need])) for need in needed}
                body |= {"n": 1, "best_of": 1} if name == "best_of" and value else {}
                body[name] = 1 if name in ("best_of", "n") and value else value
                if body.get("max_tokens", 0) is None or "model" in body:
                    body["model"] = "default"
                response = site.http.post(path, json=body)
                error = response.json().get("error") if response.text[:1] == "{" else None
                if error is not None:
                    assert response.status_code in (400, 404), (name, value, error)
                    assert "unknown field" not in error["message"], (name, value, error)
                    wrong = (
                        f"{name} is " in error["message"] and "allowed is" in error["message"]
                    )
                    assert not wrong, (name, value, error)


@pytest.mark.parametrize("path", BODIES)
def test_bodies_of_tests_fit_their_schemas(path: str):
    """So the schemas allow what the parsers do."""
    for body in BODIES[path]:
        errors = list(Draft202012Validator(schema_of(path)).iter_errors(body))
        assert errors == [], body


def test_stored_responses_fit_their_schemas(site):
    """Told, listed and forgotten."""
    response_id = site.http.post("/v1/responses", json={"input": "x"}).json()["id"]
    asked = (("get", ""), ("get", "/input_items"), ("delete", ""))
    for method, rest in asked:
        response = site.http.request(method, f"/v1/responses/{response_id}{rest}")
        told = DOCUMENT["paths"][f"/v1/responses/{{id}}{rest}"][method]["responses"]
        content = told[str(response.status_code)]["content"]
        Draft202012Validator(content["application/json"]["schema"]).validate(response.json())


def test_refusals_fit_their_schemas(site):
    """In the form that the path's own clients read."""
    for path in BODIES:
        response = site.http.post(path, json={"nothing": 1})
        content = DOCUMENT["paths"][path]["post"]["responses"]["400"]["content"]
        schema = resolved(content["application/json"]["schema"])
        Draft202012Validator(schema).validate(response.json())


def test_a_server_without_the_page_describes_none():
    """Nor does it serve it."""
    app = create_app(EchoClient(), ServerConfig(is_page_served=False))
    assert not page_types().keys() & app.openapi()["paths"].keys()
    assert not page_types().keys() & {route.path for route in app.routes}


def test_answers_fit_their_schemas(site):
    """As the routes send them."""
    asked = [
        ("post", "/v1/chat/completions", {"messages": [SAID]}),
        ("post", "/v1/completions", {"prompt": ["x", "y"]}),
        ("post", "/v1/responses", {"input": "x"}),
        ("post", "/v1/messages", {"messages": [SAID], "max_tokens": 9}),
        ("post", "/v1/messages/count_tokens", {"messages": [SAID]}),
        ("post", "/v1/systemone", {"state": "x", "questions": QUESTIONS}),
        ("post", "/v1/render", {"messages": [SAID]}),
        ("post", "/generate", {"text": ["x", "y"]}),
        ("post", "/tokenize", {"prompt": "x"}),
        ("post", "/detokenize", {"tokens": [[97]]}),
        ("post", "/prepare", {"media": ITEMS}),
        *(("get", path, None) for path in ("/v1/models", "/model_info", "/server_info")),
        *(("get", path, None) for path in ("/health", "/livez", "/v1/files")),
    ]
    for method, path, body in asked:
        response = site.http.request(method, path, json=body)
        content = DOCUMENT["paths"][path][method]["responses"]["200"]["content"]
        schema = content["application/json"]["schema"]
        Draft202012Validator(schema).validate(response.json())

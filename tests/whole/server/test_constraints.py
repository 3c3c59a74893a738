"""Every constraint through every way in, and together with what else a request may ask."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.constrained import over_http
from typer.testing import CliRunner

import mmserve as sgl
from mmserve.cli import app
from mmserve.engine import Engine
from mmserve.lang import ClientBackend

SCHEMA = {
    "type": "object",
    "properties": {"side": {"enum": ["left", "right"]}, "n": {"type": "integer"}},
    "required": ["side", "n"],
    "additionalProperties": False,
}
FORMS: dict[str, Any] = {
    "regex": "(yes|no), [0-9]{2}!",
    "choices": ["left", "right (or so)"],
    "json_schema": SCHEMA,
    "ebnf": 'root ::= ("on" | "off") " " [a-c]+ "."',
}


def check(kind: str, text: str) -> None:
    """The text is of the form."""
    if kind == "regex":
        assert re.fullmatch(FORMS["regex"], text)
    elif kind == "choices":
        assert text in FORMS["choices"]
    elif kind == "json_schema":
        jsonschema.validate(json.loads(text), SCHEMA)
    else:
        assert re.fullmatch("(on|off) [a-c]+[.]", text)


def sent(kind: str) -> dict[str, Any]:
    """The fields of a body."""
    return {kind: FORMS[kind]}


def events(text: str) -> list[Any]:
    """The values of a stream."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


Say = Callable[[str, bool], list[str]]


def completions(ask: Any) -> Say:
    """Two samples of the older route."""

    def say(kind: str, stream: bool) -> list[str]:
        body = {"prompt": "Go", "max_tokens": 90, "n": 2, "seed": 1, "temperature": 1}
        reply = ask.post("/v1/completions", {**body, "stream": stream, **sent(kind)})
        assert reply.status == 200, reply.body
        if not stream:
            return [choice["text"] for choice in reply.body["choices"]]
        texts = ["", ""]
        for value in events(reply.body["text"]):
            texts[value["choices"][0]["index"]] += value["choices"][0]["text"]
        return texts

    return say


def native(ask: Any) -> Say:
    """Two samples of `/generate`."""

    def say(kind: str, stream: bool) -> list[str]:
        params = {"max_new_tokens": 90, "n": 2, "sampling_seed": 1, **sent(kind)}
        body = {"text": "Go", "sampling_params": params, "stream": stream}
        reply = ask.post("/generate", body)
        assert reply.status == 200, reply.body
        if not stream:
            return [one["text"] for one in reply.body]
        texts = {one["index"]: one["text"] for one in events(reply.body["text"])}
        return [texts[0], texts[1]]

    return say


def chat(ask: Any) -> Say:
    """Two samples of the chat route, by the fields of our own."""

    def say(kind: str, stream: bool) -> list[str]:
        form = {"extra" if kind == "json_schema" else kind: FORMS[kind]}
        if "extra" in form:
            named = {"name": "n", "description": "d", "schema": SCHEMA}
            form = {"response_format": {"type": "json_schema", "json_schema": named}}
        answers = over_http(ask, stream=stream)(n=2, **form)
        assert all(answer.is_whole for answer in answers)
        return [answer.text for answer in answers]

    return say


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("route", [chat, completions, native])
def test_every_form_on_every_route(ask: Any, route: Callable[[Any], Say], kind: str) -> None:
    """Two samples are of the form, and a stream gives the same."""
    say = route(ask)
    texts = say(kind, False)
    for text in texts:
        check(kind, text)
    assert say(kind, True) == texts


@pytest.mark.parametrize("kind", FORMS)
def test_every_form_in_a_program(engine: Engine, server_url: str, kind: str) -> None:
    """On the engine and over HTTP; `choices` is a `select`."""

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Q") + sgl.assistant(sgl.gen("x", 90, **sent(kind)))

    with sgl.RuntimeEndpoint(server_url) as endpoint:
        texts = [
            program.run(backend=backend, seed=1)["x"]
            for backend in (ClientBackend(engine), endpoint)
        ]
    check(kind, texts[0])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", FORMS)
def test_every_form_of_the_command(engine: Engine, tmp_path: Path, kind: str) -> None:
    """`mmserve ask` has a flag for each; schemas and grammars may be files."""
    value = FORMS[kind]
    words = {"choices": ",".join, "json_schema": json.dumps}.get(kind, str)(value)
    files = []
    if kind in ("json_schema", "ebnf"):
        files = [tmp_path / "form"]
        files[0].write_text(words)
    for given in (words, *files):
        result = CliRunner().invoke(
            app,
            ["ask", "Q", f"--{kind.replace('_', '-')}", str(given), "--max-tokens", "90"],
            obj=lambda config: nullcontext(engine),
        )
        assert result.exit_code == 0, result.stderr
        check(kind, result.stdout.removesuffix("\n"))


def test_every_form_of_a_row(
    engine: Engine, server_url: str, tmp_path: Path, pictures: tuple[bytes, bytes]
) -> None:
    """The batch tool, here and against a server, gives the same answers."""
    picture = tmp_path / "p.png"
    picture.write_bytes(pictures[0])
    rows = [
        {"images": [str(picture)], "question": "Q", "max_tokens": 90, **sent(kind)}
        for kind in FORMS
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = []
    for more in ([], ["--overwrite", "--url", server_url]):
        result = CliRunner().invoke(
            app,
            ["video-qa", str(source), "-o", str(target), *more],
            obj=lambda config: nullcontext(engine),
        )
        assert result.exit_code == 0, result.stderr
        records = [json.loads(line) for line in target.read_text().splitlines()]
        answers.append([record["answer"] for record in records])
    assert answers[0] == answers[1]
    for kind, answer in zip(FORMS, answers[0], strict=True):
        check(kind, answer)


# Together with other things


@pytest.mark.parametrize("stream", [False, True])
def test_pictures_and_scores_with_a_form(
    ask: Any, pictures: tuple[bytes, bytes], stream: bool
) -> None:
    """An answer about a picture obeys; its tokens are told, one by one, with numbers."""
    asked = {"regex": FORMS["regex"], "max_tokens": 90, "return_token_ids": True}
    reply = ask.chat(pictures[0], "What?", **asked, stream=stream)
    assert reply.status == 200
    if stream:
        choices = [value["choices"][0] for value in events(reply.body["text"])]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        scores = [one for c in choices if c["logprobs"] for one in c["logprobs"]["content"]]
        ids = [one for choice in choices for one in choice.get("token_ids", [])]
    else:
        (choice,) = reply.body["choices"]
        text, ids = choice["message"]["content"], choice["token_ids"]
        scores = choice["logprobs"]["content"]
    check("regex", text)
    written = bytes(byte for one in scores for byte in one["bytes"]).decode()
    assert written.removesuffix("<|end|>").removesuffix("</s>") == text
    assert len(scores) == len(ids)


def test_a_stop_ends_a_form_early(ask: Any) -> None:
    """The answer ends before the stop, as the beginning of what matches."""
    answer = ask.chat("Q", regex="one two three", stop=[" three"], max_tokens=60)
    (choice,) = answer.body["choices"]
    assert choice["message"]["content"] == "one two"
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", " three")


def test_a_form_that_is_cut_is_a_beginning(ask: Any) -> None:
    """The limit counts tokens of forced text, too."""
    answer = ask.chat("Q", regex="one two three", max_tokens=4)
    assert answer.body["choices"][0]["finish_reason"] == "length"
    assert answer.usage["completion_tokens"] == 4
    assert "one two three".startswith(answer.text)


def test_samples_about_a_picture_share_it(ask: Any, pictures: tuple[bytes, bytes]) -> None:
    """Native samples with a picture and a form: each obeys, the prompt counts once."""
    item = base64.b64encode(pictures[0]).decode()
    params = {"n": 3, "max_new_tokens": 90, "json_schema": SCHEMA, "sampling_seed": 3}
    body = {"text": "<image>Q", "image_data": item, "sampling_params": params}
    replies = ask.post("/generate", body).body
    for one in replies:
        check("json_schema", one["text"])
    assert len({one["meta_info"]["prompt_tokens"] for one in replies}) == 1


def test_text_is_no_form(ask: Any) -> None:
    """`{"type": "text"}` is the same as nothing."""
    plain = ask.chat("Q", response_format={"type": "text"})
    assert plain.text == ask.chat("Q").text


@pytest.mark.parametrize("strict", [True, False, None, ...])
def test_a_schema_is_enforced_with_and_without_strict(ask: Any, strict: Any) -> None:
    """There is no way to send a schema that does not hold."""
    named = {"name": "n", "schema": SCHEMA} | ({} if strict is ... else {"strict": strict})
    form = {"type": "json_schema", "json_schema": named}
    answer = ask.chat("Q", response_format=form, max_tokens=90)
    check("json_schema", answer.text)


TWO = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Q"}]},
    "/v1/completions": {"prompt": "Q"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", TWO)
def test_two_forms_are_refused_by_both_names(ask: Any, route: str, stream: bool) -> None:
    """A 400 before anything is streamed; on the native route, too."""
    for first, second in (("regex", "choices"), ("response_format", "ebnf")):
        form = {"type": "json_object"}
        given = {"response_format": form, **FORMS}
        fields = {name: given[name] for name in (first, second)}
        reply = ask.post(route, {**TWO[route], **fields, "stream": stream})
        assert (reply.status, reply.error["param"]) == (400, second)
        assert f"{first} and {second} are given" in reply.error["message"]
    params = {"regex": "a", "json_schema": "{}"}
    reply = ask.post("/generate", {"text": "Q", "sampling_params": params, "stream": stream})
    assert (reply.status, reply.error["param"]) == (400, "sampling_params.json_schema")
    assert "regex and json_schema are given" in reply.error["message"]


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, ".json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": 5}}, ".json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "x": 1}}, ".json_schema.x"),
        ({"type": "json_object", "schema": {}}, "response_format.schema"),
        ({"type": "grammar"}, "response_format.type"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}, "response_format"),
    ],
)
def test_a_wrong_format_is_refused_by_its_place(ask: Any, form: Any, param: str) -> None:
    """What is missing, unknown or cannot be enforced is named where the client put it."""
    for route, body in TWO.items():
        reply = ask.post(route, {**body, "response_format": form})
        assert reply.status == 400
        assert reply.error["param"].endswith(param)

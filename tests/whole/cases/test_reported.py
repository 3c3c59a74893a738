"""Kinds of bugs that were reported of constrained answers elsewhere, each tried here.

A model of noise follows every bias, so it writes whatever it is led to, if the form allows it.
The source of each kind is named.
"""

from __future__ import annotations

import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.constrained import Answer, Refusal, check_all, over_http
from support.oracle import Asker, Reply

SPECIAL_IDS = range(8)
RECORD = {
    "type": "object",
    "properties": {"side": {"enum": ["left", "right"]}, "n": {"type": "integer"}},
    "required": ["side", "n"],
    "additionalProperties": False,
}


def closed(**properties: Any) -> dict[str, Any]:
    """An object of exactly these."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def answers(ask: Asker, schema: Any, n: int = 3, **fields: Any) -> list[Answer]:
    """Answers under the schema; every one that ends is valid."""
    found = over_http(ask)(json_schema=schema, n=n, **fields)
    check_all([answer for answer in found if answer.is_whole], schema)
    return found


def leading(ask: Asker, *texts: str, by: float = 100) -> dict[str, float]:
    """A bias to the first token of each text."""
    return {str(ask.post("/tokenize", {"prompt": one}).body["tokens"][0]): by for one in texts}


def native(ask: Asker, **params: Any) -> Reply:
    """A native answer."""
    params = {"max_new_tokens": 60, "sampling_seed": 3, **params}
    return ask.post("/generate", {"text": "Go", "sampling_params": params})


def is_fine(ask: Asker) -> bool:
    """Whether the server still answers."""
    return native(ask, regex="[ab]{3}").status == 200


VALID = {
    "mixed, guidance-ai/llguidance#84": {
        "enum": [None, True, 0, -0.0, 1.0, "1", [], {}, [1, {"a": None}], 1e3, 2.5]
    },
    "quoted, ggml-org/llama.cpp#22240": closed(
        t={"anyOf": [{"const": 'the "decision"'}, {"enum": ["\\x", "/"]}]}
    ),
    "length beside a pattern, sgl-project/sglang#37707": {
        "type": "string",
        "pattern": "^[a-z]+$",
        "minLength": 7,
        "maxLength": 9,
    },
    "escaped slash, ggml-org/llama.cpp#27397": {
        "type": "string",
        "pattern": r"^(https:\/\/)?(www\.)?insta\.com\/[\w\-]{1,5}$",
    },
    "shorthand class, ggml-org/llama.cpp#27580": closed(
        id={"type": "string", "pattern": r"^\d{1,4} \d{1,4}$"}
    ),
    "needless escape, ggml-org/llama.cpp#19051": {
        "type": "string",
        "pattern": r"^hello there indeed\!$",
    },
    "pattern without anchors, ggml-org/llama.cpp#25746": closed(
        o=closed(s={"type": "string", "pattern": r"\S", "maxLength": 5})
    ),
    "length of thousands inside, ggml-org/llama.cpp#25746": closed(
        a=closed(b={"type": "string", "maxLength": 2000})
    ),
    "properties and patterns, guidance-ai/llguidance#265": {
        **closed(score={"type": "integer", "multipleOf": 5}),
        "patternProperties": {"^score$": {"type": "integer"}},
    },
    "names beside values, mlc-ai/xgrammar#826": {
        "type": "object",
        "propertyNames": {"pattern": "^[ab]$"},
        "additionalProperties": closed(n={"enum": [1]}),
        "maxProperties": 1,
    },
    "number of items, mlc-ai/xgrammar#160": {
        "type": "array",
        "items": closed(id={"enum": ["x"]}),
        "minItems": 5,
        "maxItems": 5,
    },
    "most items of many, mlc-ai/xgrammar#368": {
        "type": "array",
        "items": {"type": "boolean"},
        "maxItems": 100_000,
    },
    "reference to a property, dottxt-ai/outlines#310": closed(
        test={"enum": [1, 2]}, other={"$ref": "#/properties/test"}
    ),
    "words beside a reference, guidance-ai/guidance#1063": {
        "$defs": {"foo": {"type": "integer"}},
        "$ref": "#/$defs/foo",
        "minimum": 5,
        "maximum": 7,
    },
    "overlapping branches, ggml-org/llama.cpp#22240": {
        "anyOf": [closed(a={"enum": [1, 2]}), closed(a={"const": 2}, b={"const": 3})]
    },
    "nothing required, noamgat/lm-format-enforcer#31": {
        "type": "object",
        "properties": {"a": {"enum": [1]}, "b": {"enum": [2]}},
        "additionalProperties": False,
    },
    "no property, ggml-org/llama.cpp#7789": closed(),
    "a null, ollama/ollama#3783": {"type": "null"},
    "a text of nothing, ollama/ollama#3783": {"type": "string", "maxLength": 0},
    "ten thousand values, ajv-validator/ajv#1371": {
        "enum": [f"value number {one}" for one in range(10_000)]
    },
    "thousands beside a length, guidance-ai/llguidance#108": {
        "type": "string",
        "maxLength": 4,
        "enum": [f"{one:04}" for one in range(9_000)],
    },
    "quoted date, dottxt-ai/outlines#567": closed(d={"type": "string", "format": "date"}),
}


@pytest.mark.parametrize("kind", VALID)
def test_such_schemas_are_enforced(ask: Asker, kind: str) -> None:
    """Each was accepted elsewhere and not enforced, or refused for no reason (see its name)."""
    found = answers(ask, VALID[kind], max_tokens=120)
    assert kind.startswith("length of thousands") or any(one.is_whole for one in found)


REFUSED: dict[str, Any] = {
    "empty text, vllm-project/vllm#45346": "",
    "wrong type far inside, vllm-project/vllm#17248": closed(a={"items": {"type": "strin"}}),
    "reference to the web, ggml-org/llama.cpp#8199": {"$ref": "https://example.com/a.json"},
    "uuid of ten, vllm-project/vllm#45599": {
        "type": "string",
        "format": "uuid",
        "maxLength": 10,
    },
    "required and forbidden, guidance-ai/guidance#1063": {
        **closed(a={"enum": [1]}),
        "required": ["b"],
    },
}


@pytest.mark.parametrize("kind", REFUSED)
def test_such_schemas_are_refused(ask: Asker, kind: str) -> None:
    """What nothing satisfies, or is no schema, ends in a refusal and not the server."""
    with pytest.raises(Refusal):
        answers(ask, REFUSED[kind])
    assert is_fine(ask)


def test_a_bounded_text_may_hold_escapes(ask: Asker) -> None:
    """A length takes no way to write away, quotes and all (mlc-ai/xgrammar#800)."""
    bias = leading(ask, "\\")
    found = answers(ask, {"type": "string", "minLength": 4, "maxLength": 8}, logit_bias=bias)
    assert all(one.is_whole and "\\" in one.text for one in found)


def test_an_escape_is_whole(ask: Asker) -> None:
    """None by number is cut off, as none is written (mdegans/drama_llama#21)."""
    bias = leading(ask, "\\", "u", "2", "7", by=60)
    for one in answers(ask, {"type": "string", "maxLength": 20}, logit_bias=bias):
        assert not re.search(r"(?<!\\)(\\\\)*\\u", one.text)


def test_control_characters_are_escaped_in_texts(ask: Asker) -> None:
    """However much they are wanted, none stands as it is (ggml-org/llama.cpp#5888)."""
    bias = leading(ask, "\n", "\t", "\r", "\x1b", "\x00", "\x7f")
    for one in answers(ask, {"type": "string", "maxLength": 20}, logit_bias=bias):
        assert not re.search("[\x00-\x1f]", one.text)


@pytest.mark.parametrize("wanted", [".e", "+1", "0", "-0", "1.0e", ".", "eE+-"])
def test_numbers_are_json(ask: Asker, wanted: str) -> None:
    """No point or sign without digits, no leading zero (noamgat/lm-format-enforcer#181)."""
    found = answers(ask, {"type": "number"}, logit_bias=leading(ask, *wanted), max_tokens=60)
    assert all(one.is_whole for one in found)


def test_whole_numbers_have_no_fraction(ask: Asker) -> None:
    """Not even .0 (sgl-project/sglang#2017)."""
    bias = leading(ask, ".", "e", "0")
    for one in answers(ask, closed(population={"type": "integer"}), logit_bias=bias):
        assert type(one.value["population"]) is int


@pytest.mark.parametrize("form", [{"regex": "[a-z]{5}"}, {"json_schema": RECORD}])
def test_no_token_ends_an_answer_early(ask: Asker, form: dict[str, Any]) -> None:
    """Every control token is wanted most, and none comes (vllm-project/vllm#42403)."""
    bias = {str(token_id): 100.0 for token_id in SPECIAL_IDS}
    for one in over_http(ask)(n=2, logit_bias=bias, **form):
        assert one.is_whole
        assert "regex" not in form or re.fullmatch(form["regex"], one.text)


SAMPLING: dict[str, dict[str, Any]] = {
    "all allowed are banned, NVIDIA/TensorRT-LLM#18896": {
        "logit_bias": {str(token_id): -100 for token_id in range(285)}
    },
    "repetition_penalty, huggingface/text-generation-inference#1745": {
        "repetition_penalty": 2.0
    },
    "penalties, vllm-project/vllm#4093": {"frequency_penalty": 2, "presence_penalty": 2},
    "top_k 1, vllm-project/vllm#10234": {"top_k": 1},
    "top_p, vllm-project/vllm#10234": {"top_p": 1e-6},
    "min_p, vllm-project/vllm#10234": {"min_p": 1},
    "ignore_eos, vllm-project/vllm#49173": {"ignore_eos": True},
    "min_tokens, vllm-project/vllm#49173": {"min_tokens": 100},
}


@pytest.mark.parametrize("kind", SAMPLING)
def test_no_way_to_draw_breaks_the_form(ask: Asker, kind: str) -> None:
    """Masks hold under every other wish, and what is complete ends."""
    for temperature in (0, 1):
        fields = {"temperature": temperature, **SAMPLING[kind]}
        assert all(one.is_whole for one in answers(ask, RECORD, **{"n": 1, **fields}))


def test_a_bias_to_no_token_is_refused(ask: Asker) -> None:
    """It would reach beyond the rows of logits (vllm-project/vllm#16529)."""
    with pytest.raises(Refusal, match="vocabulary"):
        answers(ask, RECORD, logit_bias={"191222": -100})


def test_log_probabilities_are_numbers(ask: Asker) -> None:
    """What a mask forbids is no infinity in JSON (vllm-project/vllm#4149)."""
    reply = ask.chat("Hi", choices=["positive", "negative"], top_logprobs=20)
    assert reply.status == 200
    for one in reply.scores:
        assert len(one["top_logprobs"]) == 20
        assert all(math.isfinite(each["logprob"]) for each in (one, *one["top_logprobs"]))


def test_neighbours_have_forms_of_their_own(ask: Asker) -> None:
    """At once, with and without, equal and not, each keeps it (sgl-project/sglang#2414)."""

    def one(number: int) -> bool:
        mine = [{}, {"regex": f"{number}[ab]{{5}}"}, {"choices": ["same"]}][number % 3]
        reply = ask.chat("Hi", temperature=1, seed=number, max_tokens=20, **mine)
        wanted = ["(?s).*", f"{number}[ab]{{5}}", "same"][number % 3]
        return reply.status == 200 and bool(re.fullmatch(wanted, reply.text))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(36)))


def test_what_came_before_does_not_matter(ask: Asker) -> None:
    """Good, odd and bad ones in a row, each for itself (vllm-project/vllm#37642 and #43920)."""
    statuses = [
        native(ask, **form).status
        for form in (
            {"regex": "^(.*)$"},
            {"regex": "^(|.*)$"},
            {"ebnf": 'root ::= "a" | "b"'},
            {"ebnf": 'root ::= "a"\nroot ::= "b"'},
            {"regex": "foo**"},
            {"regex": "[ab]"},
        )
    ]
    assert statuses == [200, 200, 200, 400, 400, 200]


GRAMMARS = {
    "left recursion, ggml-org/llama.cpp#6492": ('root ::= root "a" | "b"', "ba*"),
    "expressions, ggml-org/llama.cpp#3801": (
        'root ::= expr\nexpr ::= [0-9] | expr ("+" | "-") expr',
        "[0-9]([+-][0-9])*",
    ),
    "empty word, epfl-dlab/transformers-CFG#105": (
        'root ::= "" | "0" root | "1" root',
        "[01]*",
    ),
    "ranges by number, ggml-org/llama.cpp#2501": (
        r"root ::= [\u0430-\u044f]{3}",
        "[\u0430-\u044f]{3}",
    ),
}


@pytest.mark.parametrize("kind", GRAMMARS)
def test_such_grammars_are_enforced(ask: Asker, kind: str) -> None:
    """Each ended a process elsewhere, or meant something else (see its name)."""
    grammar, pattern = GRAMMARS[kind]
    text = native(ask, ebnf=grammar, max_new_tokens=200).body["text"]
    assert re.fullmatch(pattern, text)


DEEP = 20_000
BAD_GRAMMARS = {
    "groups, ggml-org/llama.cpp#26600": "root ::= " + "(" * DEEP + '"a"' + ")" * DEEP,
    "open groups, mozilla-ai/llamafile#860": "root ::= " + "(" * DEEP + "a",
    "rules, ggml-org/llama.cpp#26602": "\n".join(
        ["root ::= r0", *(f"r{one} ::= r{one + 1}" for one in range(DEEP)), f'r{DEEP} ::= "a"']
    ),
    "rules of Lark, ggml-org/llama.cpp#26602": "\n".join(
        ["start: r0", *(f"r{one}: r{one + 1}" for one in range(DEEP)), f'r{DEEP}: "a"']
    ),
    "only itself, ggml-org/llama.cpp#18988": "root ::= root",
    "a circle, ggml-org/llama.cpp#18988": "root ::= a\na ::= b\nb ::= a",
    "undefined rule, ohdearquant/lattice#1079": 'root ::= "a" missing',
    "a rule twice, vllm-project/vllm#44401": 'root ::= "a"\nroot ::= "b"',
    "nothing, vllm-project/vllm#45346": " \n# only a comment",
}


@pytest.mark.parametrize("kind", BAD_GRAMMARS)
def test_such_grammars_are_refused(ask: Asker, kind: str) -> None:
    """Too deep, empty or broken ones are a refusal, and the server goes on."""
    reply = native(ask, ebnf=BAD_GRAMMARS[kind])
    assert reply.status == 400
    assert reply.error["param"] == "ebnf"
    assert is_fine(ask)


def test_a_pattern_that_may_end_does(ask: Asker) -> None:
    """The last number goes on no longer (huggingface/text-generation-inference#2318)."""
    byte = r"(25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
    bias = leading(ask, "1")
    (one,) = over_http(ask)(regex=rf"({byte}\.){{3}}{byte}", logit_bias=bias)
    assert one.is_whole
    assert re.fullmatch(rf"({byte}\.){{3}}{byte}", one.text)


PATTERNS = {
    "dottxt-ai/outlines#725": "[😀-🙏]{2}",
    "sgl-project/sglang#549": r'\["(娃娃领|高领|海军领|斜领|连帽|翻领|一字领)"\]',
}


@pytest.mark.parametrize("source", PATTERNS)
def test_characters_of_several_tokens(ask: Asker, source: str) -> None:
    """Ranges of them, and what is certain between them (see its name)."""
    for one in over_http(ask)(regex=PATTERNS[source], n=4):
        assert one.is_whole
        assert re.fullmatch(PATTERNS[source], one.text)


CHOICES = {
    "beginnings of another, guidance-ai/guidance#248": ["Yes", "No", "Maybe", "Maybee"],
    "with and without a space, guidance-ai/guidance#79": [" Alice", "Alice", "Bob", " Bob"],
    "nothing and the same twice, vllm-project/vllm#45346": ["", "a", "a"],
    "spelt like control tokens, openai/harmony#47": ["<|end|> <image>", "</s>"],
    "ten thousand, guidance-ai/llguidance#84": [f"choice {one}" for one in range(10_000)],
}


@pytest.mark.parametrize("kind", CHOICES)
def test_one_of_the_choices_comes(ask: Asker, kind: str) -> None:
    """Whole and alone, whatever they have in common (see its name)."""
    for one in over_http(ask)(choices=CHOICES[kind], n=4):
        assert one.is_whole
        assert one.text in CHOICES[kind]


@pytest.mark.parametrize("choices", [[], "abc", [1, 2], [None], [["a"]]])
def test_choices_are_texts(ask: Asker, choices: Any) -> None:
    """No number is made a text in silence (vllm-project/vllm#45346)."""
    with pytest.raises(Refusal) as caught:
        over_http(ask)(choices=choices)
    assert (caught.value.param or "").startswith("choices")


UNKNOWN = [
    "guided_json",
    "guided_choice",
    "structured_outputs",
    "whitespace_pattern",
    "grammar",
]


@pytest.mark.parametrize("field", UNKNOWN)
def test_the_words_of_others_are_refused(ask: Asker, field: str) -> None:
    """A constraint that is not understood is not left out (scaleapi/llm-engine#612)."""
    reply = ask.chat("Hi", **{field: ["food", "car"]})
    assert (reply.status, reply.error["param"]) == (400, field)


FORMATS: list[tuple[Any, int]] = [
    (None, 200),
    ({"type": "text"}, 200),
    ({"type": "json_schema", "json_schema": {"schema": RECORD, "strict": None}}, 200),
    ({"type": "json_schema", "json_schema": {"schema": json.dumps(RECORD)}}, 400),
    ({"type": "json_schema"}, 400),
    ({"type": "json_object", "schema": RECORD}, 400),
    ({}, 400),
    ("json", 400),
]


@pytest.mark.parametrize(("shape", "status"), FORMATS)
def test_shapes_of_response_format(ask: Asker, shape: Any, status: int) -> None:
    """Nothing, or text, is no constraint and no crash (vllm-project/vllm-ascend#5148)."""
    assert ask.chat("Hi", response_format=shape).status == status


WRITTEN = [
    (r'{"const":"\ud83d\ude00\u00e9\/"}', '"😀é/"'),
    (r'{"const":"\ud83d"}', None),
    ('{"enum":[NaN,1]}', None),
    ('{"enum":[1e400,1]}', None),
    ("{'type':'null'}", None),
    ('{"type":"null"} x', None),
]


@pytest.mark.parametrize(("written", "text"), WRITTEN)
def test_a_schema_may_be_a_text(ask: Asker, written: str, text: str | None) -> None:
    """Its escapes are read; what is no JSON is refused (kekzl/imp#1563)."""
    reply = native(ask, json_schema=written)
    assert reply.status == (400 if text is None else 200)
    assert text is None or reply.body["text"] == text


def test_a_batch_is_refused_as_one(ask: Asker) -> None:
    """A bad form of one prompt starts none of them (vllm-project/vllm#17313)."""
    forms = [{"regex": "x{3}"}, {"max_new_tokens": 3}, {"json_schema": RECORD}]
    reply = ask.post("/generate", {"text": ["a"] * 3, "sampling_params": forms})
    texts: list[Any] = reply.body  # type: ignore[assignment] - a list of three
    assert texts[0]["text"] == "xxx"
    assert json.loads(texts[2]["text"]).keys() == {"side", "n"}
    forms[1] = {"regex": "("}
    assert ask.post("/generate", {"text": ["a"] * 3, "sampling_params": forms}).status == 400


def calls(ask: Asker, tools: Any, choice: Any = "required", **fields: Any) -> Reply:
    """A chat call with tools."""
    return ask.chat("Hi", tools=tools, tool_choice=choice, max_tokens=80, **fields)


def tool(name: str, **fields: Any) -> dict[str, Any]:
    """A function."""
    return {"type": "function", "function": {"name": name, **fields}}


@pytest.mark.parametrize("fields", [{}, {"parameters": None}, {"parameters": closed()}])
def test_a_tool_without_parameters(ask: Asker, fields: dict[str, Any]) -> None:
    """Its arguments are an empty object, streamed too (vllm-project/vllm#9693 and #21365)."""
    reply = calls(ask, [tool("now", **fields)])
    (call,) = reply.body["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("now", "{}")
    text = calls(ask, [tool("now", **fields)], stream=True).body["text"]
    parts = re.findall(r'"arguments": ?"((?:[^"\\]|\\.)*)"', text)
    assert json.loads("".join(parts)) == {}


BAD_TOOLS: dict[str, tuple[Any, Any]] = {
    "the same name, langchain-ai/langgraph#7988": ([tool("a"), tool("a")], "required"),
    "no such tool, vllm-project/vllm#40399": (
        [tool("a")],
        {"type": "function", "function": {"name": "b"}},
    ),
    "none at all, vllm-project/vllm#40399": ([], "required"),
    "no schema, vllm-project/vllm#17248": (
        [tool("a", parameters={"type": "objekt"})],
        "required",
    ),
    "a name with a quote, vllm-project/vllm#15931": ([tool('a"b')], "required"),
}


@pytest.mark.parametrize("kind", BAD_TOOLS)
def test_such_tools_are_refused(ask: Asker, kind: str) -> None:
    """By their place in the request, before anything runs (see its name)."""
    tools, choice = BAD_TOOLS[kind]
    reply = calls(ask, tools, choice)
    assert reply.status == 400
    assert reply.error["param"].startswith("tool")


@pytest.mark.parametrize("choice", ["none", "auto", None])
@pytest.mark.parametrize("tools", [[], None])
def test_no_tools_are_no_error(ask: Asker, tools: Any, choice: Any) -> None:
    """An agent without tools sends an empty list (evalstate/fast-agent#781)."""
    assert calls(ask, tools, choice).status == 200

"""Tools in a prompt: fields for templates that know them, text for those that do not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.prompt.vocabularies import CHATML, INST, NAMED, VOCABULARIES

from mmserve.core import BadRequest, TextPart, ToolCall, Turn
from mmserve.prompt import ChatTemplate, PromptBuilder, Tokenizer

MERGES = Tokenizer(VOCABULARIES["byte_level"](), special_tokens=NAMED)
ANSWER = Turn("assistant", (), is_open=True)


def tool(name: str = "weather", description: str = "", **properties: Any) -> str:
    """A definition as a request has it."""
    parameters = {"type": "object", "properties": properties}
    function = {"name": name, "description": description, "parameters": parameters}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def user(text: str) -> Turn:
    """What a user says."""
    return Turn("user", (TextPart(text),))


def called(*calls: tuple[str, str], text: str = "") -> Turn:
    """An assistant's turn that calls `weather` with a city each, by id."""
    made = tuple(
        ToolCall(call_id, "weather", json.dumps({"city": city})) for call_id, city in calls
    )
    return Turn("assistant", (TextPart(text),) if text else (), tool_calls=made)


def result(call_id: str, text: str) -> Turn:
    """What a tool answered."""
    return Turn("tool", (TextPart(text),), tool_call_id=call_id)


def rendered(template: str, *turns: Turn, tools: tuple[str, ...] = ()) -> str:
    """The prompt as text."""
    builder = PromptBuilder(MERGES, ChatTemplate(template, MERGES.special_tokens))
    ids = builder.build([*turns, ANSWER], tools=tools).token_ids.tolist()
    return MERGES.decode(ids, skip_special_tokens=False)


TALK = (
    user("Q"),
    called(("call_1", "Oslo"), ("call_2", "Rome")),
    result("call_1", "rain"),
    result("call_2", "sun"),
)

TAGGED = (
    "{% if tools %}[T]{% for tool in tools %}{{ tool | tojson }}{% endfor %}[/T]{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.content %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}"
    "<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Definitions first, calls in tags, results as turns of their own."""

PICKY = (
    "{% for m in messages %}"
    "{% if m.role == 'user' %}"
    "{% if tools and loop.first %}[TOOLS]{{ tools | string }}[/TOOLS]{% endif %}"
    "[INST]{{ m.content }}[/INST]"
    "{% elif m.tool_calls is defined %}"
    "{% if m.content is not none %}{{ raise_exception('content') }}{% endif %}"
    "{% for call in m.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "[CALL]{{ call.function.name }}({{ call.function.arguments | tojson }})#{{ call.id }}"
    "{% endfor %}{{ eos_token }}"
    "{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids') }}{% endif %}"
    "[RESULT]{{ m.name }}: {{ m.content }}#{{ m.tool_call_id }}"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
"""Python's way to write tools, null contents, ids of nine characters, names of results."""

ESCAPED = TAGGED.replace("tool | tojson", "tool | tojson(ensure_ascii=True)")

SINGLE = TAGGED.replace(
    "{% for call in m.tool_calls or [] %}",
    "{% if m.tool_calls and m.tool_calls | length > 1 %}"
    "{{ raise_exception('one call at a time') }}{% endif %}"
    "{% for call in m.tool_calls or [] %}",
)


def test_a_template_that_knows_tools_gets_them() -> None:
    """Definitions, calls and results are where the template puts them, as JSON."""
    definition = tool(description="näch Wetter", city={"type": "string"})
    text = rendered(TAGGED, *TALK, tools=(definition,))
    assert text == (
        f"[T]{definition}[/T]<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
        "<|im_end|>\n<|im_start|>tool\nrain<|im_end|>\n<|im_start|>tool\nsun<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_picky_template_gets_what_it_wants() -> None:
    """Null contents and short ids, the same for a call and its result."""
    text = rendered(PICKY, *TALK, tools=(tool(),))
    assert text.startswith("[TOOLS][{'type': 'function', 'function': {'name': 'weather'")
    _, first, second = text.split("[CALL]")
    assert first.startswith('weather({"city": "Oslo"})#')
    ids = [first.partition("#")[2], second.partition("#")[2][:9]]
    assert [len(one) for one in ids] == [9, 9]
    assert ids[0] != ids[1]
    assert f"[RESULT]weather: rain#{ids[0]}[RESULT]weather: sun#{ids[1]}" in text


@pytest.mark.parametrize("template", [TAGGED, PICKY, SINGLE, CHATML])
def test_a_conversation_without_tools_is_as_before(template: str) -> None:
    """Nothing is added where nothing is about tools."""
    turns = (user("a"), Turn("assistant", (TextPart("b"),)), user("c"))
    text = rendered(template, *turns)
    assert "tool" not in text
    assert "TOOLS" not in text


def test_what_a_template_would_lose_is_text() -> None:
    """A template that knows no tools gets list, calls and results in turns that it writes."""
    text = rendered(CHATML, *TALK, tools=(tool(city={"type": "string"}),))
    system, question, calls, first, second, answer = text.split("<|im_start|>")[1:]
    definition = json.loads(tool(city={"type": "string"}))["function"]
    assert system.startswith("system\nYou can call these tools")
    assert json.dumps(definition) in system.splitlines()
    assert (question, answer) == ("user\nQ<|im_end|>\n", "assistant\n")
    assert calls.splitlines()[1:] == [
        '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call><|im_end|>',
    ]
    assert '\n<tool_response name="weather">rain</tool_response><|im_end|>' in first
    assert second.startswith("tool\n")


def test_the_list_goes_into_the_systems_turn() -> None:
    """Behind what the system says."""
    system = Turn("system", (TextPart("Be brief."),))
    text = rendered(CHATML, system, user("Q"), tools=(tool(),))
    assert "<|im_start|>system\nBe brief.\n\nYou can call these tools" in text
    assert text.count("system") == 1


def test_roles_that_a_template_lacks_are_the_users() -> None:
    """Roles that must alternate do; neighbouring results are one turn."""
    text = rendered(INST, *TALK, user("And?"), tools=(tool(),))
    assert text.startswith("<s>[INST] <<SYS>>\nYou can call these tools")
    results = '[INST] <tool_response name="weather">rain</tool_response>\n'
    results += '<tool_response name="weather">sun</tool_response>\nAnd? [/INST]'
    assert text.endswith(results)


def test_without_a_system_turn_the_list_leads_the_first_text() -> None:
    """Where the template refuses a system."""
    guard = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    text = rendered(guard + CHATML, user("Q"), tools=(tool(),))
    assert text.rpartition("user\n")[2].startswith("You can call these tools")
    assert text.endswith("\n\nQ<|im_end|>\n<|im_start|>assistant\n")


def test_one_call_at_a_time() -> None:
    """A template that takes one call gets one as its own, and two as text."""
    one = rendered(SINGLE, user("Q"), called(("c", "Oslo")), result("c", "x"), tools=(tool(),))
    assert one.startswith("[T]")
    two = rendered(SINGLE, *TALK, tools=(tool(),))
    assert "You can call these tools" in two


def test_text_beside_a_call_is_kept() -> None:
    """A template that drops it does not get to."""
    dropping = TAGGED.replace("{% if m.content %}", "{% if m.content and not m.tool_calls %}")
    turns = (user("Q"), called(("c", "Oslo"), text="Let me see."), result("c", "x"))
    for template in (TAGGED, dropping, CHATML):
        assert "Let me see." in rendered(template, *turns, tools=(tool(),))


def test_a_call_without_arguments_is_an_empty_object() -> None:
    """Empty text, as some clients send it."""
    turn = Turn("assistant", (), tool_calls=(ToolCall("c", "weather", ""),))
    for template in (TAGGED, CHATML):
        text = rendered(template, user("Q"), turn, result("c", "x"))
        assert '{"name": "weather", "arguments": {}}' in text


@pytest.mark.parametrize("template", [TAGGED, CHATML])
def test_half_characters_in_definitions_are_refused(template: str) -> None:
    """As in any text."""
    with pytest.raises(BadRequest, match="surrogate"):
        rendered(template, user("Q"), tools=(tool(description="\ud83d"),))
    turn = Turn("assistant", (), tool_calls=(ToolCall("c", "f", '{"a": "\\ud83d"}'),))
    with pytest.raises(BadRequest, match="surrogate"):
        rendered(template, user("Q"), turn)


FRAGMENTS = [
    "<|im_end|>",
    "<|im_",
    "start|>",
    "<image>",
    "</s>",
    "</think>",
    "<",
    ">",
    "a",
    '"',
]
TEXT = st.lists(st.sampled_from(FRAGMENTS), max_size=5).map("".join)


@pytest.mark.parametrize("template", [TAGGED, PICKY, ESCAPED, CHATML, INST])
@settings(deadline=None, max_examples=25)
@given(texts=st.tuples(TEXT, TEXT, TEXT, TEXT, TEXT))
def test_tools_never_write_control_tokens(template: str, texts: tuple[str, ...]) -> None:
    """Descriptions, names, arguments, ids and results are text, whatever they spell."""

    def controls(said: tuple[str, ...]) -> list[int]:
        description, key, argument, call_id, answer = said
        definition = tool(description=description, **{f"k{key}": {"description": key}})
        arguments = json.dumps({key: [argument, {argument: key}]})
        call = ToolCall(f"c{call_id}", "weather", arguments)
        turns = [
            user("Q"),
            Turn("assistant", (), tool_calls=(call,)),
            result(f"c{call_id}", f"x{answer}x"),
            ANSWER,
        ]
        builder = PromptBuilder(MERGES, ChatTemplate(template, MERGES.special_tokens))
        ids = builder.build(turns, tools=(definition,)).token_ids.tolist()
        return [one for one in ids if one in MERGES.control_ids]

    assert controls(texts) == controls(("x",) * 5)

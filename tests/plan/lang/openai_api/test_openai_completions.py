"""The completions API: prompts, templates, types and choices."""

from __future__ import annotations

import pytest
from support.api_script import ApiScript
from support.openai_programs import TEMPLATE, asking, run

import mmserve as sgl
from mmserve.core import BackendFailed, BadRequest, UnsupportedByBackend


def test_text_outside_turns_is_the_prompt(plain, echo):
    """As it stands; later calls continue it."""

    def body(s):
        s += "Once upon" + sgl.gen("x", max_tokens=4) + ", and " + sgl.gen("y", stop="a")

    state = run(plain, body)

    assert state.text() == "Once uponOnce, and Once uponOnce, "
    assert echo.requests[1].parts[0].text == "Once uponOnce, and "


def test_turns_are_written_by_the_template_alone(url, echo, tmp_path):
    """Given as text or as a file; an open turn has no end."""
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)

    def body(s):
        s += sgl.user("Q") + sgl.assistant("It is " + sgl.gen("x", max_tokens=2))
        s += sgl.user_begin() + "more" + sgl.gen("y", max_tokens=1) + sgl.user_end()
        s += sgl.assistant(sgl.gen("z", max_tokens=1))

    for template in (TEMPLATE, path, str(path)):
        with sgl.OpenAI("echo", False, template, api_key="k", base_url=url) as backend:
            run(backend, body).sync()
    prompts = [request.parts[0].text for request in echo.requests]

    one = "<user>Q</user><assistant>It is "
    two = f"{one}<u</assistant><user>more"
    assert prompts == [one, two, f"{two}<</user><assistant>"] * 3


@pytest.mark.parametrize(
    ("begun", "prompt"),
    [
        ("", "user: Q\nassistant:"),
        ("Hi", "user: Q\nassistant: Hi"),
        (" Hi", "user: Q\nassistant: Hi"),
    ],
)
def test_a_blank_that_the_template_writes_is_written_once(url, echo, begun, prompt):
    """Before an answer that has begun, whether or not its text brings the blank along."""
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )

    def body(s):
        s += sgl.user("Q") + sgl.assistant(begun + sgl.gen("x", max_tokens=1))

    with sgl.OpenAI("echo", False, template, api_key="k", base_url=url) as backend:
        run(backend, body).sync()

    assert [request.parts[0].text for request in echo.requests] == [prompt]


def test_a_template_that_hides_a_turn_is_an_error(url):
    """Rather than a prompt without it."""

    def body(s):
        s += sgl.user_begin() + "Q" + sgl.gen("x")

    with (
        sgl.OpenAI("echo", False, "{{ 1 }}", api_key="k", base_url=url) as backend,
        pytest.raises(BadRequest, match="does not write"),
    ):
        run(backend, body)["x"]


def test_turns_without_a_template_are_refused(plain):
    """Never one guessed from a name."""
    with pytest.raises(UnsupportedByBackend, match="chat_template") as caught:
        run(plain, asking())

    assert caught.value.fields["parameter"] == "chat_template"


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gpt-3.5-turbo-instruct", "/completions"),
        ("davinci-002", "/completions"),
        ("babbage-002", "/completions"),
        ("gpt-4o", "/chat/completions"),
        ("my-completion-model", "/chat/completions"),
    ],
)
def test_only_names_of_known_completion_models_decide(script, model, path):
    """Everything else is a chat model."""
    said = {"text": "a"} if path == "/completions" else {"delta": {"content": "a"}}
    choice = {"index": 0, "finish_reason": "stop", **said}
    script.rule = lambda path, body: [{"id": "c", "choices": [choice]}, "[DONE]"]

    def body(s):
        if path == "/completions":
            s += "Q" + sgl.gen("x")
        else:
            asking()(s)

    with sgl.OpenAI(model, api_key="k", base_url=script.url) as backend:
        assert run(backend, body)["x"] == "a"
    assert script.bodies[0][0] == path


@pytest.mark.parametrize(
    ("said", "value"), [(" 42 cats\nmore", "42"), ("-7", "-7"), ("3.", "3"), (" +5\n", "+5")]
)
def test_a_whole_number_is_taken_from_the_front(plain, echo, said, value):
    """Blanks before it and the rest of the line do not count."""
    echo.answers["How many? "] = said

    def body(s):
        s += "How many? " + sgl.gen_int("x")

    state = run(plain, body)

    assert (state["x"], state.value("x")) == (value, int(value))
    assert state.text() == f"How many? {value}"


def test_an_answer_of_another_type_is_the_backends_failure(plain, echo):
    """Nothing is invented."""
    echo.answers["How many? "] = "many"

    def body(s):
        s += "How many? " + sgl.gen_int("x")

    with pytest.raises(BackendFailed, match="whole number"):
        run(plain, body)["x"]


def test_a_string_has_both_quotes(plain, echo):
    """The first is put in front of the answer, the second ends it."""
    echo.answers['Colour: "'] = 'dark red" or so'

    def body(s):
        s += "Colour: " + sgl.gen_string("x") + "!"

    state = run(plain, body)

    assert (state["x"], state.value("x")) == ('"dark red"', "dark red")
    assert state.text() == 'Colour: "dark red"!'
    assert echo.requests[0].sampling.stop == ('"',)


def picking(script: ApiScript, texts: list[str], has_route: bool = True) -> None:
    """A completions API that says these texts in turn; its tokens are characters."""
    said = iter(texts)

    def rule(path, body):
        if path.endswith("/tokenize"):
            return (
                (200, {"tokens": [ord(c) for c in body["prompt"]]}) if has_route else (404, {})
            )
        choice = {"index": 0, "text": next(said), "finish_reason": "length"}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        return [{"id": "c", "choices": [choice]}, {"choices": [], "usage": usage}, "[DONE]"]

    script.rule = rule


def choosing(options, **more):
    """A body with one choice."""

    def body(s):
        s += "Q:" + sgl.select("c", options, **more)

    return body


@pytest.mark.parametrize(
    ("options", "said", "winner", "biases"),
    [
        (["yes", "no", "none"], ["y"], "yes", [{"y", "n"}]),
        (["yes", "no", "none"], ["n", "o", "x"], "no", [{"y", "n"}, {"o"}, set()]),
        (["yes", "no", "none"], ["n", "o", "n"], "none", [{"y", "n"}, {"o"}, set()]),
        (["ab", "ab", "cd"], ["a"], "ab", [{"a", "c"}]),
        (["only"], [], "only", []),
    ],
)
def test_a_choice_is_made_token_by_token(script, options, said, winner, biases):
    """Only tokens that go on with an option are allowed, until one option is left."""
    picking(script, said)
    with sgl.OpenAI("m", False, api_key="k", base_url=script.url) as backend:
        state = run(backend, choosing(options))
        assert state["c"] == winner
    calls = [body for path, body in script.bodies if path == "/completions"]

    assert state.get_meta_info("c")["choice_index"] == options.index(winner)
    assert state.usage().completion_tokens == len(said)
    assert [{chr(int(key)) for key in call.get("logit_bias", {})} for call in calls] == biases
    assert [call["prompt"] for call in calls] == [
        "Q:" + "".join(said[:n]) for n in range(len(said))
    ]
    assert all(call["max_tokens"] == 1 and call["temperature"] == 0 for call in calls)


def test_a_choice_needs_token_ids(script):
    """Without a route, or a package that knows the model, it is refused, naming both."""
    picking(script, [], has_route=False)
    with (
        sgl.OpenAI("m", False, api_key="k", base_url=script.url, max_retries=0) as backend,
        pytest.raises(UnsupportedByBackend, match=r"/tokenize.*tiktoken"),
    ):
        run(backend, choosing(["a", "b"]))["c"]


def test_an_api_that_ignores_the_bias_is_not_believed(script):
    """An answer that spells no option is a failure, not a guess."""
    picking(script, ["z"])
    with (
        sgl.OpenAI("m", False, api_key="k", base_url=script.url) as backend,
        pytest.raises(BackendFailed, match="none of the options"),
    ):
        run(backend, choosing(["a", "b"]))["c"]

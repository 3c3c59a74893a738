"""States: what is sent, what is read, and that appending does not wait."""

from __future__ import annotations

import time

import pytest

import mmserve.lang as sgl
from mmserve.core import (
    BadRequest,
    BytesSource,
    ImagePart,
    MediaRefused,
    ProgramMisuse,
    RawPart,
    TextPart,
    Turn,
    UnknownVariable,
    VideoPart,
)
from mmserve.testing.fake_client import FakeClient


@sgl.function
def chat(s, question):
    """One question, one answer."""
    s += sgl.system("Be brief.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=4))


def run(client, body, **values):
    """Run a body without parameters."""
    return sgl.function(body).run(backend=client, **values)


def test_a_call_sends_closed_turns_and_an_open_one(client):
    """The turn of the answer is open; the others are closed."""
    chat.run("Hi?", backend=client).sync()

    assert client.requests[0].parts == (
        Turn("system", (TextPart("Be brief."),)),
        Turn("user", (TextPart("Hi?"),)),
        Turn("assistant", (), is_open=True),
    )


def test_an_answer_is_a_variable_and_part_of_the_text(client):
    """The text goes on with the answer."""
    state = chat.run(question="Hi?", backend=client)

    assert len(state["answer"]) == 4
    assert state.text() == "Be brief.Hi?" + state["answer"]


def test_messages_have_the_turns_in_openai_form(client):
    """Text turns are strings; a turn with media is a list of parts in order."""

    def body(s):
        s += sgl.user("A" + sgl.image(b"pic") + "B")
        s += sgl.assistant(sgl.gen("x", max_tokens=2))

    state = run(client, body)

    assert state.messages() == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "A"},
                {
                    "type": "image_url",
                    "image_url": {"url": "data:application/octet-stream;base64,cGlj"},
                },
                {"type": "text", "text": "B"},
            ],
        },
        {"role": "assistant", "content": state["x"]},
    ]


def test_media_stand_where_the_program_puts_them(client):
    """Media keep their place and options; swapping two pictures changes the answer."""

    def body(s, first, second):
        s += sgl.user("A" + sgl.image(first) + "B" + sgl.image(second, max_pixels=9) + "?")
        s += sgl.user(sgl.video(b"clip", 4, start_s=1.0))
        s += sgl.assistant(sgl.gen("x", max_tokens=4))

    program = sgl.function(body)
    states = [program.run(*pair, backend=client) for pair in ((b"P", b"Q"), (b"Q", b"P"))]

    assert states[0]["x"] != states[1]["x"]
    assert client.requests[0].parts[:2] == (
        Turn(
            "user",
            (
                TextPart("A"),
                ImagePart(BytesSource(b"P")),
                TextPart("B"),
                ImagePart(BytesSource(b"Q"), 9),
                TextPart("?"),
            ),
        ),
        Turn("user", (VideoPart(BytesSource(b"clip"), 4, None, 1.0),)),
    )


def test_text_is_never_control_text_unless_it_is_raw(client):
    """Strings are `TextPart`s whatever they spell; `raw` opts in."""

    def body(s):
        s += "<image></s>" + sgl.raw("<s>") + sgl.gen("x", max_tokens=1)

    run(client, body).sync()

    assert client.requests[0].parts == (TextPart("<image></s>"), RawPart("<s>"))


def test_a_missing_picture_raises_at_the_append(client):
    """Content is taken when the expression is appended."""

    def body(s):
        s += sgl.user(sgl.image("/no/such/picture.png"))

    with pytest.raises(MediaRefused):
        run(client, body)


def test_appending_does_not_wait_and_states_overlap():
    """Eight runs have returned while all eight calls are still under way."""
    client = FakeClient(delay_s=5.0)
    states = [chat.run("Hi?", backend=client) for _ in range(8)]
    deadline = time.monotonic() + 4
    while len(client.tickets) < 8 and time.monotonic() < deadline:
        time.sleep(0.005)
    num_running = client.num_running
    for state in states:
        state.cancel()

    assert num_running == 8


def test_statements_of_one_state_run_in_order(slow_client):
    """The second call's prompt holds the first one's answer."""

    def body(s):
        s += "one" + sgl.gen("a", max_tokens=2)
        s += "two" + sgl.gen("b", max_tokens=2)

    state = run(slow_client, body)
    state.sync()

    assert slow_client.requests[1].parts == (TextPart("one" + state["a"] + "two"),)


def test_a_name_is_known_once_it_is_appended(slow_client):
    """`in` is true while the answer is still pending."""
    state = chat.run("Hi?", backend=slow_client)

    assert "answer" in state
    assert "other" not in state


def test_an_unknown_name_is_a_key_error_at_once(slow_client):
    """It names what is known."""
    state = chat.run("Hi?", backend=slow_client)
    with pytest.raises(UnknownVariable, match="answer"):
        state["other"]
    with pytest.raises(KeyError):
        state.get_meta_info("other")


def test_set_variables_are_read_back_and_send_nothing(client):
    """`s[name] = value` is the program's own."""

    def body(s):
        s["a"] = [1]
        s.set_var("b", 2)

    state = run(client, body)

    assert (state["a"], state.get_var("b"), state.text()) == ([1], 2, "")
    assert client.requests == []


def test_the_body_return_value_is_kept(client):
    """`ret_value` is what the body returned."""
    assert run(client, lambda s: 7).ret_value == 7


@pytest.mark.parametrize("value", [None, 3, b"bytes", ["a"]])
def test_appending_what_is_no_text_is_a_type_error(client, value):
    """Only texts and expressions are appended."""

    def body(s):
        s += value

    with pytest.raises(TypeError):
        run(client, body)


def test_a_turn_inside_a_turn_raises_at_the_append(client):
    """Nothing of the expression is appended then."""

    def body(s):
        s += sgl.user("a" + sgl.assistant("b"))

    with pytest.raises(ProgramMisuse):
        run(client, body)


def test_ending_a_turn_that_is_not_open_raises(client):
    """So does ending another turn than the open one."""

    def body(s):
        s += sgl.user_begin()
        s += sgl.assistant_end()

    with pytest.raises(ProgramMisuse):
        run(client, body)


def test_the_ways_to_write_a_turn_agree(client):
    """`user(expr)`, `s.user(expr)`, `with s.user()` and begin/end send the same."""

    def one(s):
        s += sgl.user("q")
        s += sgl.assistant(sgl.gen("x", max_tokens=1))

    def two(s):
        s.user("q")
        with s.assistant():
            s += sgl.gen("x", max_tokens=1)

    def three(s):
        s += sgl.user_begin() + "q" + sgl.user_end()
        s += sgl.assistant_begin()
        s += sgl.gen("x", max_tokens=1)
        s += sgl.assistant_end()

    texts = [run(client, body).text() for body in (one, two, three)]
    parts = {request.parts for request in client.requests}

    assert len(parts) == len(set(texts)) == 1


def test_an_exception_in_a_turn_closes_it(client):
    """A caught exception leaves the state usable."""

    def body(s):
        try:
            with s.user():
                s += "a"
                raise RuntimeError
        except RuntimeError:
            pass
        s += sgl.user("b")

    assert [turn["content"] for turn in run(client, body).messages()] == ["a", "b"]


def test_a_scope_holds_the_text_inside(client):
    """The variable is appended and generated text, in order."""

    def body(s):
        s += "before"
        with s.var_scope("v"):
            s += "in" + sgl.gen("x", max_tokens=2)
        s += "after"

    state = run(client, body)

    assert state["v"] == "in" + state["x"]


def test_a_gen_on_an_empty_state_is_refused(client):
    """There is no prompt to continue; nothing is sent."""

    def body(s):
        s += sgl.gen("x", max_tokens=1)

    with pytest.raises(BadRequest, match="empty prompt"):
        run(client, body)["x"]
    assert client.requests == []

"""States: what is sent, what is read, and that appending does not wait."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import mmserve.lang as sgl
from mmserve.core import (
    BadRequest,
    BytesSource,
    ConstraintRefused,
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


def test_run_values_are_defaults_for_every_gen(client):
    """A gen's own value wins."""

    def body(s):
        s += "a" + sgl.gen("x") + sgl.gen("y", temperature=0.5, max_tokens=1)

    run(client, body, temperature=0, max_new_tokens=3, stop="z", cache_salt="t", seed=5).sync()
    first, second = client.requests

    assert (first.sampling.temperature, first.sampling.max_new_tokens) == (0, 3)
    assert (second.sampling.temperature, second.sampling.max_new_tokens) == (0.5, 1)
    assert {request.sampling.stop for request in client.requests} == {("z",)}
    assert {request.cache_salt for request in client.requests} == {"t"}
    assert {request.sampling.seed for request in client.requests} == {5}


def test_n_answers_are_a_list_and_the_text_goes_on_with_the_first(rule_client):
    """Meta info is a list, too."""
    client = rule_client(lambda prompt, request: "abc")

    def body(s):
        s += "p" + sgl.gen("x", n=2)

    state = run(client, body)

    assert state["x"] == ["abc", "abc1"]
    assert state.text() == "pabc"
    assert len(state.get_meta_info("x")) == 2


def test_meta_info_has_the_languages_keys(client):
    """Counts, hits by kind, why it ended."""
    meta = chat.run("Hi?", backend=client).get_meta_info("answer")

    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert meta["completion_tokens"] == 4
    assert meta["cached_tokens_details"] == {"text": 0, "image": 0, "video": 0}
    assert {"id", "prompt_tokens", "cached_tokens", "image_tokens", "e2e_latency"} <= set(meta)


def test_logprobs_are_rows_of_number_id_and_text(client):
    """Text is given only if asked for."""

    def body(s):
        s += "a" + sgl.gen("x", max_tokens=1, return_logprob=True, logprob_start_len=0)
        s += sgl.gen("y", max_tokens=1, return_logprob=True, return_text_in_logprobs=True)

    state = run(client, body)
    meta = state.get_meta_info("x")

    assert [row[2] for row in meta["output_token_logprobs"]] == [None]
    assert meta["input_token_logprobs"][0] == [None, 256, None]
    assert state.get_meta_info("y")["output_token_logprobs"][0][2] == state["y"]
    assert "input_token_logprobs" not in state.get_meta_info("y")


@pytest.mark.parametrize(
    ("dtype", "answer", "expected"),
    [(int, "42", 42), (float, "2.5", 2.5), (bool, "True", True), (str, '"a b"', "a b")],
)
def test_value_converts_what_dtype_promised(rule_client, dtype, answer, expected):
    """`s[name]` stays text; `s.value` is the type's."""
    client = rule_client(lambda prompt, request: answer)

    def body(s):
        s += "a" + sgl.gen("x", dtype=dtype)

    state = run(client, body)

    assert state["x"] == answer
    assert state.value("x") == expected


def test_value_parses_json(rule_client):
    """A schema's answer is parsed."""
    client = rule_client(lambda prompt, request: '{"a": 1}')

    def body(s):
        s += "a" + sgl.gen("x", json_schema={"type": "object"})

    assert run(client, body).value("x") == {"a": 1}


def test_a_value_that_was_cut_raises(rule_client):
    """An answer that ended by length is not converted."""
    client = rule_client(lambda prompt, request: "12345")

    def body(s):
        s += "a" + sgl.gen("x", dtype=int, max_tokens=2)

    state = run(client, body)

    assert state["x"] == "12"
    with pytest.raises(ConstraintRefused):
        state.value("x")


def test_a_stop_regex_ends_the_value_before_its_match(rule_client):
    """The match that is complete first counts, and is reported."""
    client = rule_client(lambda prompt, request: "one two 34 five 6")

    def body(s):
        s += "a" + sgl.gen("x", stop_regex=[r"\d{2}", "five"])

    state = run(client, body)

    assert state["x"] == "one two "
    assert state.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": "34"}


def test_usage_sums_the_calls_forks_included(client):
    """Every call counts once."""

    def body(s):
        s += "a" + sgl.gen("x", max_tokens=2)
        forks = s.fork(2)
        forks += sgl.gen("y", max_tokens=3)
        forks.join()

    assert run(client, body).usage().completion_tokens == 2 + 2 * 3


def test_stepwise_runs_end_each_statement_before_the_next(slow_client):
    """With use_thread=False the answer is there when the append returns."""
    seen = []

    def body(s):
        s += "a" + sgl.gen("x", max_tokens=2)
        seen.append(slow_client.num_running)

    run(slow_client, body, use_thread=False)

    assert seen == [0]


def test_a_program_needs_a_first_parameter_called_s():
    """Anything else is refused where it is decorated."""
    with pytest.raises(ProgramMisuse):
        sgl.function(lambda state: None)


def test_a_parameter_named_like_runs_own_goes_by_position_only(client):
    """By keyword it would be ambiguous."""

    def body(s, temperature):
        s += str(temperature)

    program = sgl.function(body)

    assert program.run(3, backend=client).text() == "3"
    with pytest.raises(ProgramMisuse):
        program.run(temperature=3, backend=client)


def test_bind_fixes_parameters_and_refuses_them_again(client):
    """A bound name given again is an error, in a call and in a batch."""
    bound = sgl.function(lambda s, a, b: a + b).bind(a=1)

    assert bound.run(b=2, backend=client).ret_value == 3
    with pytest.raises(ProgramMisuse):
        bound.run(a=2, b=2, backend=client)
    with pytest.raises(ProgramMisuse):
        bound.bind(a=2)
    with pytest.raises(ProgramMisuse):
        bound.run_batch([{"a": 1, "b": 2}], backend=client)


def test_bind_keeps_the_number_of_speculative_tokens():
    """A bound program is the same program."""
    program = sgl.function(num_api_spec_tokens=8)(lambda s, a: None)

    assert program.bind(a=1).num_api_spec_tokens == 8


def test_without_a_backend_a_run_says_what_to_do():
    """The hint names set_default_backend."""
    sgl.set_default_backend(None)
    with pytest.raises(ProgramMisuse, match="set_default_backend"):
        chat.run("Hi?")


def test_the_default_backend_answers_runs_that_name_none(client):
    """set_default_backend takes an engine."""
    sgl.set_default_backend(client)
    try:
        assert chat.run("Hi?")["answer"]
        assert sgl.flush_cache() is True
        assert sgl.get_server_info()["model"]["name"] == "fake"
    finally:
        sgl.set_default_backend(None)


def test_run_async_leaves_the_event_loop_free(slow_client):
    """Two programs and a clock share one loop; the states have ended when given."""
    ticks = []

    async def clock():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def main():
        ticking = asyncio.create_task(clock())
        states = await asyncio.gather(
            *(chat.run_async("Hi?", backend=slow_client) for _ in range(2))
        )
        ticking.cancel()
        return states

    states = asyncio.run(main())

    assert len(ticks) > 5
    assert slow_client.num_running == 0
    assert states[0]["answer"] == states[1]["answer"]


def test_a_cancelled_task_cancels_its_program(slow_client):
    """Nothing is left running."""

    async def main():
        task = asyncio.create_task(chat.run_async("Hi?", backend=slow_client))
        while not slow_client.tickets:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert slow_client.tickets[0].is_cancelled.wait(2)


def test_reading_from_another_thread_waits_for_the_value(slow_client):
    """A state may be read from anywhere."""
    state = chat.run("Hi?", backend=slow_client)
    read = []
    thread = threading.Thread(target=lambda: read.append(state["answer"]))
    thread.start()
    thread.join(5)

    assert read == [state["answer"]]

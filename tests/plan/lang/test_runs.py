"""Runs and answers: values that gens inherit, meta info, conversion, binding, event loops."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import mmserve.lang as sgl
from mmserve.core import ConstraintRefused, ProgramMisuse


@sgl.function
def chat(s, question):
    """One question, one answer."""
    s += sgl.system("Be brief.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=4))


def run(client, body, **values):
    """Run a body without parameters."""
    return sgl.function(body).run(backend=client, **values)


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
    """The match that is complete first counts, and its pattern is reported."""
    client = rule_client(lambda prompt, request: "one two 34 five 6")

    def body(s):
        s += "a" + sgl.gen("x", stop_regex=[r"\d{2}", "five"])

    state = run(client, body)

    assert state["x"] == "one two "
    assert state.get_meta_info("x")["finish_reason"] == {
        "type": "stop",
        "matched": r"\d{2}",
    }


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

"""Thinking kept out of answers, whole and as it streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmserve as sgl
from mmserve.core import BadRequest
from mmserve.lang.reasoning import NOTATIONS, Notation, ReasoningSplit
from mmserve.testing.fake_client import FakeClient

REPLY = "<think>\nTwo cups, two more.\n</think>\n\nFour cups."


def parted(pieces: list[str], notation: Notation) -> tuple[str, str]:
    """Thinking and answer of an answer that comes in pieces."""
    split = ReasoningSplit(notation)
    parts = [split.feed(piece) for piece in pieces] + [split.close()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize(
    ("name", "text", "thinking", "answer"),
    [
        ("qwen3", REPLY, "Two cups, two more.", "Four cups."),
        ("qwen3", "Four.", "", "Four."),
        ("qwen3", " Four </think> x", "", " Four </think> x"),
        ("qwen3", "<think>cut", "cut", ""),
        ("qwen3", "<think></think>Four.", "", "Four."),
        ("qwen3", "<thin", "", "<thin"),
        ("deepseek-r1", "two and two</think>Four.", "two and two", "Four."),
        ("deepseek-r1", "<think>two</think> Four.", "two", "Four."),
        ("deepseek-r1", "no end </thi", "no end </thi", ""),
        ("kimi", "◁think▷two◁/think▷Four.", "two", "Four."),
    ],
)
def test_the_marks_part_thinking_from_answer(name, text, thinking, answer):
    """White space around the thinking and before the answer is in neither."""
    assert parted([text], NOTATIONS[name]) == (thinking, answer)


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<", "/", "think", ">", " ", "\n", "a", "b c"]),
        max_size=12,
    ),
    st.sampled_from(sorted(NOTATIONS)),
    st.integers(1, 5),
)
def test_pieces_give_what_the_whole_gives(words, name, size):
    """However an answer is cut into pieces, thinking and answer are the same."""
    text = "".join(words)
    pieces = [text[k : k + size] for k in range(0, len(text), size)]
    assert parted(pieces, NOTATIONS[name]) == parted([text], NOTATIONS[name])


@sgl.function
def think(s, n=1):
    """A gen whose thinking is kept apart."""
    s += sgl.user("How many?")
    s += sgl.assistant(sgl.separate_reasoning(sgl.gen("x", n=n), model_type="qwen3"))


def client(delay_s: float = 0.0) -> FakeClient:
    """A model that thinks first."""
    return FakeClient(lambda _prompt, _request: REPLY, delay_s=delay_s)


def test_a_gen_keeps_its_answer_and_its_thinking_apart():
    """The name has the answer, another the thinking, and the text none of it."""
    state = think.run(backend=client())
    assert state["x"] == "Four cups."
    assert state["x_reasoning_content"] == "Two cups, two more."
    assert "Two cups" not in state.text()
    assert state.messages()[-1]["content"] == "Four cups."
    assert state.get_meta_info("x_reasoning_content") == state.get_meta_info("x")


def test_several_answers_have_a_thinking_each():
    """With n the two names hold lists of n."""
    state = think.run(2, backend=FakeClient(lambda _p, _r: "<think>t</think>a"))
    assert state["x"] == ["a", "a1"]
    assert state["x_reasoning_content"] == ["t", "t"]


def test_streams_part_them_too():
    """Each name streams its own; the text streams without thinking."""
    state = think.run(backend=client(delay_s=0.001), stream=True)
    assert len(pieces := list(state.text_iter("x_reasoning_content"))) > 1
    assert "".join(pieces) == "Two cups, two more."
    assert "".join(state.text_iter("x")) == "Four cups."
    assert "".join(state.text_iter()) == state.text()


def test_control_tokens_are_asked_for_where_thinking_is_parted():
    """Some models' marks are control tokens, which are skipped in other answers."""
    fake = client()
    think.run(backend=fake).sync()
    assert fake.requests[-1].sampling.skip_special_tokens is False


def test_a_failed_call_fails_both_names(rule_client):
    """The thinking raises what the answer raises."""

    @sgl.function
    def program(s):
        s += "BOOM" + sgl.separate_reasoning(sgl.gen("x"))

    state = program.run(backend=rule_client(lambda _p, _r: ""))
    for name in ("x", "x_reasoning_content"):
        with pytest.raises(sgl.errors.BackendFailed):
            _ = state[name]


def test_an_unknown_notation_is_refused_at_once():
    """The message says which are known."""
    with pytest.raises(BadRequest, match="deepseek-r1"):
        sgl.separate_reasoning(sgl.gen("x"), model_type="nonsense")

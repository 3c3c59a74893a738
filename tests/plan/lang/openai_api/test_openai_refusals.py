"""What OpenAI's APIs cannot do is refused at the append."""

from __future__ import annotations

import base64

import pytest
from support.openai_programs import SCHEMA, P, Q, asking, run

import mmserve as sgl
from mmserve.core import ImagePart, TextPart, UnsupportedByBackend

BOTH_REFUSE = {
    "regex": {"regex": "a"},
    "ebnf": {"ebnf": 'root ::= "a"'},
    "stop_regex": {"stop_regex": "a"},
    "min_tokens": {"min_tokens": 2},
    "min_p": {"min_p": 0.5},
    "top_k": {"top_k": 3},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "ignore_eos": {"ignore_eos": True},
    "stop_token_ids": {"stop_token_ids": [1]},
    "logprob_start_len": {"logprob_start_len": 0},
    "max_tokens": {"max_tokens": 0},
}


@pytest.mark.parametrize("name", BOTH_REFUSE)
@pytest.mark.parametrize("kind", ["chat", "plain"])
def test_what_the_apis_cannot_do_is_refused_at_the_append(request, echo, kind, name):
    """Naming parameter, backend and way out; nothing is sent."""
    backend = request.getfixturevalue(kind)

    def body(s):
        with pytest.raises(UnsupportedByBackend) as caught:
            if kind == "chat":
                s += sgl.user("Q") + sgl.assistant(sgl.gen("x", **BOTH_REFUSE[name]))
            else:
                s += "Q" + sgl.gen("x", **BOTH_REFUSE[name])
        assert caught.value.fields["parameter"] == name
        assert name in str(caught.value)
        assert "OpenAI(echo)" in str(caught.value)
        assert "Engine or RuntimeEndpoint" in str(caught.value)

    run(backend, body)
    assert echo.requests == []


@pytest.mark.parametrize(
    ("kind", "parameter", "expr"),
    [
        ("chat", "dtype", sgl.user("Q") + sgl.assistant(sgl.gen_int("x"))),
        ("chat", "select", sgl.user("Q") + sgl.assistant(sgl.select("x", ["a", "b"]))),
        ("chat", "video", sgl.user(sgl.video([P, Q]))),
        ("chat", "raw", sgl.user(sgl.raw("<s>"))),
        ("chat", "gen", sgl.user("Q") + sgl.assistant("A" + sgl.gen("x"))),
        ("chat", "gen", sgl.user("Q" + sgl.gen("x"))),
        ("chat", "text outside turns", "Q" + sgl.gen("x")),
        ("plain", "image", "Q" + sgl.image(P)),
        ("plain", "video", "Q" + sgl.video([P, Q])),
        ("plain", "json_schema", "Q" + sgl.gen("x", json_schema=SCHEMA)),
        ("plain", "dtype", "Q" + sgl.gen("x", dtype=float)),
        ("plain", "dtype", "Q" + sgl.gen("x", dtype=bool)),
        (
            "plain",
            "choices_method",
            "Q" + sgl.select("x", ["a", "b"], choices_method=sgl.greedy_token_selection),
        ),
    ],
)
def test_what_one_api_cannot_do_is_refused_at_the_append(request, kind, parameter, expr):
    """Naming parameter, backend and way out."""
    backend = request.getfixturevalue(kind)

    def body(s):
        with pytest.raises(UnsupportedByBackend) as caught:
            s += expr
        assert caught.value.fields["parameter"] == parameter
        assert caught.value.fields["backend"] == "OpenAI(echo)"
        assert caught.value.hint

    run(backend, body)


def test_defaults_of_a_run_are_never_refused(chat):
    """Values that change nothing."""
    values = {"top_k": -1, "min_p": 0.0, "ignore_eos": False, "return_logprob": False}

    assert run(chat, asking("a"), **values)["x"] == "a"
    with pytest.raises(UnsupportedByBackend, match="top_k"):
        run(chat, asking("a"), top_k=5)
    with pytest.raises(UnsupportedByBackend, match="max_tokens"):
        run(chat, asking("a"), max_new_tokens=0)


def test_clips_go_as_pictures_where_that_is_wanted(url, echo):
    """Frames of a list thinned by num_frames, ends included, in order."""
    pictures = [b"\x89PNG" + bytes([number]) for number in range(5)]

    def body(s):
        s += sgl.user("A" + sgl.video(pictures, 3) + "?") + sgl.assistant(sgl.gen("x"))

    with sgl.OpenAI("echo", api_key="k", base_url=url, frames=True) as backend:
        run(backend, body).sync()
    parts = echo.requests[0].parts[0].parts

    assert parts[0] == TextPart("A")
    assert parts[-1] == TextPart("?")
    assert all(isinstance(part, ImagePart) for part in parts[1:-1])
    shown = [base64.b64decode(part.source.url.split(",")[1]) for part in parts[1:-1]]
    assert shown == [pictures[0], pictures[2], pictures[4]]

"""Whole programs: the same answers on the engine and over HTTP, and nothing paid twice."""

from __future__ import annotations

import json

import pytest

import mmserve as sgl
from mmserve.engine import Engine
from mmserve.lang import ClientBackend

QUESTIONS = ["How many?", "Which colour?", "What is left?", "Is it round?", "Where?", "Why?"]
GREEDY = {"temperature": 0, "max_new_tokens": 6}


@sgl.function
def judge(s, picture, essay):
    """The essay judge: a choice, three forks, a summary, a constrained grade."""
    s += sgl.user(sgl.image(picture) + "Essay: " + essay + "\nIs the essay about the picture?")
    s += sgl.assistant(sgl.select("related", ["yes", "no"]))
    if s["related"] == essay:
        return
    forks = s.fork(3)
    for f, d in zip(forks, ["clarity", "originality", "evidence"], strict=True):
        f += sgl.user(f"Judge its {d}.")
        f += sgl.assistant(sgl.gen("judgement", max_tokens=6, stop="END"))
    s += sgl.user("Summarise:\n" + "\n".join(f["judgement"] for f in forks))
    s += sgl.assistant(
        sgl.gen(
            "grade",
            max_tokens=64,
            regex=r'\{"summary": "[a-z ]{1,8}", "grade": "[ABCD][+-]?"\}',
        )
    )


@sgl.function
def many(s, picture):
    """Many questions about one picture, each in a fork."""
    s += sgl.user_begin() + sgl.image(picture)
    forks = s.fork(len(QUESTIONS))
    for child, question in zip(forks, QUESTIONS, strict=True):
        child += question + sgl.user_end() + sgl.assistant(sgl.gen("answer", max_tokens=6))
    forks.join()


@sgl.function
def single(s, picture, question):
    """One question about a picture."""
    s += sgl.user(sgl.image(picture) + question) + sgl.assistant(sgl.gen("answer"))


def test_the_essay_judge_answers_alike_on_both_backends(engine, endpoint, red):
    """Choice, judgements and grade are equal, and the grade is what its pattern says."""
    states = [
        judge.run(picture=red, essay="A red cube.", backend=backend, temperature=0)
        for backend in (engine, endpoint)
    ]

    assert states[0].text() == states[1].text()
    for state in states:
        assert state["related"] in ("yes", "no")
        assert json.loads(state["grade"])["grade"][0] in "ABCD"
    assert states[0]["grade"] == states[1]["grade"]


def test_many_questions_answer_alike_on_both_backends(engine, endpoint, red):
    """One list of answers in order of the questions, equal on both."""
    answers = [
        many.run(red, backend=backend, **GREEDY)["answer"] for backend in (engine, endpoint)
    ]

    assert answers[0] == answers[1]
    assert len(answers[0]) == len(QUESTIONS)


def test_a_batch_answers_as_its_rows_alone(backend, red, blue):
    """Every row has its own picture's answer."""
    rows = [{"picture": p, "question": q} for q in QUESTIONS[:3] for p in (red, blue)]
    states = single.run_batch(rows, backend=backend, **GREEDY)
    alone = [single.run(**row, backend=backend, **GREEDY)["answer"] for row in rows]

    assert [state["answer"] for state in states] == alone


def test_forks_after_a_picture_equal_separate_programs(backend, red, blue):
    """Each branch is its separate program, and another picture changes the answers."""
    answers = many.run(red, backend=backend, **GREEDY)["answer"]
    alone = [single.run(red, q, backend=backend, **GREEDY)["answer"] for q in QUESTIONS]

    assert answers == alone
    assert many.run(blue, backend=backend, **GREEDY)["answer"] != answers


def test_the_picture_is_decoded_and_prefilled_once(backend, engine: Engine, red):
    """Every branch's hits cover the whole shared prefix, the picture included."""
    before = engine.counters()
    metas = many.run(red, backend=backend, **GREEDY).get_meta_info("answer")
    after = engine.counters()

    for meta in metas:
        assert meta["cached_tokens_details"]["image"] == meta["image_tokens"] > 0
    for name in ("media_decodes_total", "encoded_items_total"):
        assert after[name] - before[name] == 1


@pytest.mark.parametrize("size", [2, 5])
def test_a_forks_prefix_is_prefilled_once_always(backend, engine: Engine, size):
    """Twenty times cold: the tokens computed are the prefix once and each branch's own."""

    @sgl.function
    def program(s):
        s += "A shared text that is long enough to be worth keeping. "
        forks = s.fork(size)
        forks += lambda index: f"{index}" + sgl.gen("x", max_tokens=1)
        forks.join()

    for _ in range(20):
        assert engine.flush_cache(timeout_s=5.0)
        before = engine.counters()["prompt_tokens_computed_total"]
        metas = program.run(backend=backend, temperature=0).get_meta_info("x")
        computed = engine.counters()["prompt_tokens_computed_total"] - before
        num_prefix = metas[0]["prompt_tokens"] - 1

        assert computed <= num_prefix + 2 * size


def test_streaming_joins_to_the_value_on_both(backend, red):
    """Pieces are whole characters and join to the variable."""
    state = single.run(red, "Why?", backend=backend, stream=True, **GREEDY)
    pieces = list(state.text_iter("answer"))

    assert "".join(pieces) == state["answer"]
    assert state["answer"] == single.run(red, "Why?", backend=backend, **GREEDY)["answer"]


def test_usage_and_meta_agree_on_both(engine, endpoint, red):
    """Warm, both backends report the same counts for the same program."""
    keys = ("prompt_tokens", "completion_tokens", "image_tokens", "cached_tokens_details")
    single.run(red, "Why?", backend=engine, **GREEDY).sync()
    metas = [
        single.run(red, "Why?", backend=backend, **GREEDY).get_meta_info("answer")
        for backend in (ClientBackend(engine), endpoint)
    ]

    assert [metas[0][key] for key in keys] == [metas[1][key] for key in keys]
    assert metas[0]["finish_reason"] == metas[1]["finish_reason"]
    assert set(metas[0]) == set(metas[1])

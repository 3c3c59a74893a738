"""Programs that lost pictures, crashed or hung elsewhere: forks, empty states, bad rows.

Choices (favoured lengths, prompt tokens in scores) are in `lang/test_choice_scores.py`.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from PIL import Image
from support.oracle import Asker, differ, png

import mmserve as sgl
from mmserve.core import BadRequest, ConstraintRefused, MediaRefused, ProgramMisuse
from mmserve.engine import Engine

A = png(Image.linear_gradient("L").resize((64, 48)).convert("RGB"))
B = png(Image.radial_gradient("L").resize((48, 64)).convert("RGB"))
BRANCHES = ["What is left?", "And right?", "Is it round?"]
GREEDY = {"temperature": 0, "max_new_tokens": 6, "return_logprob": True}


@sgl.function
def forked(s, picture):
    """A picture, three branches, a join."""
    s += sgl.user(sgl.image(picture) + "Q")
    forks = s.fork(3)
    for child, text in zip(forks, BRANCHES, strict=True):
        child += sgl.user(text) + sgl.assistant(sgl.gen("x"))
    forks.join()


@sgl.function
def separate(s, picture, text):
    """One branch as a program of its own."""
    s += sgl.user(sgl.image(picture) + "Q")
    s += sgl.user(text) + sgl.assistant(sgl.gen("x"))


def firsts(metas: list[dict[str, Any]]) -> list[list[Any]]:
    """[log-probability, id] of each answer's first token."""
    return [meta["output_token_logprobs"][0][:2] for meta in metas]


def canary(ask: Asker) -> None:
    """Text and picture questions are answered as always."""
    assert ask.chat("Hi").status == 200
    differ(ask.chat("What?", A), ask.chat("What?", B))


def test_forks_after_a_picture_are_their_separate_programs(backend: Any) -> None:
    """In branch order, each the same as alone; another picture changes every one of them."""
    state = forked.run(A, backend=backend, **GREEDY)
    alone = [separate.run(A, text, backend=backend, **GREEDY) for text in BRANCHES]
    other = forked.run(B, backend=backend, **GREEDY)
    ours, theirs = firsts(state.get_meta_info("x")), firsts(other.get_meta_info("x"))
    lone = firsts([one.get_meta_info("x") for one in alone])

    assert state["x"] == [one["x"] for one in alone]
    for one, two, changed in zip(ours, lone, theirs, strict=True):
        assert one == pytest.approx(two, abs=1e-3)
        assert one[1] != changed[1] or abs(one[0] - changed[0]) > 1e-2


def test_the_picture_before_a_fork_is_computed_once(backend: Any, engine: Engine) -> None:
    """Hits of all branches cover the whole picture, which is encoded once."""
    before = engine.counters()["encoded_items_total"]
    metas = forked.run(A, backend=backend, **GREEDY).get_meta_info("x")

    assert engine.counters()["encoded_items_total"] - before == 1
    for meta in metas:
        assert meta["cached_tokens_details"]["image"] == meta["image_tokens"] > 0


def test_an_empty_state_forks(backend: Any, ask: Asker) -> None:
    """At the start, after an empty text, into one; no children is an error in the client."""

    @sgl.function
    def program(s, prelude, size):
        if prelude is not None:
            s += prelude
        forks = s.fork(size)
        forks += sgl.user("Q") + sgl.assistant(sgl.gen("x"))
        forks.join()

    found = [
        program.run(prelude, size, backend=backend, **GREEDY)["x"]
        for prelude, size in ((None, 2), ("", 2), (None, 1))
    ]

    assert found[0] == found[1] == found[2] * 2
    with pytest.raises(ProgramMisuse):
        program.run(None, 0, backend=backend)
    canary(ask)


def test_a_join_of_branches_without_answers_gives_nothing(backend: Any, ask: Asker) -> None:
    """Nothing is asked and nothing hangs; a gen on nothing at all is refused."""

    @sgl.function
    def idle(s):
        s.fork(2).join()

    @sgl.function
    def hasty(s):
        s += sgl.gen("x")

    assert idle.run(backend=backend).text() == ""
    with pytest.raises(BadRequest, match="empty prompt"):
        hasty.run(backend=backend)["x"]
    canary(ask)


@sgl.function
def mixed(s, q):
    """Rows 2, 5 and 6 go wrong, each in its own way."""
    s += sgl.user(f"{q}") + sgl.assistant(sgl.gen("a", max_tokens=2))
    if q == 2:
        raise ValueError("row 2")
    if q == 5:
        s += sgl.user(sgl.image("/no/such/picture.png"))
    if q == 6:
        s += sgl.assistant(sgl.gen("b", regex="("))


WRONG = {2: ValueError, 5: MediaRefused, 6: ConstraintRefused}


def wait_until_idle(engine: Engine) -> None:
    """Nothing is left running on the server."""
    assert engine.flush_cache(timeout_s=10.0)
    assert engine.counters()["running"] == 0


@pytest.mark.parametrize("progress_bar", [False, True])
def test_bad_rows_carry_their_errors(
    backend: Any, engine: Engine, ask: Asker, progress_bar: bool
) -> None:
    """Five rows have results, three their own exception, raised on access."""
    started = time.monotonic()
    states = mixed.run_batch(
        [{"q": q} for q in range(8)],
        backend=backend,
        num_threads=2,
        progress_bar=progress_bar,
        **GREEDY,
    )

    assert time.monotonic() - started < 30
    for q, state in enumerate(states):
        if q in WRONG:
            with pytest.raises(WRONG[q]):
                state.text()
        else:
            assert state["a"] == mixed.run(q, backend=backend, **GREEDY)["a"]
    wait_until_idle(engine)
    canary(ask)


@pytest.mark.parametrize("q", WRONG)
def test_a_bad_streaming_run_raises_where_it_is_read(
    backend: Any, engine: Engine, ask: Asker, q: int
) -> None:
    """The stream of all text ends with the exception; later reads raise it again."""
    state = mixed.run(q, backend=backend, stream=True, **GREEDY)
    with pytest.raises(WRONG[q]):
        list(state.text_iter())
    with pytest.raises(WRONG[q]):
        state.text()
    with pytest.raises(WRONG[q]):
        state.ret_value  # noqa: B018  reading is what raises
    wait_until_idle(engine)
    canary(ask)

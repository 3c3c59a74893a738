"""Programs that failed elsewhere: they answer, or say what is wrong. Here on both backends.

What the original does, and the test that it is not done here (`tests/plan/lang` or `whole`):

    only one image is supported  test_two_pictures_keep_their_places
    OpenAI: pictures after text  test_pictures_stand_where_the_program_put_them
    open-role fork: no pictures  test_a_fork_in_an_open_turn_keeps_the_picture
    video goes undecoded         test_a_clip_answers_with_its_frames
    URL is a path, numpy fails   test_a_picture_is_the_same_however_it_is_named
    picture posted every time    test_one_picture_is_one_upload_and_one_decode
    concat join hangs            test_texts_of_a_concat_join_stand_in_order
    prefix at fork races         test_a_forks_prefix_is_prefilled_once_always
    n=2 fails                    test_two_answers_are_a_list
    select crashes or miscounts  test_scores_and_winners_are_the_references
    failed call: KeyError        test_a_failed_call_raises_at_its_name_and_at_later_ones
    append after failure hangs   test_an_append_after_the_failure_fails_at_once
    failed child: shorter list   test_a_failed_child_makes_join_raise_and_cancels_its_siblings
                                 test_keep_puts_the_exception_in_its_place
    one bad row loses all        test_bad_rows_carry_their_errors
    streams hide errors          test_a_stream_ends_with_the_error
    template guessed from path   test_the_template_does_not_depend_on_the_directorys_name
    a batch runs dummies         test_the_body_runs_once_a_row_on_real_arguments
    bind beats the call          test_bind_fixes_parameters_and_refuses_them_again
    bind edits the row           test_rows_are_not_changed
    bind drops speculation       test_bind_keeps_the_number_of_speculative_tokens
    gen_int(stop=...) crashes    test_gen_int_and_gen_string_are_gens_with_a_dtype
    choices=[] generates         test_a_select_without_good_options_raises
    failed scope is an int       test_a_failed_scope_raises
    join loses meta info         test_join_gathers_each_name_made_after_the_fork
    joined fork appended: hang   test_joined_children_can_be_read_but_not_appended_to
    role left open               test_an_exception_in_a_turn_closes_it
    speculation: mangled text    test_another_constant_text_drops_the_surplus
    speculation: list stops      test_values_are_those_without_speculation
    speculation: batches hang    test_batches_speculate_row_by_row
    speculation: early reads     test_reading_inside_the_open_turn_is_a_misuse
    speculation: max_tokens      test_a_value_has_at_most_max_tokens_tokens
    OpenAI drops parameters      test_what_the_apis_cannot_do_is_refused_at_the_append
    Anthropic loses the system   test_every_call_carries_the_system_turns
"""

from __future__ import annotations

import io
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mmserve as sgl
from mmserve.core import (
    BackendFailed,
    ContextTooLong,
    MediaRefused,
)
from mmserve.engine import Engine
from mmserve.testing.clips import clip

GREEDY = {"temperature": 0, "max_new_tokens": 6}


def run(backend, body, *args, **values):
    """Run a body greedily."""
    return sgl.function(body).run(*args, backend=backend, **{**GREEDY, **values})


def test_every_fault_of_the_table_has_its_test():
    """The tests that the table names are there, and each is named once."""
    named = re.findall(r"(?<=  )test_\w+", __doc__ or "")
    folders = [Path(__file__).parents[2] / name for name in ("plan/lang", "whole")]
    sources = [path.read_text() for folder in folders for path in folder.rglob("test_*.py")]
    known = {name for text in sources for name in re.findall(r"^def (test_\w+)", text, re.M)}

    assert len(named) == len(set(named)) > 30
    assert set(named) <= known


def canary(backend, picture):
    """A text question and a picture question still answer."""

    def body(s):
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("a", max_tokens=2))
        s += sgl.user(sgl.image(picture)) + sgl.assistant(sgl.gen("b", max_tokens=2))

    state = run(backend, body)
    assert state.error() is None


def test_two_pictures_keep_their_places(backend, red, blue):
    """Swapping them changes the answer."""

    def body(s, first, second):
        s += sgl.user("A" + sgl.image(first) + "B" + sgl.image(second) + "?")
        s += sgl.assistant(sgl.gen("x", max_tokens=4, return_logprob=True))

    metas = [
        run(backend, body, *pair).get_meta_info("x")
        for pair in ((red, blue), (blue, red), (red, blue))
    ]
    firsts = [meta["output_token_logprobs"][0] for meta in metas]

    assert firsts[0][0] == pytest.approx(firsts[2][0], abs=1e-3)
    assert abs(firsts[0][0] - firsts[1][0]) > 1e-2 or firsts[0][1] != firsts[1][1]


def test_a_clip_answers_with_its_frames(backend, tmp_path):
    """Four frames are sampled from a file, and video tokens are counted."""
    path = tmp_path / "c.mp4"
    path.write_bytes(clip(1_000_000).mp4)

    def body(s, frames):
        s += sgl.user(sgl.video(str(path), frames) + "?") + sgl.assistant(sgl.gen("x"))

    metas = [run(backend, body, frames).get_meta_info("x") for frames in (4, 2)]

    assert metas[0]["video_tokens"] == 2 * metas[1]["video_tokens"] > 0


def test_a_clip_of_arrays_is_its_pictures(backend):
    """[T, H, W, 3] counts one frame a picture."""
    frames = np.stack([np.full((32, 32, 3), value, np.uint8) for value in (0, 128, 255)])

    def body(s):
        s += sgl.user(sgl.video(frames) + "?") + sgl.assistant(sgl.gen("x"))

    meta = run(backend, body).get_meta_info("x")

    assert meta["video_tokens"] % 3 == 0
    assert meta["video_tokens"] > 0


def test_a_picture_is_the_same_however_it_is_named(backend, red, media_host):
    """Path, bytes, file object, address, PIL, array: one answer."""
    content = Path(red).read_bytes()
    with Image.open(red) as opened:
        picture = opened.copy()
    pixels = np.asarray(picture)
    address = media_host.put("/p.png", content)
    names = [red, content, io.BytesIO(content), address, picture, pixels, pixels / 255.0]

    def body(s, named):
        s += sgl.user(sgl.image(named) + "?") + sgl.assistant(sgl.gen("x"))

    answers = {run(backend, body, named)["x"] for named in names}

    assert len(answers) == 1


def test_a_fork_in_an_open_turn_keeps_the_picture(backend, red, blue):
    """Both children see it."""

    def body(s, picture):
        s += sgl.user_begin()
        s += sgl.image(picture)
        forks = s.fork(2)
        forks += "?" + sgl.user_end() + sgl.assistant(sgl.gen("x"))
        forks.join()

    first = run(backend, body, red)
    second = run(backend, body, blue)

    assert [meta["image_tokens"] > 0 for meta in first.get_meta_info("x")] == [True, True]
    assert first["x"] != second["x"]


def test_two_answers_are_a_list(backend):
    """N = 2 gives two texts and two meta infos."""

    def body(s):
        s += "a" + sgl.gen("x", n=2, temperature=1.0, seed=3)

    state = run(backend, body)

    assert len(state["x"]) == len(state.get_meta_info("x")) == 2
    assert state.text() == "a" + state["x"][0]


def test_texts_of_a_concat_join_stand_in_order(backend):
    """The parent goes on after them."""

    def body(s):
        s += "docs: "
        forks = s.fork(2)
        forks += lambda index: f"doc{index} "
        forks.join("concate_and_append")
        s += sgl.gen("y")

    state = run(backend, body)

    assert state.text() == "docs: doc0 doc1 " + state["y"]


def test_a_prompt_that_is_too_long_is_a_typed_error(backend, red):
    """The class and numbers survive the wire; the backend goes on."""

    def body(s):
        s += "a " * 600 + sgl.gen("x")

    state = run(backend, body)
    with pytest.raises(ContextTooLong):
        state["x"]
    canary(backend, red)


def test_a_picture_that_is_none_is_refused_when_read(backend, red):
    """Bytes that no decoder knows."""

    def body(s):
        s += sgl.user(sgl.image(b"not a picture")) + sgl.assistant(sgl.gen("x"))

    with pytest.raises(MediaRefused):
        run(backend, body)["x"]
    canary(backend, red)


def test_a_server_that_is_gone_is_a_backend_failure():
    """Reading raises; nothing hangs."""

    def body(s):
        s += "a" + sgl.gen("x")

    backend = sgl.RuntimeEndpoint("http://127.0.0.1:9")
    with pytest.raises(BackendFailed):
        run(backend, body)["x"]
    backend.close()


def test_the_template_does_not_depend_on_the_directorys_name(
    tiny_directory, tmp_path, engine: Engine
):
    """A renamed model directory gives the same prompt."""

    def body(s):
        s += sgl.system("S") + sgl.user("Q") + sgl.assistant(sgl.gen("x"))

    renamed = tmp_path / "vicuna-llama-2-chat"
    shutil.copytree(tiny_directory, renamed)
    with Engine(str(renamed), threads=1, num_slots=1024) as other:
        states = [run(backend, body) for backend in (engine, other)]
        found = [(state["x"], state.get_meta_info("x")["prompt_tokens"]) for state in states]

    assert found[0] == found[1]


def test_a_program_and_a_chat_call_have_the_same_prompt(backend, engine: Engine):
    """One beginning of sequence, the same turns, the same number of tokens."""

    def body(s):
        s += sgl.system("S") + sgl.user("Q") + sgl.assistant(sgl.gen("x", max_tokens=4))

    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    answer = engine.chat(messages, sampling_params={"temperature": 0, "max_new_tokens": 4})
    state = run(backend, body)

    assert state["x"] == answer.text
    assert state.get_meta_info("x")["prompt_tokens"] == answer.usage.prompt_tokens


def test_a_failed_body_leaves_nothing_running(backend, engine: Engine, red):
    """Its calls and forks are aborted on the server."""

    def body(s):
        s += sgl.user(sgl.image(red))
        forks = s.fork(2)
        forks += sgl.assistant(sgl.gen("x", max_tokens=300, ignore_eos=True))
        time.sleep(0.3)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(backend, body)
    deadline = time.monotonic() + 5
    while engine.counters()["running"] and time.monotonic() < deadline:
        time.sleep(0.02)

    assert engine.counters()["running"] == 0


def test_int_answers_are_whole_numbers(backend):
    """Dtype constrains, and value converts."""

    def body(s):
        s += "Number: " + sgl.gen_int("x", max_tokens=8)

    state = run(backend, body)

    assert state["x"].lstrip("+-").isdigit()
    assert state.get_meta_info("x")["finish_reason"]["type"] in ("stop", "length")


def test_the_next_token_is_ranked_without_generating(backend):
    """max_tokens 0 gives no text, and the likeliest next tokens."""

    def body(s):
        s += "a" + sgl.gen("x", max_tokens=0, return_logprob=True, top_logprobs_num=3)

    state = run(backend, body)
    ranked = state.get_meta_info("x")["output_top_logprobs"][0]

    assert state["x"] == ""
    assert [row[0] for row in ranked] == sorted((row[0] for row in ranked), reverse=True)
    assert len(ranked) == 3

"""`/v1/systemone`: what reaches the engine, answers from its numbers, and refusals."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest
from support.departures import leaving, wait_until
from support.echo_client import score
from support.site import Site

from mmserve.core import (
    Busy,
    BytesSource,
    ContextTooLong,
    ImagePart,
    MediaRefused,
    RunnerFailed,
    TextPart,
    Turn,
    UrlSource,
    VideoPart,
)

PATH = "/v1/systemone"
YES_NO = {"type": "yes_no", "question": "Is it?"}
COLOUR = {"type": "choice", "question": "Which?", "choices": ["red", "blue"]}
RATE = {"type": "score", "question": "How much?", "min": 1, "max": 3}
DATA = "data:image/png;base64,AAAA"
PICTURE = {"type": "image_url", "image_url": {"url": DATA}}
OPEN = Turn("assistant", (), is_open=True)


def ask(site: Site, *questions: dict[str, Any], **fields: Any) -> httpx.Response:
    """Questions about a text, unless the state is another one."""
    fields = {"state": "A table."} | fields
    return site.post(PATH, questions=list(questions), **fields)


def answers(site: Site, *questions: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """The answers to good questions."""
    response = ask(site, *questions, **fields)
    assert response.status_code == 200, response.text
    return response.json()["answers"]


def asked(site: Site, **fields: Any) -> tuple[Any, ...]:
    """The turns of one question about a state."""
    answers(site, YES_NO, **fields)
    return site.client.requests[-1].parts


def weight(text: str) -> float:
    """The probability that the client gives a text."""
    return math.exp(sum(map(score, text.encode())))


def test_questions_become_requests_with_options(site: Site) -> None:
    """One each, in order, with the same turns before the question, and nothing to generate."""
    answers(site, COLOUR, RATE, cache_salt="s", user="alice", priority=3)
    first, second = site.client.requests
    for request, words in ((first, "Which?"), (second, "How much?")):
        texts = tuple(map(TextPart, ("A table.", "\n", words)))
        assert request.parts == (Turn("user", texts), OPEN)
        assert (request.sampling.max_new_tokens, request.cache_salt) == (0, "s")
        assert (request.client, request.priority) == ("alice", 3)
    assert first.options == ("red", "blue")
    assert second.options == ("1", "2", "3")


def test_a_choice_is_told_by_its_probabilities(site: Site) -> None:
    """They are the options' own, scaled to one; the likeliest answers."""
    (answer,) = answers(site, {**COLOUR, "id": "colour"})
    red, blue = weight("red"), weight("blue")
    assert list(answer["probabilities"]) == ["red", "blue"]
    assert answer["probabilities"]["red"] == pytest.approx(red / (red + blue))
    assert sum(answer["probabilities"].values()) == pytest.approx(1)
    assert (answer["id"], answer["type"]) == ("colour", "choice")
    assert answer["answer"] == ("red" if red > blue else "blue")
    assert "expected" not in answer


def test_a_score_has_an_expected_value(site: Site) -> None:
    """The mean of the distribution, beside the likeliest number."""
    (answer,) = answers(site, RATE)
    weights = {n: weight(str(n)) for n in (1, 2, 3)}
    total = sum(weights.values())
    assert answer["expected"] == pytest.approx(sum(n * w for n, w in weights.items()) / total)
    assert answer["answer"] == max(weights, key=weights.__getitem__)
    assert list(answer["probabilities"]) == ["1", "2", "3"]


def test_labels_have_values_of_their_own(site: Site) -> None:
    """The likeliest label answers, their values make the mean."""
    labels = [{"label": "bad", "value": -1}, {"label": "good", "value": 2.5}]
    (answer,) = answers(site, {"type": "score", "question": "How is it?", "labels": labels})
    bad, good = weight("bad"), weight("good")
    assert answer["expected"] == pytest.approx((2.5 * good - bad) / (good + bad))
    assert answer["answer"] == ("bad" if bad > good else "good")


def test_yes_in_either_spelling_is_yes(site: Site) -> None:
    """The probabilities of the spellings add up."""
    (answer,) = answers(site, YES_NO)
    yes, no = (sum(map(weight, both)) for both in (("yes", "Yes"), ("no", "No")))
    assert answer["probabilities"] == pytest.approx(
        {"yes": yes / (yes + no), "no": no / (yes + no)}
    )
    assert answer["answer"] == ("yes" if yes > no else "no")


def test_a_number_that_begins_another_is_told_apart(site: Site) -> None:
    """Of what begins with 1, the part that goes on as 10 is no 1."""
    choices = ["1", "10", "7"]
    (answer,) = answers(site, {**COLOUR, "choices": choices})
    one, ten, seven = map(weight, choices)
    total = one + seven
    assert answer["probabilities"] == pytest.approx(
        {"1": (one - ten) / total, "10": ten / total, "7": seven / total}
    )


def test_ids_are_given_or_counted(site: Site) -> None:
    """A question without an id has its place for one."""
    told = answers(site, YES_NO, {**YES_NO, "id": "b"}, YES_NO)
    assert [answer["id"] for answer in told] == ["0", "b", "2"]


def test_the_state_is_parts_with_media(site: Site) -> None:
    """Pictures and clips stand where they are; base64 is read once for all questions."""
    url = "https://example.org/clip.mp4"
    clip = {"type": "video_url", "video_url": {"url": url}}
    turn, _ = asked(site, state=[PICTURE, clip], num_frames=4, max_pixels=100)
    assert turn.parts == (
        ImagePart(BytesSource(b"\0\0\0"), 100),
        VideoPart(UrlSource(url), num_frames=4, max_pixels=100),
        TextPart("Is it?"),
    )
    answers(site, YES_NO, YES_NO, state=[PICTURE])
    first, second = (request.parts[0].parts[0].source for request in site.client.requests[-2:])
    assert first is second


@pytest.mark.parametrize("field", ["state", "messages"])
def test_the_state_is_messages(site: Site, field: str) -> None:
    """The question joins the user's last turn, or begins one behind the assistant's."""
    system = {"role": "system", "content": "Be exact."}
    said = {"role": "user", "content": [PICTURE, {"type": "text", "text": "Look!\n"}]}
    reply = {"role": "assistant", "content": "I see."}
    first, user, last = asked(site, **{"state": None, field: [system, said]})
    assert (first, last) == (Turn("system", (TextPart("Be exact."),)), OPEN)
    assert user.parts[1:] == (TextPart("Look!\n"), TextPart("Is it?"))
    turns = asked(site, **{"state": None, field: [said, reply]})
    assert turns[1:] == (
        Turn("assistant", (TextPart("I see."),)),
        Turn("user", (TextPart("Is it?"),)),
        OPEN,
    )


def test_a_state_may_ask_by_itself(site: Site) -> None:
    """Without words the options follow the state, in the assistant's own turn if it ends so."""
    silent = {"type": "yes_no"}
    answers(site, silent, state="Is it red?")
    assert site.client.requests[-1].parts == (Turn("user", (TextPart("Is it red?"),)), OPEN)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "It is "}]
    answers(site, silent, state=messages)
    last = site.client.requests[-1].parts[-1]
    assert last == Turn("assistant", (TextPart("It is "),), is_open=True)


def test_media_that_are_fetched_are_held_for_the_call(site: Site) -> None:
    """From before the first question to after the last, under the tenant's salt."""
    url = "https://example.org/a.png"
    parts = [{"type": "image_url", "image_url": {"url": url}}, PICTURE]
    answers(site, YES_NO, COLOUR, state=parts, cache_salt="s", user="alice")
    assert site.client.released == [(ImagePart(UrlSource(url)), "s", 0, 2)]


def test_usage_counts_every_place_once(site: Site) -> None:
    """The state once, then each question's own tokens and each option's."""
    response = ask(site, COLOUR, {**COLOUR, "choices": ["red", "rose"]}, RATE, state=[PICTURE])
    usage = response.json()["usage"]
    state = len("<[user]") - len("<") + 1 + 4
    own = len("Which?[assistant]") + len("How much?[assistant]")
    options = len("red") + len("blue") + len("ose") + 3
    assert usage["prompt_tokens"] == usage["total_tokens"] == state + own + options
    assert usage["completion_tokens"] == 0
    assert usage["prompt_tokens_details"]["image_tokens"] == 4
    details = usage["prompt_tokens_details"]
    assert details["cached_tokens"] == max(0, usage["prompt_tokens"] - usage["computed_tokens"])


def test_timing_and_clips_are_told(site: Site) -> None:
    """Timing and cache if asked for, the frames of each clip once."""
    clip = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    plain = ask(site, YES_NO, COLOUR, state=[clip]).json()["mmserve"]
    assert plain == {"clips": [{"timestamps_s": [0.0, 0.5], "note": None}]}
    timed = ask(site, YES_NO, return_timing=True).json()["mmserve"]
    assert timed["timing_ms"]["total"] == 2.5
    assert timed["cache"]["text"]["hit"] == 1


def test_the_answer_has_an_id(site: Site) -> None:
    """The client's own, by which the call can be aborted, or a new one."""
    response = ask(site, YES_NO, rid="mine")
    assert (response.json()["id"], response.headers["X-Request-Id"]) == ("mine", "mine")
    assert ask(site, YES_NO).json()["id"].startswith("sysone-")


BAD: list[tuple[list[dict[str, Any]], str]] = [
    ([], "questions"),
    ([YES_NO] * 257, "questions"),
    ([YES_NO, {"type": "essay"}], "questions[1].type"),
    ([{"question": "?"}], "questions[0].type"),
    ([YES_NO, {**YES_NO, "choices": ["a", "b"]}], "questions[1].choices"),
    ([YES_NO] * 3 + [{"type": "choice"}], "questions[3].choices"),
    ([{"type": "choice", "choices": ["a"]}], "questions[0].choices"),
    ([{"type": "choice", "choices": [str(n) for n in range(257)]}], "questions[0].choices"),
    ([{"type": "choice", "choices": ["a", ""]}], "questions[0].choices[1]"),
    ([{"type": "choice", "choices": ["a", "b", "a"]}], "questions[0].choices[2]"),
    ([{"type": "score", "min": 1}], "questions[0].max"),
    ([{"type": "score", "min": 3, "max": 3}], "questions[0].max"),
    ([{"type": "score", "min": 0, "max": 256}], "questions[0].max"),
    ([{"type": "score", "min": 0.5, "max": 2}], "questions[0].min"),
    ([{**RATE, "labels": [{"label": "a", "value": 1}] * 2}], "questions[0].min"),
    (
        [{"type": "score", "labels": [{"label": "a", "value": 1}, {"label": "b"}]}],
        "questions[0].labels[1].value",
    ),
    (
        [{"type": "score", "labels": [{"label": "a", "value": n} for n in (1, 2)]}],
        "questions[0].labels[1].label",
    ),
    ([{**YES_NO, "id": "a"}, {**YES_NO, "id": "a"}], "questions[1].id"),
    ([YES_NO, {**YES_NO, "id": ""}], "questions[1].id"),
    ([YES_NO, {**YES_NO, "temperature": 0}], "questions[1].temperature"),
]


@pytest.mark.parametrize(("questions", "param"), BAD)
def test_bad_questions_are_named(
    site: Site, questions: list[dict[str, Any]], param: str
) -> None:
    """A 400 says which question and which field of it; nothing reaches the engine."""
    assert site.refused(ask(site, *questions))["param"] == param
    assert site.client.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"state": None}, "state"),
        ({"messages": [{"role": "user", "content": "a"}]}, "state"),
        ({"state": ""}, "state"),
        ({"state": []}, "state"),
        ({"state": 5}, "state"),
        ({"state": [{"type": "sound"}]}, "state[0].type"),
        ({"state": [{"role": "king", "content": "a"}]}, "state[0].role"),
        ({"temperature": 0}, "temperature"),
        ({"stream": True}, "stream"),
    ],
)
def test_bad_states_are_named(site: Site, fields: dict[str, Any], param: str) -> None:
    """As chat names them; nothing streams, and nothing is drawn by chance."""
    assert site.refused(ask(site, YES_NO, **fields))["param"] == param


def test_other_models_are_not_there(site: Site) -> None:
    """A 404, as everywhere."""
    assert site.refused(ask(site, YES_NO, model="other"), 404)["param"] == "model"


def test_a_question_that_is_too_long_is_named(site: Site) -> None:
    """The engine's refusal says whose it is."""
    site.client.refusals["A table.\nWhich?"] = ContextTooLong("4097 tokens", tokens=4097)
    error = site.refused(ask(site, YES_NO, COLOUR))
    assert error["param"] == "questions[1]"
    assert error["message"].startswith("questions[1]: 4097 tokens")


def test_a_bad_picture_is_the_states(site: Site) -> None:
    """No question is blamed for it; where it must be fetched, only one question has asked."""
    refusal = MediaRefused("picture 1 cannot be read", reason="undecodable", field="image")
    site.client.refusals["Is it?"] = refusal
    parts = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    error = site.refused(ask(site, YES_NO, COLOUR, COLOUR, state=parts))
    assert (error["param"], len(site.client.requests)) == ("image", 1)
    assert len(site.client.released) == 1


def test_one_failure_ends_the_call(site: Site) -> None:
    """With its status; the questions behind it are cancelled."""
    site.client.failures["A table.\nIs it?"] = (0, RunnerFailed("secret"))
    site.refused(ask(site, YES_NO, COLOUR), 500)
    assert site.client.tickets[1].is_cancelled
    site.client.reset()
    site.client.refusals["A table.\nWhich?"] = Busy("full", retry_after_s=3)
    response = ask(site, YES_NO, COLOUR)
    site.refused(response, 429)
    assert response.headers["Retry-After"] == "3"
    assert all(ticket.is_cancelled for ticket in site.client.tickets)


def test_who_leaves_is_cancelled(site: Site) -> None:
    """All questions of a client that has gone are aborted."""
    site.client.pace_s = 0.2
    with leaving(site.url, PATH, {"state": "x", "questions": [YES_NO] * 20}):
        wait_until(lambda: len(site.client.tickets) == 20)
    wait_until(lambda: not any(ticket.is_running for ticket in site.client.tickets))
    assert "abort" in site.client.tickets[-1].ends.values()


def test_the_most_questions_and_options_pass(site: Site) -> None:
    """256 of each."""
    wide = {"type": "choice", "choices": [f"<{n}>" for n in range(256)]}
    assert len(answers(site, *([YES_NO] * 255), wide)[-1]["probabilities"]) == 256

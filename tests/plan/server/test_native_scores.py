"""Log-probabilities of the native route: which positions, in which form."""

from __future__ import annotations

import pytest
from support.echo_client import BOS, IMAGE

PNG = "iVBORw0KGgo="
PROMPT = [BOS, *b"abcd"]


def scores(site, start: int | None, limit: int, **fields: object) -> dict:
    """Meta info of a prompt of five tokens."""
    asked = {"text": "abcd", "return_logprob": True, "logprob_start_len": start, **fields}
    response = site.post("/generate", sampling_params={"max_new_tokens": limit}, **asked)
    assert response.status_code == 200, response.text
    return response.json()["meta_info"]


@pytest.mark.parametrize(
    ("start", "want"),
    [(None, []), (-1, []), (0, PROMPT), (1, PROMPT[1:]), (4, PROMPT[4:]), (5, [])],
)
def test_generating_reports_from_the_start_on(site, start: int | None, want: list[int]) -> None:
    """By default nothing of the prompt; from 0 the first number is null; else all are there."""
    entries = scores(site, start, 2)["input_token_logprobs"]
    assert [token_id for _, token_id, _ in entries] == want
    assert [number is None for number, _, _ in entries] == [k == BOS for k in want]


@pytest.mark.parametrize(
    ("start", "want"),
    [
        (None, PROMPT),
        (-1, PROMPT),
        (0, PROMPT),
        (1, PROMPT[2:]),
        (3, PROMPT[4:]),
        (4, []),
        (5, []),
    ],
)
def test_scoring_reports_after_the_start(site, start: int | None, want: list[int]) -> None:
    """From 1 on, the first entry is the token after position L, and every entry is a number."""
    entries = scores(site, start, 0)["input_token_logprobs"]
    assert [token_id for _, token_id, _ in entries] == want
    assert [number is None for number, _, _ in entries] == [k == BOS for k in want]


def test_scoring_adds_the_next_token_uncounted(site) -> None:
    """One output row, no completion token, no text."""
    meta = scores(site, 1, 0)
    assert len(meta["output_token_logprobs"]) == 1
    assert meta["completion_tokens"] == 0


def test_entries_have_text_when_asked(site) -> None:
    """Null otherwise."""
    with_text = scores(site, 0, 1, return_text_in_logprobs=True)
    assert [words for _, _, words in with_text["input_token_logprobs"]] == ["<s>", *"abcd"]
    without = scores(site, 0, 1)
    assert {words for _, _, words in without["output_token_logprobs"]} == {None}


def test_likeliest_tokens(site) -> None:
    """Three entries a position, best first; the first position of all has none."""
    meta = scores(site, 0, 2, top_logprobs_num=3)
    assert meta["input_top_logprobs"][0] is None
    assert [len(row) for row in meta["input_top_logprobs"][1:]] == [3] * 4
    assert [len(row) for row in meta["output_top_logprobs"]] == [3, 3]
    numbers = [number for number, _, _ in meta["output_top_logprobs"][0]]
    assert numbers == sorted(numbers, reverse=True)


def test_media_positions_have_no_number(site) -> None:
    """Null, and the placeholder's id."""
    meta = scores(site, 0, 1, text="a<image>", image_data=PNG)
    assert [number for number, token_id, _ in meta["input_token_logprobs"] if token_id == IMAGE]
    assert all(
        number is None
        for number, token_id, _ in meta["input_token_logprobs"]
        if token_id == IMAGE
    )


def test_values_may_differ_by_prompt(site) -> None:
    """Which prompts are scored, from where, is each prompt's own."""
    answers = site.post(
        "/generate",
        text=["abcd", "abcd"],
        return_logprob=[True, False],
        logprob_start_len=[0, -1],
        sampling_params={"max_new_tokens": 1},
    ).json()
    assert len(answers[0]["meta_info"]["input_token_logprobs"]) == 5
    assert "input_token_logprobs" not in answers[1]["meta_info"]


def test_streams_accumulate_scores(site) -> None:
    """Output rows grow with the text."""
    meta = scores(site, None, 3)
    assert meta["output_token_logprobs_length"] == len(meta["output_token_logprobs"]) == 3

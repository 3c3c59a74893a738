"""The completions route."""

from __future__ import annotations

import pytest

from mmserve.core import ContextTooLong, RawPart, TokensPart


def test_an_answer_has_openais_form(site) -> None:
    """The documented object, and template text as the prompt, sixteen tokens by default."""
    answer = site.post("/v1/completions", prompt="a" * 20).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == "a" * 16
    assert answer["choices"][0]["finish_reason"] == "length"
    assert site.client.requests[0].parts == (RawPart("a" * 20),)


def test_prompts_of_all_kinds(site) -> None:
    """Texts and ids, alone and in lists; choices in the prompts' order."""
    for prompt, want in [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([97, 98], ["ab"]),
        ([[97], [98, 99]], ["a", "bc"]),
    ]:
        answer = site.post("/v1/completions", prompt=prompt).json()
        assert [choice["text"] for choice in answer["choices"]] == want
    assert site.client.requests[-1].parts == (TokensPart((98, 99)),)


def test_a_batch_counts_every_prompt_once(site) -> None:
    """Two prompts with two samples each: flat choices, prompts counted once."""
    answer = site.post("/v1/completions", prompt=["a", "bc"], n=2).json()
    assert [choice["text"] for choice in answer["choices"]] == ["a", "a", "bc", "bc"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 2 + 3
    assert answer["usage"]["completion_tokens"] == 2 * (1 + 2)


def test_echo_repeats_the_prompt_with_its_scores(site) -> None:
    """Prompt and answer in one table; the first token has no number, offsets fit the text."""
    answer = site.post("/v1/completions", prompt="abc", echo=True, logprobs=1, max_tokens=1)
    choice = answer.json()["choices"][0]
    table = choice["logprobs"]
    assert choice["text"] == "abca"
    assert table["tokens"] == ["<s>", "a", "b", "c", "a"]
    assert table["token_logprobs"][0] is None
    assert None not in table["token_logprobs"][1:]
    assert table["text_offset"] == [0, 0, 1, 2, 3]
    assert len(table["top_logprobs"][1]) == 1


def test_scoring_a_prompt_alone(site) -> None:
    """Nothing generated, the prompt's numbers are there."""
    asked = {"prompt": [97, 98], "echo": True, "logprobs": 0, "max_tokens": 0}
    choice = site.post("/v1/completions", **asked).json()["choices"][0]
    assert choice["text"] == "ab"
    assert choice["logprobs"]["tokens"][:3] == ["<s>", "a", "b"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [300]}, "prompt[0]"),
        ({"prompt": [97, "a"]}, "prompt[1]"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "logprobs": True}, "logprobs"),
        ({"prompt": "x", "messages": []}, "messages"),
        ({"prompt": "x", "echo": 1}, "echo"),
    ],
)
def test_wrong_fields_are_refused_by_name(site, fields: dict, param: str) -> None:
    """A 400 names the field."""
    assert site.refused(site.post("/v1/completions", **fields))["param"] == param


def test_one_bad_prompt_refuses_the_batch(site) -> None:
    """The refusal is told once, and nothing of the batch goes on."""
    site.client.refusals["bad"] = ContextTooLong("too long")
    site.refused(site.post("/v1/completions", prompt=["good", "bad"]))
    assert site.client.tickets[0].is_cancelled

"""The native route on a real engine: scores, choices, media, samples."""

from __future__ import annotations

import base64
import math

import pytest


def generate(ask, **fields: object):
    """A greedy native call."""
    reply = ask.post("/generate", fields)
    assert reply.status == 200, reply.body
    return reply.body


def scores(ask, prompt: str, start: int) -> list:
    """Entries of the prompt when scoring from `start`."""
    answer = generate(
        ask,
        text=prompt,
        sampling_params={"max_new_tokens": 0, "temperature": 0},
        return_logprob=True,
        logprob_start_len=start,
    )
    assert answer["meta_info"]["completion_tokens"] == 0
    assert len(answer["meta_info"]["output_token_logprobs"]) == 1
    return answer["meta_info"]["input_token_logprobs"]


def test_scores_are_the_same_warm_and_cold(ask) -> None:
    """The table of the format holds whatever is cached."""
    prompt = "The sky is blue, the sea is green"
    ask.flush()
    cold = scores(ask, prompt, 0)
    num_tokens = len(cold)
    assert [entry[0] is None for entry in cold] == [True] + [False] * (num_tokens - 1)
    for start in (-1, 0, 1, 5, num_tokens - 2, num_tokens - 1, num_tokens):
        warm = scores(ask, prompt, start)
        want = cold if start <= 0 else cold[start + 1 :]
        assert [entry[1] for entry in warm] == [entry[1] for entry in want]
        for left, right in zip(warm, want, strict=True):
            assert left[0] == (
                right[0] if right[0] is None else pytest.approx(right[0], abs=1e-3)
            )


def test_scores_beyond_the_prompt_are_refused(ask) -> None:
    """A start after the prompt's end is a 400 that names the field."""
    reply = ask.post(
        "/generate", {"text": "a", "return_logprob": True, "logprob_start_len": 99}
    )
    assert (reply.status, reply.error["param"]) == (400, "logprob_start_len")


def test_choices_are_exact(ask) -> None:
    """Scores of options equal those of the whole texts."""
    prompt, options = "The sky is", [" blue", " red and green", "!"]
    answer = generate(ask, text=prompt, choices=options)
    for option, scored in zip(options, answer["meta_info"]["choices"], strict=True):
        whole = scores(ask, prompt + option, 0)
        tail = whole[len(whole) - len(scored["token_ids"]) :]
        assert [entry[1] for entry in tail] == scored["token_ids"]
        assert scored["logprobs"] == pytest.approx([entry[0] for entry in tail], abs=1e-3)


def test_pictures_take_their_places(ask, pictures) -> None:
    """Base64 beside template text; swapping the pictures changes the answer's numbers."""
    items = [base64.b64encode(content).decode() for content in pictures]
    asked = {
        "text": "<|user|>A<image>B<image>?<|end|><|assistant|>",
        "sampling_params": {"max_new_tokens": 2, "temperature": 0},
        "return_logprob": True,
    }
    first = generate(ask, **asked, image_data=items)["meta_info"]
    second = generate(ask, **asked, image_data=items[::-1])["meta_info"]
    assert first["image_tokens"] == second["image_tokens"] > 0
    left, right = (m["output_token_logprobs"][0] for m in (first, second))
    assert left[1] != right[1] or not math.isclose(left[0], right[0], abs_tol=1e-4)


def test_nothing_to_generate_fills_the_cache(ask) -> None:
    """A hint computes the prompt; the next request finds it."""
    ask.flush()
    hint = generate(ask, text="Long ago and far away", sampling_params={"max_new_tokens": 0})
    assert (hint["text"], hint["meta_info"]["completion_tokens"]) == ("", 0)
    after = generate(ask, text="Long ago and far away", sampling_params={"max_new_tokens": 1})
    assert after["meta_info"]["cached_tokens"] == after["meta_info"]["prompt_tokens"] - 1


def test_batches_and_samples_are_flat(ask) -> None:
    """Two texts with two greedy samples each, in order."""
    sampling = {"max_new_tokens": 6, "temperature": 0, "n": 2}
    batch = generate(ask, text=["One day", "Why"], sampling_params=sampling)
    texts = [answer["text"] for answer in batch]
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    alone = generate(ask, text="Why", sampling_params={"max_new_tokens": 6, "temperature": 0})
    assert alone["text"] == texts[2]

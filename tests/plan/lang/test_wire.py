"""The wire: requests as JSON bodies, replies as outputs and typed errors."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mmserve.core import (
    Aborted,
    BackendFailed,
    BadRequest,
    Busy,
    BytesSource,
    Constraint,
    ConstraintRefused,
    ContextTooLong,
    Finish,
    FramesSource,
    ImagePart,
    MediaRefused,
    NotFound,
    RawPart,
    Request,
    SamplingParams,
    TextPart,
    TokenLogprob,
    TokensPart,
    Turn,
    UrlSource,
    VideoPart,
)
from mmserve.core.wire import error_from, output_from
from mmserve.lang.backends.replies import choice_scores, events
from mmserve.lang.backends.wire import request_body

PNG = BytesSource(b"\x89PNG")
DATA = "data:image/png;base64,iVBORw=="


def request(*parts, **sampling):
    """A request of parts and sampling values."""
    return Request(request_id="r1", parts=parts, sampling=SamplingParams(**sampling))


def test_parts_keep_their_kind_and_order():
    """Text is text, raw is raw, turns hold parts, the last may be open."""
    body = request_body(
        request(
            TextPart("a"),
            RawPart("b"),
            TokensPart((1, 2)),
            Turn("user", (TextPart("c"), ImagePart(PNG))),
            Turn("assistant", (), is_open=True),
        )
    )

    assert body["parts"] == [
        {"text": "a"},
        {"raw": "b"},
        {"tokens": [1, 2]},
        {"role": "user", "parts": [{"text": "c"}, {"image": DATA}], "open": False},
        {"role": "assistant", "parts": [], "open": True},
    ]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (ImagePart(UrlSource("http://h/p")), {"image": "http://h/p"}),
        (ImagePart(PNG, 9, 4), {"image": {"url": DATA, "max_pixels": 9, "min_pixels": 4}}),
        (
            VideoPart(UrlSource("http://h/c"), 4, 2.0, 0.0, 3.0),
            {
                "video": {
                    "url": "http://h/c",
                    "num_frames": 4,
                    "fps": 2.0,
                    "start_s": 0.0,
                    "end_s": 3.0,
                }
            },
        ),
        (
            VideoPart(FramesSource((PNG, PNG), 2.0), 1),
            {"video": {"frames": [DATA, DATA], "num_frames": 1, "fps": 2.0}},
        ),
    ],
)
def test_media_carry_their_options(part, expected):
    """A bare address where there are none, an object otherwise."""
    assert request_body(request(part))["parts"] == [expected]


def test_media_go_under_the_names_they_are_given():
    """Pictures, clips and frames, in turns and outside; options stay."""
    clip = VideoPart(FramesSource((PNG, PNG), 2.0))
    asked = request(ImagePart(PNG), Turn("user", (ImagePart(PNG, 9), VideoPart(PNG, 4), clip)))
    body = request_body(asked, lambda source: f"id of {source.content[1:].decode()}")

    assert body["parts"] == [
        {"image": "id of PNG"},
        {
            "role": "user",
            "parts": [
                {"image": {"url": "id of PNG", "max_pixels": 9}},
                {"video": {"url": "id of PNG", "num_frames": 4}},
                {"video": {"frames": ["id of PNG", "id of PNG"], "fps": 2.0}},
            ],
            "open": False,
        },
    ]


def test_a_call_that_generates_is_streamed_in_increments():
    """One that only scores or commits is not."""
    generating = request_body(request(TextPart("a")))
    committing = request_body(request(TextPart("a"), max_new_tokens=0))

    assert (generating["stream"], generating["incremental"]) == (True, True)
    assert "stream" not in committing


def test_only_values_that_differ_are_sent():
    """max_new_tokens always is, since a server may have another default."""
    body = request_body(request(TextPart("a"), temperature=0.0, stop=("x",), seed=3))

    assert body["sampling_params"] == {
        "max_new_tokens": 128,
        "temperature": 0.0,
        "stop": ["x"],
        "sampling_seed": 3,
    }
    assert body["rid"] == "r1"


def test_a_constraint_goes_under_its_kind():
    """regex, json_schema, ebnf."""
    body = request_body(request(TextPart("a"), constraint=Constraint("regex", "a+")))

    assert body["sampling_params"]["regex"] == "a+"


def test_bare_ids_without_a_beginning_go_as_ids():
    """The rule that needs unconditional numbers posts them so."""
    bare = replace(request(TokensPart((5, 6)), max_new_tokens=0), add_bos="never")

    assert request_body(bare)["input_ids"] == [5, 6]


@pytest.mark.parametrize("wanted", [0, 1, 2, 5])
@pytest.mark.parametrize("max_new_tokens", [0, 4])
def test_numbers_asked_for_are_numbers_got(wanted, max_new_tokens):
    """Through the table of positions, scoring or not, exactly [wanted, P) come."""
    num_prompt = 6
    asked = request(
        TextPart("a"),
        max_new_tokens=max_new_tokens,
        return_logprobs=True,
        prompt_logprobs_from=wanted,
    )
    start = request_body(asked)["logprob_start_len"]
    first = start + 1 if max_new_tokens == 0 and start > 0 else start
    entries = [[-float(k) if k else None, k, None] for k in range(first, num_prompt)]
    event = {"text": "", "meta_info": {"input_token_logprobs": entries}}

    got = output_from(event, asked).prompt_logprobs or ()

    assert [entry.token_id for entry in got] == list(range(wanted, num_prompt))


def test_a_reply_becomes_an_output():
    """Counts, numbers with their likeliest, why it ended, how long it took."""
    output = output_from(
        {
            "text": " Th",
            "output_ids": [708],
            "meta_info": {
                "finish_reason": {"type": "stop", "matched": "\n"},
                "prompt_tokens": 603,
                "completion_tokens": 3,
                "cached_tokens": 577,
                "image_tokens": 576,
                "cached_tokens_details": {"text": 1, "image": 576, "video": 0},
                "e2e_latency": 0.182,
                "output_token_logprobs": [[-0.5, 708, " Th"]],
                "output_top_logprobs": [[[-0.5, 708, " Th"], [-1.0, 9, None]]],
            },
        },
        request(TextPart("a")),
    )

    assert (output.text, output.token_ids, output.index) == (" Th", (708,), 0)
    assert output.finish == Finish("stop", "\n")
    assert (output.usage.cached_image_tokens, output.usage.prompt_tokens) == (576, 603)
    assert output.timing.total == 182.0
    assert output.logprobs == (
        TokenLogprob(708, -0.5, b" Th", ((708, -0.5, b" Th"), (9, -1.0, b""))),
    )


@pytest.mark.parametrize(
    "reply",
    [{}, {"text": "a"}, {"text": "a", "meta_info": {"finish_reason": {"type": "odd"}}}],
)
def test_a_malformed_reply_is_the_backends_failure(reply):
    """It does not look like an answer, nor like a fault of ours."""
    with pytest.raises(BackendFailed):
        output_from(reply, request(TextPart("a")))


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "bad_request", BadRequest),
        (400, "context_too_long", ContextTooLong),
        (400, "media_refused", MediaRefused),
        (400, "constraint_refused", ConstraintRefused),
        (400, "unheard_of", BadRequest),
        (401, None, BadRequest),
        (404, "not_found", NotFound),
        (429, "busy", Busy),
        (503, None, Busy),
        (500, "runner_failed", BackendFailed),
        (500, None, BackendFailed),
        (502, None, BackendFailed),
        (None, "aborted", Aborted),
        (None, "runner_failed", BackendFailed),
        (None, None, BackendFailed),
    ],
)
def test_an_error_is_rebuilt_from_its_code_and_status(status, code, expected):
    """The stable code word counts for what the caller can fix; 5xx is the backend's failure."""
    body = {"error": {"message": "m", "type": "t", "param": "images", "code": code}}
    error = error_from(status, body, "3")

    assert type(error) is expected
    assert error.message == "m"
    assert (error.fields["status"], error.param) == (status, "images")
    assert error.fields["retry_after_s"] == 3


def test_an_error_without_a_body_still_has_its_status():
    """A proxy's page is no JSON."""
    assert error_from(502, None).fields["status"] == 502


def test_events_end_with_done():
    """Comments and blank lines are skipped."""
    lines = ["data: " + json.dumps({"a": 1}), "", ": ping", "data: [DONE]", "data: {}"]

    assert list(events(lines)) == [{"a": 1}]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["data: {}"], BackendFailed),
        (["data: {"], BackendFailed),
        (['data: {"error": {"message": "m", "code": "runner_failed"}}'], BackendFailed),
    ],
)
def test_a_stream_that_breaks_off_or_reports_an_error_raises(lines, expected):
    """Nothing that failed looks like an end."""
    with pytest.raises(expected):
        list(events(lines))


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"choices": []},
        {"choices": [{"token_ids": [1], "logprobs": []}]},
        {"choices": [{"token_ids": [], "logprobs": []}]},
        {"choices": [{"token_ids": [1], "logprobs": [None]}]},
    ],
)
def test_scores_that_are_missing_are_the_backends_failure(meta):
    """Every option has a number for each of its tokens."""
    with pytest.raises(BackendFailed):
        choice_scores(meta, 1)

"""The native route: forms of prompts, batches, samples, streams."""

from __future__ import annotations

import base64

import pytest
from support.echo_client import BOS, EOS, IMAGE
from support.site import events_of

from mmserve.core import (
    BytesSource,
    Constraint,
    FramesSource,
    ImagePart,
    RawPart,
    RunnerFailed,
    SamplingParams,
    TextPart,
    TokensPart,
    Turn,
    UrlSource,
    VideoPart,
)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(4) + b"IEND" + bytes(4)
ITEM = base64.b64encode(PNG).decode()
PICTURE = ImagePart(BytesSource(PNG))


def generate(site, **fields: object):
    """A native call of at most 100 tokens."""
    sampling = {"max_new_tokens": 100}
    return site.post("/generate", **{"sampling_params": sampling, **fields})


def parts_of(site, **fields: object) -> tuple:
    """The parts of the last request after this call."""
    response = generate(site, **fields)
    assert response.status_code == 200, response.text
    return site.client.requests[-1].parts


def test_an_answer_has_the_native_form(site) -> None:
    """Text, ids, and the documented meta info."""
    answer = generate(site, text="ab", rid="c41e07").json()
    meta = answer["meta_info"]
    assert (answer["text"], answer["output_ids"]) == ("ab", [97, 98])
    assert meta["id"] == "c41e07"
    assert meta["finish_reason"] == {"type": "stop", "matched": EOS}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (3, 2)
    assert set(meta["cached_tokens_details"]) == {"text", "image", "video"}
    assert {"cached_tokens", "image_tokens", "video_tokens", "num_retractions"} <= set(meta)
    assert 0 < meta["e2e_latency"] < 5


def test_put_is_post(site) -> None:
    """Both methods answer."""
    assert site.http.put("/generate", json={"text": "ab"}).json()["text"] == "ab"


def test_the_default_limit_is_128(site) -> None:
    """Without sampling values, and with null ones, the core's defaults hold."""
    for params in ({}, {"sampling_params": {"max_new_tokens": None, "temperature": None}}):
        assert site.post("/generate", text="x", **params).status_code == 200
        assert site.client.requests[-1].sampling == SamplingParams()


def test_text_is_template_text(site) -> None:
    """Raw parts, split at the placeholders, the k-th takes item k; the client's model's too."""
    url = UrlSource("http://h/b")
    parts = parts_of(site, text="a<image>b[IMG]<echo_image>", image_data=[ITEM, url.url, ITEM])
    assert parts == (RawPart("a"), PICTURE, RawPart("b"), ImagePart(url), PICTURE)


def test_without_media_placeholders_are_text(site) -> None:
    """Nothing is split where nothing was sent."""
    assert parts_of(site, text="a<image>b") == (RawPart("a<image>b"),)


def test_unequal_counts_are_refused(site) -> None:
    """More placeholders than pictures, or fewer."""
    for text in ("a", "<image><image>"):
        site.refused(generate(site, text=text, image_data=ITEM))


def test_ids_take_pictures_at_the_placeholder(site) -> None:
    """The model's own placeholder id is where a picture goes."""
    parts = parts_of(site, input_ids=[97, IMAGE, 98], image_data=ITEM)
    assert parts == (TokensPart((97,)), PICTURE, TokensPart((98,)))
    site.refused(generate(site, input_ids=[97], image_data=ITEM))


def test_clips(site) -> None:
    """`video_data`, and frames in a row among the pictures."""
    assert parts_of(
        site, text="<video>", video_data={"url": "http://h/c", "num_frames": 2}
    ) == (VideoPart(UrlSource("http://h/c"), 2),)
    frames = "video:" + base64.b64encode(PNG + PNG).decode()
    clip = VideoPart(FramesSource((BytesSource(PNG), BytesSource(PNG))))
    assert parts_of(site, text="<image>", image_data=[frames]) == (clip,)


def test_parts_stand_as_they_are(site) -> None:
    """Text, raw text, media and turns; the last turn may be open."""
    turn = {"role": "user", "parts": [{"text": "t"}, {"image": {"url": ITEM, "max_pixels": 9}}]}
    parts = parts_of(
        site,
        parts=[{"raw": "<s>"}, {"image": ITEM}, turn, {"role": "assistant", "open": True}],
    )
    assert parts == (
        RawPart("<s>"),
        PICTURE,
        Turn("user", (TextPart("t"), ImagePart(BytesSource(PNG), 9))),
        Turn("assistant", (), is_open=True),
    )


def test_batches_answer_in_order(site) -> None:
    """Lists of texts or ids give lists, also lists of one; samples are flat."""
    assert [a["text"] for a in generate(site, text=["a", "bc"]).json()] == ["a", "bc"]
    assert [a["text"] for a in generate(site, input_ids=[[97]]).json()] == ["a"]
    many = generate(site, text=["a", "b"], sampling_params={"n": 2}, rid="r").json()
    assert [a["text"] for a in many] == ["a", "a", "b", "b"]
    assert [a["meta_info"]["id"] for a in many] == ["r_0", "r_1", "r_2", "r_3"]
    one = generate(site, text="a", sampling_params={"n": 2}, rid="r").json()
    assert [a["meta_info"]["id"] for a in one] == ["r_0", "r_1"]


def test_batches_take_a_value_for_each_prompt(site) -> None:
    """Sampling, ids and media by prompt; one picture for all is shared."""
    values = [{"max_new_tokens": 1}, {"max_new_tokens": 2}]
    answers = generate(site, text=["abc", "abc"], sampling_params=values, rid=["x", "y"]).json()
    assert [a["text"] for a in answers] == ["a", "ab"]
    assert [a["meta_info"]["id"] for a in answers] == ["x", "y"]
    generate(site, text=["<image>a", "b"], image_data=[[ITEM], None])
    assert [r.parts for r in site.client.requests[-2:]] == [
        (PICTURE, RawPart("a")),
        (RawPart("b"),),
    ]
    generate(site, text=["<image>a", "<image>b"], image_data=ITEM)
    assert [r.parts[0] for r in site.client.requests[-2:]] == [PICTURE, PICTURE]


@pytest.mark.parametrize("field", ["text", "rid"])
def test_refusals_name_both_forms(site, field) -> None:
    """Where one string or a list may stand, the refusal of a number says so."""
    message = generate(site, **{"text": "a", field: 5}).json()["error"]["message"]
    assert message == f"{field} is 5, allowed is a string or a list of strings"


def test_streams_are_cumulative(site) -> None:
    """Text and ids so far in every event, a finish in the last, then the end."""
    events = events_of(generate(site, text="héy", stream=True))
    assert events.pop() == "[DONE]"
    assert [event["text"] for event in events] == ["h", "h", "hé", "héy", "héy"]
    assert [len(event["output_ids"]) for event in events] == [1, 2, 3, 4, 4]
    finishes = [event["meta_info"]["finish_reason"] for event in events]
    assert finishes == [None] * 4 + [{"type": "stop", "matched": EOS}]
    assert all("index" not in event for event in events)


def test_streams_may_be_incremental(site) -> None:
    """Each event has what is new; counts go on."""
    events = events_of(generate(site, text="abc", stream=True, incremental=True))[:-1]
    assert [event["text"] for event in events] == ["a", "b", "c", ""]
    assert [event["output_ids"] for event in events] == [[97], [98], [99], []]
    assert events[-1]["meta_info"]["completion_tokens"] == 3


def test_streams_of_several_say_which(site) -> None:
    """`index` counts prompts and samples."""
    sampling = {"n": 2}
    response = generate(site, text=["a", "bc"], sampling_params=sampling, stream=True)
    last = {event["index"]: event["text"] for event in events_of(response)[:-1]}
    assert last == {0: "a", 1: "a", 2: "bc", 3: "bc"}


def test_failures_on_the_way_end_with_done(site) -> None:
    """An error event, then the end that clients of this format wait for."""
    site.client.failures["abc"] = (1, RunnerFailed("step 2 failed"))
    events = events_of(generate(site, text="abc", stream=True))
    assert events[-2]["error"]["code"] == "runner_failed"
    assert events[-1] == "[DONE]"


def test_sampling_fields_reach_the_core(site) -> None:
    """Native names, one constraint, empty texts as unset."""
    sampling = {
        "max_new_tokens": 5,
        "min_new_tokens": 1,
        "sampling_seed": 7,
        "stop": "x",
        "stop_token_ids": [119690],
        "regex": "",
        "json_schema": {"type": "null"},
        "spaces_between_special_tokens": True,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "stop_regex": ["a|b", ""],
    }
    generate(site, text="abc", sampling_params=sampling)
    assert site.client.requests[-1].sampling == SamplingParams(
        max_new_tokens=5,
        min_new_tokens=1,
        seed=7,
        stop=("x",),
        stop_patterns=("a|b",),
        stop_token_ids=(119690,),
        constraint=Constraint("json_schema", '{"type": "null"}'),
        skip_special_tokens=False,
        no_stop_trim=True,
    )


def test_namespaces_are_told_apart(site) -> None:
    """Salt and extra key never run into each other."""
    salts = set()
    for salt, key in [("ab", "c"), ("a", "bc"), ("abc", None), (None, "abc")]:
        generate(site, text="x", cache_salt=salt, extra_key=key)
        salts.add(site.client.requests[-1].cache_salt)
    assert len(salts) == 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": []}, "text"),
        ({"text": 5}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [300]}, "input_ids[0]"),
        ({"text": "a", "image_data": "/etc/passwd.png"}, "image_data"),
        ({"text": ["a", "b"], "image_data": [ITEM]}, "image_data"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "a", "token_ids_logprob": [1]}, "token_ids_logprob"),
        ({"text": "a", "temperature": 0}, "temperature"),
        ({"text": "a", "sampling_params": {"stop_regex": 5}}, "sampling_params.stop_regex"),
        ({"text": "a", "sampling_params": {"max_tokens": 1}}, "sampling_params.max_tokens"),
        ({"text": "a", "sampling_params": [{}, {}]}, "sampling_params"),
        (
            {"text": "a", "sampling_params": {"regex": "a", "ebnf": "b"}},
            "sampling_params.ebnf",
        ),
        ({"text": "a", "modalities": ["image"]}, "modalities"),
        ({"text": "a", "modalities": ["smell"]}, "modalities[0]"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"text": "a", "rid": "has space"}, "rid"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "sampling_params"),
        ({"parts": []}, "parts"),
        ({"parts": [{"text": "a", "raw": "b"}]}, "parts[0]"),
        ({"parts": [{"role": "user", "open": True}, {"text": "x"}]}, "parts[0].open"),
        ({"parts": [{"text": "a"}], "image_data": ITEM}, "image_data"),
        ({"text": "a", "choices": []}, "choices"),
        ({"text": ["a"], "choices": ["b"]}, "choices"),
    ],
)
def test_wrong_fields_are_refused_by_name(site, fields: dict, param: str) -> None:
    """A 400 names the field; nothing is ignored."""
    assert site.refused(site.post("/generate", **fields))["param"] == param


def test_choices_are_scored(site) -> None:
    """Each option's tokens and log-probabilities after the prompt; nothing is generated."""
    answer = generate(site, text="Q: ", choices=["yes", "no"]).json()
    choices = answer["meta_info"]["choices"]
    assert [choice["text"] for choice in choices] == ["yes", "no"]
    assert [choice["token_ids"] for choice in choices] == [[121, 101, 115], [110, 111]]
    assert [len(choice["logprobs"]) for choice in choices] == [3, 2]
    assert (answer["text"], answer["meta_info"]["completion_tokens"]) == ("", 0)
    assert not any(ticket.is_running for ticket in site.client.tickets)


def test_choices_stand_in_the_open_turn(site) -> None:
    """An option continues the answer's turn as text that is never control."""
    open_turn = {"role": "assistant", "parts": [{"text": "I say "}], "open": True}
    generate(site, parts=[open_turn], choices=["yes"])
    (request,) = site.client.requests
    assert request.parts == (Turn("assistant", (TextPart("I say "),), is_open=True),)
    assert request.options == ("yes",)


def test_prompt_ids_come_when_asked(site) -> None:
    """The rendered prompt, for clients that need its tokens."""
    meta = generate(site, text="ab", return_token_ids=True).json()["meta_info"]
    assert meta["prompt_token_ids"] == [BOS, 97, 98]

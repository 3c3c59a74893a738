"""The fake engine keeps the promises of the port."""

from __future__ import annotations

import pytest

from mmserve.core import BackendFailed, Request, SamplingParams, TextPart, Turn
from mmserve.testing.fake_client import FakeClient, fake_logprob


def request(text, **sampling):
    """A request of one text."""
    return Request(request_id="r", parts=(TextPart(text),), sampling=SamplingParams(**sampling))


def test_exactly_one_output_of_a_sequence_has_an_end():
    """It is the last, and the texts join to the rule's answer."""
    client = FakeClient(lambda prompt, request: "answer")
    outputs = list(client.submit(request("a", n=2)).outputs())
    firsts = [output for output in outputs if output.index == 0]

    assert [output.finish is not None for output in firsts] == [False] * (len(firsts) - 1) + [
        True
    ]
    assert "".join(output.text for output in firsts) == "answer"
    assert {output.index for output in outputs} == {0, 1}


def test_a_failure_is_raised_by_report_and_outputs():
    """A refusal is raised before anything else."""
    client = FakeClient(failures={"BOOM": BackendFailed("no", status=500)})
    ticket = client.submit(request("BOOM"))
    with pytest.raises(BackendFailed):
        ticket.report()
    with pytest.raises(BackendFailed):
        list(ticket.outputs())


def test_a_cancelled_call_ends_with_abort():
    """Long before its last token."""
    client = FakeClient(lambda prompt, request: "x" * 100, delay_s=0.05)
    ticket = client.submit(request("a"))
    ticket.cancel()

    assert list(ticket.outputs())[-1].finish.reason == "abort"
    assert client.num_running == 0


@pytest.mark.parametrize(
    ("sampling", "text", "reason", "matched"),
    [
        ({}, "one two", "stop", 257),
        ({"stop": (" ",)}, "one", "stop", " "),
        ({"max_new_tokens": 2}, "on", "length", None),
        ({"max_new_tokens": 0}, "", "length", None),
        ({"max_new_tokens": 7}, "one two", "stop", 257),
    ],
)
def test_answers_end_by_stop_or_length(sampling, text, reason, matched):
    """The earliest stop ends the text and is not in it."""
    client = FakeClient(lambda prompt, request: "one two")
    outputs = list(client.submit(request("a", **sampling)).outputs())

    assert "".join(output.text for output in outputs) == text
    assert (outputs[-1].finish.reason, outputs[-1].finish.matched) == (reason, matched)


def test_scores_follow_the_published_function():
    """Prompt numbers are `fake_logprob` of the ids before; the first has none."""
    client = FakeClient()
    ticket = client.submit(request("ab", max_new_tokens=0, prompt_logprobs_from=0))
    found = [entry.logprob for entry in next(iter(ticket.outputs())).prompt_logprobs]

    assert found == [
        None,
        fake_logprob([256], ord("a")),
        fake_logprob([256, ord("a")], ord("b")),
    ]


def test_hits_are_the_longest_common_prefix_seen():
    """Flushing forgets them."""
    client = FakeClient()

    def cached(text):
        return list(client.submit(request(text)).outputs())[-1].usage.cached_tokens

    assert [cached("abc"), cached("abd"), cached("abd")] == [0, 3, 4]
    client.flush_cache()
    assert cached("abd") == 0


def test_open_turns_are_rendered_without_their_end():
    """So a continued turn is a longer prompt of the same beginning."""
    client = FakeClient(pieces=["unhappy"])
    ids = [
        client.submit(
            Request(request_id="r", parts=(Turn("user", (TextPart(text),), is_open=True),))
        )
        .report()
        .token_ids
        for text in ("a", "ab")
    ]

    assert ids[1][: len(ids[0])] == ids[0]
    assert client.detokenize(client.tokenize("unhappy day")) == "unhappy day"
    assert len(client.tokenize("unhappy day")) == 5

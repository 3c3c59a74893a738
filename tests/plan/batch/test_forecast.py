"""The dry run: counts, tokens with and without sharing, and time."""

import random
from itertools import pairwise

import pytest
from support.scripted_client import ScriptedClient

from mmserve.batch import AskSettings, Row, Rows
from mmserve.batch.asks import request_of
from mmserve.batch.forecast import (
    Probe,
    Survey,
    least_tokens,
    make_forecast,
    measure,
    planned,
    probe,
    prompt_keys,
)
from mmserve.batch.forecast.sharing import Interner
from mmserve.batch.job import media_of
from mmserve.core import BackendFailed, MediaRefused, PromptLook, SpanLook
from mmserve.testing import FakeClient

SETTINGS = AskSettings(max_tokens=4)


def rows(num_groups: int, num_questions: int = 3) -> list[Row]:
    """Rows about so many clips, with so many questions each."""
    questions = tuple(f"question {n}?" for n in range(num_questions))
    return [
        Row(line=n + 1, row_id=n, questions=questions, video=f"clip {n}.mp4")
        for n in range(num_groups)
    ]


def surveyed(found: list[Row], max_groups: int = 50) -> Survey:
    """A survey of rows."""
    survey = Survey(max_groups)
    survey.read(((row.video, row) for row in found), ())
    return survey


def trie_size(prompts: list[tuple[int, ...]]) -> int:
    """Nodes of a prefix tree, by making it."""
    return len({prompt[:end] for prompt in prompts for end in range(1, len(prompt) + 1)})


@pytest.mark.parametrize("seed", range(5))
def test_least_tokens_is_the_size_of_the_prefix_tree(seed: int) -> None:
    """Against a tree that is made node by node, with repeats and prefixes of each other."""
    drawn = random.Random(seed)
    prompts = [
        tuple(drawn.randrange(-1, 2) for _ in range(drawn.randrange(1, 9))) for _ in range(60)
    ]
    assert least_tokens(prompts) == trie_size(prompts)


def test_media_are_told_apart_by_identity() -> None:
    """Two clips share no token of their spans, one clip shares all, whatever its token ids."""

    def look(identity: str) -> PromptLook:
        span = SpanLook(
            identity=identity, kind="video", start=2, num_tokens=5, width=8, height=8
        )
        return PromptLook(token_ids=(1, 2, 9, 9, 9, 9, 9, 3), spans=(span,))

    media = Interner()
    keys = [prompt_keys(look(name), media) for name in ("a", "a", "b")]
    assert least_tokens(keys[:2]) == 8
    assert least_tokens(keys) == 8 + 6


def test_groups_are_side_by_side_and_faults_apart(tmp_path) -> None:
    """Rows about one clip come together, its windows in order; other pictures are others."""
    file = tmp_path / "rows.jsonl"
    file.write_text(
        """{"video": "a", "question": "q", "start_s": 1}
{"images": ["p", "x"], "question": "q"}
{"video": "a", "question": "q"}
{"images": ["p", "y"], "question": "q"}
no row
"""
    )
    with planned(Rows(file), SETTINGS) as (plan, faults):
        found = list(plan)
        assert [fault.line for fault in faults] == [5]
    # Of equal weight are the groups, and the rows of the pictures; digests of places decide.
    clip, pictures = (3, 1), ((2, 4), (4, 2))
    orders = {(*clip, *p) for p in pictures} | {(*p, *clip) for p in pictures}
    assert tuple(row.line for _, row in found) in orders
    assert len({group for group, _ in found}) == 3


@pytest.mark.parametrize("num_groups", [1, 3, 49, 50, 51, 100, 101, 1234])
def test_kept_groups_are_spread_evenly(num_groups: int) -> None:
    """As many as wanted, from the first on, at distances of which none is twice another."""
    survey = surveyed(rows(num_groups, 1))
    lines = [group.asked[0][0].line for group in survey.kept]
    assert len(lines) == min(num_groups, 50)
    gaps = [b - a for a, b in pairwise([*lines, num_groups + 1])]
    assert max(gaps) <= 2 * min(gaps[:-1] or gaps)
    assert survey.groups == survey.rows == num_groups


def test_counts_are_exact_if_everything_is_looked_at() -> None:
    """Prompt tokens are the sum over all prompts, the least is the size of their tree."""
    client, found = FakeClient(), rows(4)
    prompts = [
        client.render(request_of(row, index, SETTINGS)).token_ids
        for row in found
        for index in range(3)
    ]
    measured = measure(client, surveyed(found), SETTINGS)
    assert measured.is_exact
    assert measured.prompt_tokens == sum(map(len, prompts))
    assert measured.least_tokens == trie_size(prompts)


def test_counts_are_scaled_from_a_few_groups() -> None:
    """From a tenth of the groups the counts are right within 3 %, and said to be scaled."""
    found = rows(300, 20)
    exact = measure(FakeClient(), surveyed(rows(300, 20), 300), SETTINGS)
    scaled = measure(FakeClient(), surveyed(found, 30), SETTINGS)
    assert not scaled.is_exact
    assert scaled.prompt_tokens == pytest.approx(exact.prompt_tokens, rel=0.03)
    assert scaled.least_tokens == pytest.approx(exact.least_tokens, rel=0.03)


def test_refused_questions_are_told() -> None:
    """A clip that is gone is counted apart, and the others still are."""

    class Renderer(FakeClient):
        def render(self, request):
            if "clip 1.mp4" in repr(request.parts):
                raise MediaRefused("clip 1.mp4: no such file", reason="fetch_failed")
            return super().render(request)

    measured = measure(Renderer(), surveyed(rows(3)), SETTINGS)
    assert (measured.num_refused, measured.groups, measured.questions) == (3, 2, 6)
    assert measured.refused[0] == (2, "clip 1.mp4: no such file")


def test_the_time_follows_from_firsts_and_further_questions() -> None:
    """100 clips at 2 s and 400 further questions at a tenth of a second are 240 s."""
    timed = Probe(questions=5, first_s=2.0, further_s=0.1, prefill_rate=None, answer_rate=None)
    assert timed.seconds(100, 500) == pytest.approx(240.0)


def test_few_questions_are_asked() -> None:
    """At most 22 of thousands, and each ticket is given back."""
    client = ScriptedClient()
    timed = probe(client, surveyed(rows(500, 9)).kept, SETTINGS, 32)
    assert timed is not None
    assert timed.questions == len(client.tickets) <= 22
    assert all(ticket.is_cancelled for ticket in client.tickets)


def test_clips_that_are_gone_tell_no_time() -> None:
    """Questions about them are refused at once; the time is that of the others."""

    def rule(request):
        (clip,) = media_of(request)
        is_gone = clip.source.path in {f"clip {n}.mp4" for n in (5, 6, 8, 9)}
        return MediaRefused("gone", reason="unreadable") if is_gone else "fine"

    timed = probe(ScriptedClient(rule), surveyed(rows(10)).kept, SETTINGS, 32)
    assert timed is not None
    assert timed.further_s is not None
    assert probe(ScriptedClient(rule), surveyed(rows(10)[5:7]).kept, SETTINGS, 32) is None


@pytest.mark.parametrize("found", [rows(1, 1), rows(1, 5), rows(2, 1), []])
def test_small_plans_have_a_forecast(found: list[Row]) -> None:
    """One question, one clip, two clips, nothing."""
    client = FakeClient()
    forecast = make_forecast(surveyed(found), client, client, SETTINGS, 32)
    assert (forecast.expected_s is not None) == bool(found)
    assert forecast.fields()["questions"] == sum(len(row.questions) for row in found)


def test_a_server_that_shows_no_prompts() -> None:
    """Counts and time are told, tokens are not, and why."""

    class Renderer:
        def render(self, request):
            raise BackendFailed("the server answered with status 404", status=404)

    forecast = make_forecast(surveyed(rows(2)), ScriptedClient(), Renderer(), SETTINGS, 32)
    assert forecast.measured is None
    assert forecast.probe is not None
    assert "404" in (forecast.not_measured or "")

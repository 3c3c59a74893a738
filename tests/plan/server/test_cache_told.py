"""What the cache had of a prompt, as answers tell it beside the timing."""

from __future__ import annotations

import pytest
from support.site import Site, events_of

from mmserve.core import CacheUse, Output, PromptReport, Usage
from mmserve.server.drafts import Draft, extras_object

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
LOOK = [{"role": "user", "content": [PICTURE, {"type": "text", "text": "ab"}]}]


def total(told: dict[str, dict[str, int]]) -> int:
    """All tokens of a table."""
    return sum(sum(row.values()) for row in told.values())


def draft(hits: int, misses: int) -> Draft:
    """A sequence whose prompt had so many hits and misses."""
    uses = (CacheUse("text", "hit", hits), CacheUse("text", "never_seen", misses))
    grown = Draft()
    usage = Usage(hits + misses, cached_tokens=hits, cache=uses)
    grown.add(Output("r", 0, "", (), usage))
    return grown


def test_chat_tells_hits_and_misses_by_kind(site: Site) -> None:
    """They sum up to the prompt's tokens."""
    answer = site.post("/v1/chat/completions", messages=LOOK, return_timing=True).json()
    told = answer["mmserve"]["cache"]
    assert told["image"] == {"evicted": 4}
    assert told["text"]["hit"] == 1
    assert total(told) == answer["usage"]["prompt_tokens"]


def test_completions_tell_them_over_all_prompts(site: Site) -> None:
    """Each prompt counts once, whatever the number of samples."""
    fields = {"prompt": ["a", "bcd"], "n": 2, "return_timing": True}
    answer = site.post("/v1/completions", **fields).json()
    assert total(answer["mmserve"]["cache"]) == answer["usage"]["prompt_tokens"]
    assert answer["mmserve"]["cache"]["text"]["hit"] == 2


def test_native_tells_them_with_each_answer(site: Site) -> None:
    """In `meta_info`, beside the timing, for each prompt of a batch."""
    for answer in site.post("/generate", text=["a", "bcd"]).json():
        meta = answer["meta_info"]
        assert total(meta["cache"]) == meta["prompt_tokens"]


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
def test_the_last_chunk_of_a_stream_tells_them(site: Site, options: dict) -> None:
    """Once, where the timing is."""
    events = events_of(site.chat("ab", stream=True, return_timing=True, **options))
    told = [event["mmserve"] for event in events[:-1] if "mmserve" in event]
    assert [set(extras) for extras in told] == [{"timing_ms", "cache"}]
    assert "mmserve" in events[-2]


def test_nothing_is_told_unasked(site: Site) -> None:
    """A plain answer has OpenAI's fields only."""
    assert "mmserve" not in site.chat("ab").json()


def test_samples_of_a_prompt_count_once_as_the_one_that_computed_it() -> None:
    """The others found what it had just computed."""
    drafts = [draft(9, 1), draft(4, 6), draft(9, 1), draft(0, 3), draft(2, 1), draft(2, 1)]
    reports = [PromptReport(()), PromptReport(())]
    told = extras_object(drafts, reports, with_timing=True)["cache"]
    assert told == {"text": {"hit": 4, "never_seen": 9}}


def test_an_engine_that_does_not_tell_is_no_error() -> None:
    """The table is empty then."""
    assert extras_object([Draft()], [], with_timing=True)["cache"] == {}

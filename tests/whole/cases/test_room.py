"""Requests larger than a step, a cache or the whole memory: served in pieces or refused."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import tiny_llava
from support.live import ENDLESS, Live, live, picture
from support.oracle import Asker, Reply, differ, image_part, same

import mmserve as sgl
from mmserve.batch import BatchSettings, Fleet, Summary, answer_file
from mmserve.core import Aborted, SchedConfig

IMAGE_TOKENS = 100
CONTEXT = 512
LONG = str(7**360)[:300]
"""300 tokens; digits are never joined."""
SMALL = ["hi", "What?", "And then?"]


def seeing(size: int = 140, context: int = CONTEXT) -> Path:
    """A model for which a picture is 100 tokens, unless `size` says otherwise."""
    return tiny_llava(image_size=size, context=context)


Content = tuple[bytes | str, ...]


@pytest.fixture(scope="module")
def cold() -> Iterator[Callable[[Content], Reply]]:
    """Cold answers of the same model with every budget at its default."""
    with live(seeing()) as site:
        asker = Asker(site.url)
        yield functools.cache(lambda content: asker.cold(*content))
        asker.close()


def all_at_once(url: str, asked: list[Content]) -> list[Reply]:
    """Answers to conversations of one turn that are sent together."""

    def ask(content: Content) -> Reply:
        asker = Asker(url)
        try:
            return asker.chat(*content)
        finally:
            asker.close()

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(ask, asked))


TIGHT: dict[str, dict[str, Any]] = {
    "pieces of 64": {"max_step_tokens": 64, "chunk_tokens": 64},
    "pieces of 64, one runs": {"max_step_tokens": 64, "chunk_tokens": 64, "max_running": 1},
    "steps of 64": {"max_step_tokens": 64},
    "pieces of 7": {"chunk_tokens": 7, "max_step_tokens": 64},
    "pages of 16": {"max_step_tokens": 64, "chunk_tokens": 64, "page_tokens": 16},
    "pages larger than steps": {"max_step_tokens": 16, "chunk_tokens": 16, "page_tokens": 64},
    "few patches": {"max_step_patches": 30},
    "small feature cache": {"feature_cache_tokens": 40},
    "no cache": {"radix_cache": False, "max_step_tokens": 64},
    "a target": {"target_itl_ms": 0.01, "max_step_tokens": 64},
}


@pytest.mark.parametrize("tight", TIGHT)
def test_what_exceeds_a_steps_budget_is_done_in_pieces(
    cold: Callable[[Content], Reply], tight: str
) -> None:
    """O-SCH-04: long texts and a picture are answered as ever, and so are those behind them."""
    asked = [
        (LONG,),
        (picture(1, 140), "?"),
        (LONG[1:], picture(2, 140)),
        *((t,) for t in SMALL),
    ]
    sched = TIGHT[tight]
    with live(seeing(), sched=SchedConfig(**sched)) as site:
        for _ in range(2):
            for reply, content in zip(all_at_once(site.url, asked), asked, strict=True):
                same(reply, cold(content))
        found = site.series()
    most = sched.get("max_step_tokens", 2048)
    assert found["tokens_computed_total"] <= most * found["steps_total"]
    chunk = min(sched.get("chunk_tokens", 1024), most)
    assert found["steps_total"] >= len(LONG) // chunk


def test_small_requests_do_not_wait_for_a_long_one() -> None:
    """O-SCH-04: while one prompt is computed piece by piece, others start and end."""
    with (
        live(
            seeing(context=8000),
            num_slots=20_000,
            sched=SchedConfig(max_step_tokens=16, chunk_tokens=8),
        ) as site,
        ThreadPoolExecutor(1) as pool,
    ):
        long = pool.submit(site.chat, "endless " * 400, max_tokens=1)
        site.wait_for(running=1)
        for text in SMALL:
            assert site.chat(text).status_code == 200
        assert not long.done()
        assert long.result().status_code == 200


@pytest.mark.parametrize("page_tokens", [1, 16])
def test_what_never_fits_is_refused_at_once(page_tokens: int) -> None:
    """Text, picture and limit are named, for streams too, though others hold all the room."""
    sched = SchedConfig(page_tokens=page_tokens, max_running=1)
    with live(seeing(context=8000), num_slots=400, sched=sched) as site:
        for content, num_media in (
            ([image_part(picture(1, 140))] * 4, 400),
            ([image_part(picture(1, 140)), *_text(LONG)], 100),
            (LONG + LONG, 0),
        ):
            messages = [{"role": "user", "content": content}]
            for stream in (False, True):
                with site.ghost() as ghost, site.ghost():
                    assert ghost.read()
                    refused = site.chat(messages=messages, stream=stream)
                error = refused.json()["error"]
                assert (refused.status_code, error["code"]) == (400, "context_too_long")
                assert f"{num_media} of media" in error["message"]
                assert "the limit is 400" in error["message"]
        assert site.chat().status_code == 200


@pytest.mark.parametrize("page_tokens", [1, 16, 64])
def test_what_just_fits_is_answered(page_tokens: int) -> None:
    """A prompt that leaves room for one token runs, whatever was cached; a longer one not."""
    num_slots = 448 + page_tokens - 1  # the last page is not whole
    sched = SchedConfig(page_tokens=page_tokens, max_step_tokens=64)
    with live(seeing(context=8000), num_slots=num_slots, sched=sched) as site:
        limit = num_slots - num_slots % page_tokens
        seen = [{"role": "user", "content": [image_part(picture(1, 140)), *_text("?")]}]
        for _ in range(2):
            assert site.chat(messages=seen).status_code == 200
            params = {"max_new_tokens": 1, "temperature": 0}
            for length, status in ((limit - 1, 200), (limit, 400)):
                body = {"input_ids": [40] * length, "sampling_params": params}
                answer = site.post("/generate", **body)
                assert answer.status_code == status, answer.text
        content = [*_text("y" * (limit - 60 - IMAGE_TOKENS)), image_part(picture(2, 140))]
        for text in ("short", "longer " * 40):
            assert site.chat(text).status_code == 200
            answer = site.chat(messages=[{"role": "user", "content": content}])
            assert answer.status_code == 200
        site.wait_idle()


def test_more_than_fits_at_once_goes_in_turns() -> None:
    """Answers that outgrow the memory make one another wait, and stay as they are alone."""
    texts = [f"{letter} is for " for letter in "abcdef"]
    with live(seeing(), num_slots=128) as site:

        def ask(text: str) -> Any:
            return site.chat(text, max_tokens=60).json()["choices"]

        alone = []
        for text in texts:
            assert site.http.post("/flush_cache", params={"timeout": 10}).status_code == 200
            alone.append(ask(text))
        with ThreadPoolExecutor(len(texts)) as pool:
            assert list(pool.map(ask, texts)) == alone
        site.wait_idle()


def _text(words: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": words}]


@pytest.mark.parametrize("page_tokens", [16, 64])
def test_pages_change_no_answer(cold: Callable[[Content], Reply], page_tokens: int) -> None:
    """With pictures, cold and warm; hits are whole pages and never cover another picture."""
    a, b = picture(1, 140), picture(2, 140)
    asked = [(a, "?"), (b, "?"), ("first ", a, b, "?"), ("first ", b, a, "?"), (a, "!", b)]
    want = [cold(content) for content in asked]
    differ(want[0], want[1])
    differ(want[2], want[3])
    with live(seeing(), sched=SchedConfig(page_tokens=page_tokens)) as site:
        asker = Asker(site.url)
        for is_second in (False, True):
            for content, reference in zip(asked, want, strict=True):
                warm = asker.chat(*content)
                same(warm, reference)
                assert warm.cached_tokens % page_tokens == 0
                if is_second:
                    assert warm.cached_tokens >= warm.prompt_tokens - 1 - page_tokens
        asker.close()


@pytest.mark.parametrize("target_itl_ms", [0.001, 1000.0])
def test_a_target_for_latency_changes_no_answer(
    cold: Callable[[Content], Reply], target_itl_ms: float
) -> None:
    """Whatever the pieces, running answers and prompts that come meanwhile are the same."""
    asked = [
        (LONG,),
        (picture(1, 140), "?"),
        (LONG[:80],),
        ("x" + LONG,),
        *((t,) for t in SMALL),
    ]
    with live(seeing(), sched=SchedConfig(target_itl_ms=target_itl_ms)) as site:
        with site.ghost(max_tokens=400, ignore_eos=True) as ghost:
            assert ghost.read()
            replies = all_at_once(site.url, asked)
        for reply, content in zip(replies, asked, strict=True):
            same(reply, cold(content))


class Told:
    """Answers that tell what the cache had."""

    def __init__(self, site: Live) -> None:
        self._site = site

    def cache(self, content: Any, **fields: Any) -> dict[str, dict[str, int]]:
        """Prompt tokens by kind and outcome, checked against usage."""
        messages = [{"role": "user", "content": content}]
        answer = self._site.chat(messages=messages, return_timing=True, **fields).json()
        told, usage = answer["mmserve"]["cache"], answer["usage"]
        sums = {kind: sum(outcomes.values()) for kind, outcomes in told.items()}
        assert sum(sums.values()) == usage["prompt_tokens"]
        details = usage["prompt_tokens_details"]
        assert sums.get("image", 0) == details["image_tokens"]
        hits = sum(outcomes.get("hit", 0) for outcomes in told.values())
        assert hits == details["cached_tokens"]
        return told


def test_salts_keep_caches_apart() -> None:
    """What is cached for another salt is a miss, told as such; for the same one, a hit.

    A picture has another identity under every salt, so it, and what follows, was never seen.
    """
    content = [*_text(LONG[:60]), image_part(picture(1, 140)), *_text("?")]
    with live(seeing()) as site:
        told = Told(site)
        first = told.cache(content, cache_salt="one")
        assert first["image"] == {"never_seen": IMAGE_TOKENS}
        assert told.cache(content, cache_salt="one")["image"] == {"hit": IMAGE_TOKENS}
        for salt in ({"cache_salt": "two"}, {}):
            other = told.cache(content, **salt)
            assert other["image"] == {"never_seen": IMAGE_TOKENS}
            assert set(other["text"]) == {"namespace", "never_seen"}
            assert other["text"]["namespace"] > 40
            again = told.cache(content, **salt)
            assert (again["image"], again["text"]["boundary"]) == ({"hit": IMAGE_TOKENS}, 1)
        assert told.cache(content, cache_salt="one")["image"] == {"hit": IMAGE_TOKENS}
        words = told.cache("Words alone.", cache_salt="one")["text"]
        assert set(words) == {"hit", "never_seen"}
        elsewhere = told.cache("Words alone.", cache_salt="three")["text"]
        assert elsewhere == {"namespace": sum(words.values())}


def test_misses_say_why() -> None:
    """A picture behind other tokens, what was evicted, and what nobody sent before."""
    one = [image_part(picture(1, 140)), *_text("?")]
    with live(seeing(), num_slots=256) as site:
        told = Told(site)
        assert told.cache(one)["image"] == {"never_seen": IMAGE_TOKENS}
        moved = told.cache([*_text("Look: "), *one])
        assert moved["image"] == {"order": IMAGE_TOKENS}
        for k in (2, 3):
            told.cache([image_part(picture(k, 140)), *_text("?")])
        assert told.cache(one)["image"] == {"evicted": IMAGE_TOKENS}


NUM_ROWS = 50


@pytest.fixture(scope="module")
def narrow() -> Iterator[Live]:
    """A server that runs two sequences at once."""
    sched = SchedConfig(max_running=2)
    with live(tiny_llava(context=8000), num_slots=40_000, sched=sched) as site:
        yield site


def answers_soon(site: Live) -> None:
    """Everything that was cancelled is gone, and a small request is served."""
    site.wait_idle(5)
    assert site.http.post("/v1/completions", json={"prompt": "a"}, timeout=5).status_code == 200


@sgl.function
def forked(s: Any, max_tokens: int) -> list[str]:
    """Five continuations of one text."""
    s += "Five ways to go on."
    forks = s.fork(5)
    forks += [f" {number}: " for number in range(5)]
    forks += sgl.gen("way", max_tokens=max_tokens, ignore_eos=True, temperature=0)
    return [fork["way"] for fork in forks]


def write_rows(folder: Path, **fields: Any) -> tuple[Path, Path]:
    """A file of fifty rows about a picture, and where their records go."""
    (folder / "p.png").write_bytes(picture(1))
    rows = [
        {"images": [str(folder / "p.png")], "question": f"q{n}", **fields}
        for n in range(NUM_ROWS)
    ]
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return source, folder / "out.jsonl"


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_more_samples_than_places_come_in_waves(narrow: Live, stream: bool) -> None:
    """O-SCH-06: five answers where two run, each once and whole; then five that are left."""
    response = narrow.chat(n=5, temperature=1, seed=3, stream=stream, logprobs=True)
    if stream:
        words = [w.removeprefix("data: ") for w in response.text.split("\n\n")[:-2]]
        choices = [choice for word in words for choice in json.loads(word)["choices"]]
    else:
        choices = response.json()["choices"]
    ends = sorted((c["index"], c["finish_reason"]) for c in choices if c["finish_reason"])
    assert ends == [(k, "length") for k in range(5)]
    tokens = [
        c["index"] for c in choices if c.get("logprobs") for _ in c["logprobs"]["content"]
    ]
    assert sorted(tokens) == sorted([*range(5)] * 8)
    with narrow.ghost(n=5, stream=stream):
        narrow.wait_for(running=2, waiting=3)
    answers_soon(narrow)


def test_more_forks_than_places_come_in_waves(narrow: Live) -> None:
    """O-SCH-06: five forks of a program over HTTP are as they are alone; five are cancelled."""
    backend = sgl.RuntimeEndpoint(narrow.url)
    ways = forked.run(max_tokens=6, backend=backend).ret_value
    for number, way in enumerate(ways):
        params = {"max_new_tokens": 6, "ignore_eos": True, "temperature": 0}
        text = f"Five ways to go on. {number}: "
        alone = narrow.post("/generate", text=text, sampling_params=params).json()
        assert alone["text"] == way
    state = forked.run(max_tokens=ENDLESS, backend=backend, stream=True)
    narrow.wait_for(running=2, waiting=3)
    state.cancel()
    answers_soon(narrow)
    with pytest.raises(Aborted):
        _ = state.ret_value
    backend.close()


def test_more_rows_than_places_come_in_waves(narrow: Live, tmp_path: Path) -> None:
    """O-SCH-06: fifty rows, ten at a time, each with a record, in order, without an error."""
    source, target = write_rows(tmp_path, max_tokens=4)
    with Fleet((narrow.url,), concurrency=10) as endpoint:
        summary = answer_file(endpoint, source, target, BatchSettings(concurrency=10))
    assert (summary.answered, summary.failed) == (NUM_ROWS, 0)
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert [record["question"] for record in records] == [f"q{n}" for n in range(NUM_ROWS)]


def test_a_batch_that_is_stopped_leaves_the_server_free(narrow: Live, tmp_path: Path) -> None:
    """O-SCH-06: after the tenth of fifty rows; what was under way is aborted at the server."""
    source, target = write_rows(tmp_path, max_tokens=60, regex="[a-z]{60}")

    def stop_after_ten(summary: Summary) -> None:
        if summary.answered == 10:
            narrow.wait(lambda found: found["running"] > 0)  # none for a moment between rows
            raise KeyboardInterrupt

    with Fleet((narrow.url,), concurrency=10) as endpoint:
        with pytest.raises(KeyboardInterrupt):
            answer_file(endpoint, source, target, BatchSettings(concurrency=10), stop_after_ten)
        answers_soon(narrow)
    assert len(target.read_text().splitlines()) == 10


def test_a_row_that_is_cancelled_does_not_hold_up_the_others(narrow: Live) -> None:
    """O-SCH-06: of many endless questions one is aborted by its id, and the next one starts."""
    bodies = [{"text": f"{k}", "rid": f"row-{k}"} for k in range(6)]
    with ThreadPoolExecutor(6) as pool:
        params = {"max_new_tokens": ENDLESS, "ignore_eos": True}
        rows = []
        for num_asked, body in enumerate(bodies, 1):
            rows.append(pool.submit(narrow.post, "/generate", sampling_params=params, **body))
            narrow.wait(lambda found, n=num_asked: found["running"] + found["waiting"] == n)
        started = narrow.series()["client_started_total[client=]"]
        for number in (0, 5, 1):
            assert narrow.post("/abort_request", rid=f"row-{number}").status_code == 200
            assert (
                rows[number].result(10).json()["meta_info"]["finish_reason"]["type"] == "abort"
            )
        narrow.wait_for(running=2, waiting=1)
        assert narrow.series()["client_started_total[client=]"] == started + 2
        assert narrow.post("/abort_request", abort_all=True).status_code == 200
    answers_soon(narrow)

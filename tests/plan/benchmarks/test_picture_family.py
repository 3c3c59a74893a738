"""Benchmarks of shared pictures and of arrivals: least work, the workloads, the generator."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.media_asks import Picture, Writer
from benchmarks.models import byte_tokenizer
from benchmarks.open_loop import Wish, arrivals_s, play_open_loop, rate_at
from benchmarks.picture_family import NOTHING_SHARED, OURS, REFERENCE, summary_of
from benchmarks.picture_programs import FAMILIES, Sizes, family

SMALL = Sizes(picture=5, question=3, answer=2, text=4, side_pixels=8, vocab=4096)
LONG = Sizes(picture=3, question=2, answer=5, text=1, side_pixels=8, vocab=4096)


def play_all(work, num_answer):
    """Every ask of a family in order, each with an answer that is unlike all others."""
    answers, asked = {}, []
    for program in work.programs:
        while asks := program.next_asks(answers):
            for ask in asks:
                start = 100_000 + len(answers) * num_answer
                answers[ask.ask_id] = tuple(range(start, start + num_answer))
                asked.append(ask)
    return asked, answers


def keys_of(ask, answer, num_picture_tokens):
    """What each computed position stands for; the last token of an answer is none."""
    keys = ["bos"]
    for item in ask.items:
        if isinstance(item, Picture):
            keys += [(item.content, offset) for offset in range(num_picture_tokens)]
        else:
            keys += item
    return [*keys, *answer[:-1]]


def brute_force(work, sizes):
    """Different prefixes of all prompts and answers, and different pictures, by exhaustion."""
    asked, answers = play_all(work, sizes.answer)
    prefixes = {}
    for ask in asked:
        keys = keys_of(ask, answers[ask.ask_id], sizes.picture)
        for end in range(1, len(keys) + 1):
            prefixes[tuple(keys[:end])] = True
    pictures = {item.content for ask in asked for item in ask.media}
    return len(asked), len(prefixes), len(pictures)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(0, 1000), st.sampled_from([SMALL, LONG]))
@pytest.mark.parametrize("name", FAMILIES)
def test_the_least_work_is_what_a_dictionary_of_prefixes_holds(name, scale, seed, sizes):
    """Prompts, tokens and pictures of a family are those found by exhaustion."""
    work = family(name, scale, sizes, seed)
    told = (work.num_asks, work.least_tokens, work.least_encodes)
    assert told == brute_force(work, sizes)


def test_users_of_a_picture_share_nothing_but_their_first_token():
    """In `places` a picture never stands twice behind the same tokens."""
    asked, _ = play_all(family("places", 3, SMALL), SMALL.answer)
    heads = [ask.items[: [*map(type, ask.items)].index(Picture)] for ask in asked]
    assert len({head[0][0] for head in heads}) == len(heads)


def test_a_family_is_the_same_each_time():
    """Programs follow from their seed."""
    for name in FAMILIES:
        first, second = (play_all(family(name, 2, SMALL), 2)[0] for _ in range(2))
        assert first == second


def test_questions_read_the_same_as_text_and_as_tokens():
    """The text of drawn tokens is tokenized into exactly these tokens."""
    tokenizer = byte_tokenizer(4096)
    for question in Writer(4096, 0).questions(50, 24):
        text = tokenizer.decode(question)
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == list(question)


def test_a_summary_holds_the_worst_family():
    """The speed told is that of the slowest family, the tokens those of the most wasteful."""
    rows = [
        {
            "family": name,
            "engine": engine,
            "programs_per_s": speed,
            "computed_over_least": waste,
            "encoded_over_least": 1.0,
            "different_answers": 1,
        }
        for name, ours, waste in (("grid", 12.0, 1.0), ("chat", 6.0, 1.25))
        for engine, speed in ((OURS, ours), (NOTHING_SHARED, 3.0), (REFERENCE, 2.0))
    ]
    summary = summary_of(rows)
    assert summary["min_speedup_vs_transformers"] == 3.0
    assert summary["max_computed_over_least"] == 1.25
    assert summary["grid_speedup_vs_nothing_shared"] == 4.0
    assert summary["different_answers"] == 2


def test_arrivals_come_at_the_rate_and_without_memory():
    """Gaps of a Poisson process have a mean of one over the rate, and vary by as much."""
    for rate in (0.5, 20.0):
        gaps = np.diff(arrivals_s(rate, 20_000, seed=3), prepend=0.0)
        assert gaps.min() > 0
        assert gaps.mean() * rate == pytest.approx(1.0, abs=0.03)
        assert gaps.std() * rate == pytest.approx(1.0, abs=0.03)
        assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 0.03


def test_counts_of_arrivals_in_windows_are_poisson():
    """Mean and variance of the arrivals in a second are both the rate."""
    times_s = arrivals_s(4.0, 40_000, seed=5)
    counts = np.bincount(times_s.astype(np.int64))[:-1]
    assert counts.mean() == pytest.approx(4.0, rel=0.03)
    assert counts.var() == pytest.approx(4.0, rel=0.06)


def test_a_higher_rate_is_the_same_process_played_faster():
    """Equal seeds differ by a factor only, other seeds differ."""
    slow, fast = arrivals_s(1.0, 50, seed=1), arrivals_s(8.0, 50, seed=1)
    assert fast * 8.0 == pytest.approx(slow)
    assert not np.allclose(slow, arrivals_s(1.0, 50, seed=2))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 10.0, 1000.0], 4 + 4 / 2),  # halfway between 10 and 1000 on a logarithmic scale
        ([1.0, 2.0, 3.0], 8.0),  # never reached
        ([400.0, 500.0, 600.0], 0.5),  # beyond from the start
        ([1.0, np.inf, np.inf], 2.0),  # requests failed
    ],
)
def test_the_knee_lies_where_values_pass_the_limit(values, expected):
    """The rate at a limit of 100 is found between the rates that were played."""
    assert rate_at(100.0, [2.0, 4.0, 8.0], values) == pytest.approx(expected)


def test_open_loop_waits_for_nobody():
    """Requests are sent when they are due, though none is answered by then."""
    sent_s = []

    async def handle(reader, writer):
        header = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in header.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        body = json.loads(await reader.readexactly(length))
        sent_s.append(time.perf_counter())
        await asyncio.sleep(0.4)
        lines = [{"choices": [{"text": body["prompt"]}]}, {"choices": [{"text": ""}]}]
        text = "".join(f"data: {json.dumps(line)}\n\n" for line in lines) + "data: [DONE]\n\n"
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
        await writer.drain()
        writer.close()

    async def serve(started, stop):
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        started.put(server.sockets[0].getsockname()[1])
        async with server:
            while not stop.is_set():
                await asyncio.sleep(0.02)

    started, stop = queue.SimpleQueue(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve(started, stop)))
    thread.start()
    url = f"http://127.0.0.1:{started.get(timeout=10)}"
    try:
        wishes = [Wish(f"question {number}", 4, "model") for number in range(4)]
        done = play_open_loop(url, wishes, np.array([0.0, 0.05, 0.1, 0.15]))
    finally:
        stop.set()
        thread.join()
    assert max(sent_s) - min(sent_s) < 0.4
    assert [one.error for one in done] == [""] * 4
    assert all(one.first_s >= 0.4 and one.end_s >= one.first_s for one in done)
    assert all(one.gaps_s == () for one in done)

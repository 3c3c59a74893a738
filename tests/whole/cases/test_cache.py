"""The cache changes no answer, takes no picture for another, and always adds up."""

from __future__ import annotations

import io
import random
import threading

import httpx
import numpy as np
import pytest
from PIL import Image
from support.oracle import Asker, Reply, data_uri, differ, image_part, png, refused, same

import mmserve as sgl
from mmserve.core import EngineConfig, SchedConfig, ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer

QUESTION = "What is in the picture, and where?"


def picture(seed: int, size: int = 64) -> bytes:
    """A picture of coarse random blocks."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return png(Image.fromarray(blocks).resize((size, size), Image.Resampling.NEAREST))


def test_two_pictures_are_never_taken_for_each_other(ask: Asker) -> None:
    """Warm answers about A and B equal the cold ones; hits cover exactly the same picture."""
    a, b = picture(1), picture(2)
    cold = {"a": ask.cold(a, QUESTION), "b": ask.cold(b, QUESTION)}
    differ(cold["a"], cold["b"])
    ask.flush()
    warm = [ask.chat(a if name == "a" else b, QUESTION) for name in "aabba"]
    for name, reply in zip("aabba", warm, strict=True):
        same(reply, cold[name])
    before = warm[0].prompt_tokens - warm[0].image_tokens
    hits = [reply.cached_tokens for reply in warm]
    assert hits[0] < before
    assert hits[2] < before
    assert min(hits[1], hits[3], hits[4]) > warm[0].image_tokens


@pytest.mark.parametrize(
    "shape",
    [
        ((30, 150, 3), (150, 30, 3)),
        ((64, 64), (32, 128)),
        ((64, 64), (32, 32, 4)),
        ((48, 64), (32, 32, 3)),
        ((48, 64), (64, 48)),
        ((32, 32, 3), (24, 32, 4)),
    ],
)
def test_identity_remembers_the_shape(ask: Asker, shape: tuple) -> None:
    """Equal bytes in another shape, or as grey, colours or colours with alpha, differ."""
    raw = np.random.default_rng(7).integers(0, 256, int(np.prod(shape[0])), dtype=np.uint8)
    one, two = (png(Image.fromarray(raw.reshape(s))) for s in shape)
    cold = [ask.cold(one, QUESTION), ask.cold(two, QUESTION)]
    differ(*cold)
    ask.flush()
    first, second = ask.chat(one, QUESTION), ask.chat(two, QUESTION)
    same(first, cold[0])
    same(second, cold[1])
    assert second.cached_tokens < second.prompt_tokens - second.image_tokens


def test_equal_bytes_hit_by_any_way_in(ask: Asker, media_host) -> None:
    """Equal bytes hit; equal pixels in other bytes answer alike; other text before: no hit."""
    ask.flush()
    pixels = Image.open(io.BytesIO(picture(3)))
    first = ask.chat(png(pixels), QUESTION)
    again = ask.chat(png(pixels), QUESTION)
    assert again.cached_tokens > first.image_tokens
    url = media_host.put("/same.png", png(pixels))
    assert ask.chat(image_part(url), QUESTION).cached_tokens > first.image_tokens
    same(ask.chat(png(pixels, compress_level=1), QUESTION), first)
    moved = ask.chat("Something else first.", png(pixels), QUESTION)
    details = moved.usage["prompt_tokens_details"]
    assert details["cached_tokens"] < moved.prompt_tokens - moved.image_tokens
    same(moved, ask.cold("Something else first.", png(pixels), QUESTION))


def test_identity_is_wide(ask: Asker) -> None:
    """Five hundred pictures that differ in a few pixels are five hundred pictures."""

    def numbered(k: int) -> bytes:
        pixels = np.zeros((8, 8, 3), np.uint8)
        bits = [(k >> bit) & 1 for bit in range(10)]
        pixels.reshape(-1, 3)[: len(bits)] = np.array(bits, np.uint8)[:, None] * 255
        return png(Image.fromarray(pixels))

    def first_token(k: int) -> Reply:
        return ask.chat(numbered(k), "?", max_tokens=1)

    chosen = random.Random(5).sample(range(500), 40)
    cold = {}
    for k in chosen:
        ask.flush()
        cold[k] = first_token(k)
    ask.flush()
    text = cold[chosen[0]].prompt_tokens - cold[chosen[0]].image_tokens
    for k in range(500):
        assert first_token(k).cached_tokens < text
    for k in chosen:
        same(first_token(k), cold[k])


def test_scores_do_not_depend_on_the_cache(engine: Engine) -> None:
    """Scores of options are equal cold, warm, and after a request that shares half of it."""
    prompt = (
        "The quick brown fox jumps over the lazy dog, then sleeps under the old oak tree. " * 2
    )
    options = ["yes", "no", "perhaps so"]

    def scores(text: str) -> list[list[float]]:
        @sgl.function
        def program(s):
            s += text
            s += sgl.select("choice", options)

        meta = program.run(backend=engine).get_meta_info("choice")
        return [[entry[0] for entry in entries] for entries in meta["input_token_logprobs"]]

    engine.flush_cache(timeout_s=10)
    cold = scores(prompt)
    warm = scores(prompt)
    scores(prompt[: len(prompt) // 2] + "but not today")
    half = scores(prompt)
    for row in zip(cold, warm, half, strict=True):
        assert all(value is not None for values in row for value in values)
        np.testing.assert_allclose(row[1], row[0], atol=1e-3)
        np.testing.assert_allclose(row[2], row[0], atol=1e-3)


@pytest.mark.parametrize("has_picture", [False, True])
def test_scores_over_http_do_not_depend_on_the_cache(ask: Asker, has_picture: bool) -> None:
    """Those of a prompt and of its answer are equal cold, warm, half warm, and from half on."""
    text = "A hundred letters say what was said before, and then they say some more of it. " * 2

    def scores(words: str, start: int = 0) -> tuple[list[float | None], list[float]]:
        fields = {"image_data": [data_uri(picture(61))]} if has_picture else {}
        body = {
            "text": ("<image>" if has_picture else "") + words,
            "sampling_params": {"max_new_tokens": 8, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": start,
            **fields,
        }
        reply = ask.post("/generate", body)
        assert reply.status == 200, reply.body
        meta = reply.body["meta_info"]
        entries = (meta["input_token_logprobs"], meta["output_token_logprobs"])
        given, drawn = ([entry[0] for entry in part] for part in entries)
        return given, drawn

    ask.flush()
    cold = scores(text)
    rows = [scores(text), scores(text)]
    ask.flush()
    scores(text[: len(text) // 2] + "but not today")
    rows.append(scores(text))
    for row in rows:
        assert [v is None for v in row[0]] == [v is None for v in cold[0]]
        for warm, want in zip(row, cold, strict=True):
            told = [pair for pair in zip(warm, want, strict=True) if None not in pair]
            np.testing.assert_allclose(*zip(*told, strict=True), atol=1e-3)
    gaps = [k for k, v in enumerate(cold[0]) if v is None]
    assert gaps == list(range(len(gaps)))
    assert (len(gaps) > 1) == has_picture
    late = scores(text, start=len(cold[0]) - 30)
    np.testing.assert_allclose(late[0][1:], cold[0][-29:], atol=1e-3)
    np.testing.assert_allclose(late[1], cold[1], atol=1e-3)


def test_accounting_adds_up_after_a_storm(tiny_directory) -> None:
    """After 300 random requests, some aborted, all slots are free or cached, none is held."""
    config = EngineConfig(
        model=str(tiny_directory),
        served_name="tiny",
        num_slots=512,
        threads=1,
        verify_steps=True,
        sched=SchedConfig(chunk_tokens=48, max_step_tokens=96),
    )
    stems = ["alpha " * 10, "alpha " * 6 + "beta " * 9, "alpha " * 6 + "gamma " * 20, "delta"]
    choose = random.Random(11)
    with (
        Engine.from_config(config) as engine,
        RunningServer(engine, ServerConfig(port=0)) as http,
    ):
        asker = Asker(http.url)
        for _burst in range(6):
            threads = [
                threading.Thread(target=_storm, args=(http.url, stems, choose.random()))
                for _ in range(10)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            _wait_idle(engine)
            counts = engine.counters()
            assert counts["slots_free"] + counts["slots_cached"] == counts["slots"] == 512
            assert counts["slots_held"] == 0
        asker.flush()
        assert engine.counters()["slots_free"] == 512
        biggest = asker.post(
            "/generate",
            {
                "input_ids": [40] * 511,
                "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            },
        )
        assert biggest.status == 200, biggest.body
        asker.close()


def _storm(url: str, stems: list[str], seed: float) -> None:
    choose = random.Random(seed)
    for _ in range(5):
        content: list = [{"type": "text", "text": choose.choice(stems) + str(choose.random())}]
        if choose.random() < 0.4:
            content.insert(0, image_part(picture(choose.randrange(4), 32)))
        if choose.random() < 0.1:
            content.append({"type": "text", "text": "x" * 600})
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 12}
        timeout = 0.05 if choose.random() < 0.2 else 60
        try:
            status = httpx.post(
                f"{url}/v1/chat/completions", json=body, timeout=timeout
            ).status_code
            assert status in (200, 400)
        except httpx.TimeoutException:
            pass


def _wait_idle(engine: Engine) -> None:
    for _ in range(500):
        counts = engine.counters()
        if counts["running"] == counts["waiting"] == 0 and counts["slots_held"] == 0:
            return
        threading.Event().wait(0.02)
    raise AssertionError(engine.counters())


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 200])
def test_warm_answers_equal_cold_answers(ask: Asker, length: int) -> None:
    """Whatever part of the prefix was cached, the answer is the cold one."""
    letters = np.random.default_rng(length).integers(97, 123, length)
    text = "".join(map(chr, letters))
    cold = ask.cold(text + "?")
    warm = ask.chat(text + "?")
    assert warm.cached_tokens > 0
    same(warm, cold)
    ask.flush()
    ask.chat(text[: length // 2] + "!")
    half = ask.chat(text + "?")
    assert 0 < half.cached_tokens < half.prompt_tokens
    same(half, cold)


def test_a_refused_request_leaves_the_picture_usable(ask: Asker) -> None:
    """A picture of a request that was refused is answered as if nothing had happened."""
    x = picture(21)
    cold = ask.cold(x, "short")
    ask.flush()
    refused(ask, x, "y" * 600)
    same(ask.chat(x, "short"), cold)
    ask.flush()
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "objekt"}}}
    refused(ask, x, "short", response_format=schema)
    same(ask.chat(x, "short"), cold)
    ask.flush()
    body = {"messages": [{"role": "user", "content": [image_part(x)]}]}
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{ask.url}/v1/chat/completions", json=body, timeout=0.001)
    same(ask.chat(x, "short"), cold)


def test_one_token_too_long_is_refused_and_poisons_nothing(ask: Asker) -> None:
    """A picture in a prompt that just fails to fit is answered in one that does, and so on."""
    x = picture(22)
    canary = ask.cold("hello"), ask.cold(x, "short")
    ask.flush()
    room = ask.get("/model_info").json()["context_length"] - canary[1].prompt_tokens
    fits = "short" + "9" * (room - 1)
    for _ in range(2):
        message = refused(ask, x, fits + "9")
        assert str(canary[1].image_tokens) in message
        same(ask.chat(x, "short"), canary[1])
        last = ask.chat(x, fits)
        assert (last.status, last.usage["completion_tokens"]) == (200, 1)
        ask.flush()
        refused(ask, x, fits + "9")
        same(ask.chat(x, "short"), canary[1])
    same(ask.chat("hello"), canary[0])
    assert ask.get("/health").status_code == 200


def test_more_pictures_than_the_feature_cache_holds(tiny_directory, ask: Asker) -> None:
    """Ten pictures through room for four are answered as with room for all."""
    tokens = ask.chat(picture(0), "?").image_tokens
    config = EngineConfig(
        model=str(tiny_directory),
        served_name="tiny",
        num_slots=2048,
        threads=1,
        verify_steps=True,
        sched=SchedConfig(feature_cache_tokens=4 * tokens),
    )
    ten = [picture(30 + k) for k in range(10)]
    with (
        Engine.from_config(config) as engine,
        RunningServer(engine, ServerConfig(port=0)) as http,
    ):
        small = Asker(http.url)
        reference = ask.cold(*ten, "?")
        same(small.chat(*ten, "?"), reference)
        same(small.chat(*ten, "?"), reference)
        for one in ten:
            same(small.chat(one, "?"), ask.chat(one, "?"))
        small.flush()
        pair = (ten, ten[5:] + [picture(50 + k) for k in range(5)])
        replies: dict[int, Reply] = {}

        def run(index: int) -> None:
            asker = Asker(http.url)
            replies[index] = asker.chat(*pair[index], "?")
            asker.close()

        threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for index in range(2):
            same(replies[index], ask.chat(*pair[index], "?"))
        small.close()

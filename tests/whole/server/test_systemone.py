"""`/v1/systemone` on the embedded model: right answers, one encode and one prefill."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.live import strict_series
from support.oracle import data_uri, image_part, png

from mmserve.core import EngineConfig, MediaConfig, ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer
from mmserve.testing import TEST_SEEDS, scene
from mmserve.testing.clips import clip

PATH = "/v1/systemone"
COLOURS = ["red", "orange", "yellow", "green", "blue", "purple", "white", "black"]
PICTURE = scene(1_000_003)
CLIP = clip(1_000_012)
ABOUT_PICTURE: list[tuple[str, dict[str, Any], Any]] = [
    ("How many objects are in the picture?", {"type": "score", "min": 0, "max": 12}, 5),
    ("What number is written?", {"type": "score", "min": 0, "max": 99}, 93),
    ("What colour is the circle?", {"type": "choice", "choices": COLOURS}, "blue"),
    ("Is there a cross?", {"type": "yes_no"}, "yes"),
    (
        "Are there more stars or circles?",
        {"type": "choice", "choices": ["stars", "circles"]},
        "stars",
    ),
]
ABOUT_CLIP: list[tuple[str, dict[str, Any], Any]] = [
    ("How many objects are there at the start?", {"type": "score", "min": 0, "max": 9}, 4),
    ("How many objects are there at the end?", {"type": "score", "min": 0, "max": 9}, 5),
    (
        "What changed?",
        {
            "type": "choice",
            "choices": [
                "a medium blue square appeared",
                "a small red star disappeared",
                "nothing",
            ],
        },
        "a medium blue square appeared",
    ),
]


class Site:
    """The server of the embedded model."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def ask(self, state: Any, *questions: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """The whole answer to good questions."""
        body = {"state": state, "questions": list(questions), **fields}
        response = self.http.post(PATH, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def flush(self) -> None:
        """Forget everything."""
        assert self.http.post("/flush_cache", params={"timeout": 30}).status_code == 200

    def growth(self, before: dict[str, float]) -> dict[str, float]:
        """By how much each series has grown."""
        return {name: value - before.get(name, 0) for name, value in self.series().items()}

    def series(self) -> dict[str, float]:
        """The metrics page."""
        return strict_series(self.http.get("/metrics").text)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """The embedded model, its ledgers checked after each step."""
    media = MediaConfig(allow_private_hosts=True)
    config = EngineConfig(threads=1, num_slots=16_384, verify_steps=True, media=media)
    with (
        Engine.from_config(config) as engine,
        RunningServer(engine, ServerConfig(port=0)) as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
    ):
        yield Site(http)


def picture_part() -> dict[str, Any]:
    """The picture as a content part."""
    return image_part(png(PICTURE.image))


def clip_part() -> dict[str, Any]:
    """The clip as a content part."""
    return {"type": "video_url", "video_url": {"url": data_uri(CLIP.mp4, "video/mp4")}}


def typed(rows: list[tuple[str, dict[str, Any], Any]]) -> list[dict[str, Any]]:
    """Questions as they are sent."""
    return [{"question": words, **kind} for words, kind, _ in rows]


@pytest.mark.parametrize(
    ("part", "rows"),
    [(picture_part(), ABOUT_PICTURE), (clip_part(), ABOUT_CLIP)],
    ids=["picture", "clip"],
)
def test_answers_are_right(
    site: Site, part: dict[str, Any], rows: list[tuple[str, dict[str, Any], Any]]
) -> None:
    """All kinds of questions about a picture and a clip, with most of the probability."""
    answers = site.ask([part], *typed(rows))["answers"]
    assert [answer["answer"] for answer in answers] == [right for _, _, right in rows]
    for answer, (_, kind, right) in zip(answers, rows, strict=True):
        assert answer["probabilities"][str(right)] > 0.5
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
        if kind["type"] == "score":
            mean = sum(int(n) * p for n, p in answer["probabilities"].items())
            assert answer["expected"] == pytest.approx(mean)


def test_held_out_pictures(site: Site) -> None:
    """Counts, colours, numbers and existence are as right as the model's card says."""
    kinds: dict[str, dict[str, Any]] = {
        "count": {"type": "score", "min": 0, "max": 12},
        "number": {"type": "score", "min": 0, "max": 99},
        "colour": {"type": "choice", "choices": COLOURS},
        "exists": {"type": "yes_no"},
    }
    right = asked = 0
    for seed in list(TEST_SEEDS)[200:212]:
        made = scene(seed)
        rows = [q for q in made.questions if q.kind in kinds and q.answer != "none"]
        questions = [{"question": q.question, **kinds[q.kind]} for q in rows]
        answers = site.ask([image_part(png(made.image))], *questions)["answers"]
        asked += len(rows)
        right += sum(str(a["answer"]) == q.answer for a, q in zip(answers, rows, strict=True))
    assert asked > 30
    assert right / asked > 0.95


@pytest.mark.parametrize(
    ("part", "rows"),
    [(picture_part(), ABOUT_PICTURE), (clip_part(), ABOUT_CLIP)],
    ids=["picture", "clip"],
)
def test_together_as_alone(
    site: Site, part: dict[str, Any], rows: list[tuple[str, dict[str, Any], Any]]
) -> None:
    """Each answer has the numbers of the same question asked alone of an empty cache."""
    questions = typed(rows)
    together = site.ask([part], *questions)
    for answer, question in zip(together["answers"], questions, strict=True):
        site.flush()
        (alone,) = site.ask([part], question)["answers"]
        assert alone["answer"] == answer["answer"]
        assert alone["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-4)


def test_numbers_are_those_of_scored_options(site: Site) -> None:
    """The native route's log-probabilities of the same prompt give the same probabilities."""
    body = {
        "text": "<|user|><image>What colour is the circle?<|end|><|assistant|>",
        "image_data": data_uri(png(PICTURE.image)),
        "choices": COLOURS,
    }
    scored = site.http.post("/generate", json=body).json()["meta_info"]["choices"]
    weights = [math.exp(sum(one["logprobs"])) for one in scored]
    question = {"type": "choice", "question": "What colour is the circle?", "choices": COLOURS}
    (answer,) = site.ask([picture_part()], question)["answers"]
    found = list(answer["probabilities"].values())
    assert found == pytest.approx([weight / sum(weights) for weight in weights], abs=1e-4)


@pytest.mark.parametrize(
    ("part", "rows"),
    [(picture_part(), ABOUT_PICTURE), (clip_part(), ABOUT_CLIP)],
    ids=["picture", "clip"],
)
def test_the_state_is_computed_once(
    site: Site, part: dict[str, Any], rows: list[tuple[str, dict[str, Any], Any]]
) -> None:
    """However many questions: one decode, one encode, and every token of the tree once."""
    more = [{"type": "yes_no", "question": f"Is there a star, {n}?"} for n in range(60)]
    site.flush()
    before = site.series()
    answer = site.ask([part], *typed(rows), *more)
    grown = site.growth(before)
    clips = answer.get("mmserve", {}).get("clips", [])
    assert grown["media_decodes_total"] == 1
    assert grown["encoded_items_total"] == (len(clips[0]["timestamps_s"]) if clips else 1)
    usage = answer["usage"]
    assert grown["prompt_tokens_computed_total"] == usage["computed_tokens"]
    assert usage["computed_tokens"] == usage["prompt_tokens"]
    details = usage["prompt_tokens_details"]
    assert details["cached_tokens"] == 0
    assert details["video_tokens" if clips else "image_tokens"] > 0
    assert grown["generated_tokens_total"] == 0


def test_media_behind_addresses_are_fetched_once(site: Site, media_host: Any) -> None:
    """A picture and a clip, whatever the number of questions."""
    urls = [
        media_host.put("/a.png", png(PICTURE.image)),
        media_host.put("/a.mp4", CLIP.mp4, "video/mp4"),
    ]
    state = [image_part(urls[0]), {"type": "video_url", "video_url": {"url": urls[1]}}]
    questions = [{"type": "yes_no", "question": f"Is there a star, {n}?"} for n in range(40)]
    before = site.series()
    site.ask(state, *questions, num_frames=2)
    assert sorted(media_host.hits) == ["/a.mp4", "/a.png"]
    assert site.growth(before)["media_fetches_total"] == 2


def test_asked_again_the_state_is_cached(site: Site) -> None:
    """Nothing is decoded or encoded; the last token of each prompt and option is computed."""
    questions = typed(ABOUT_PICTURE)
    first = site.ask([picture_part()], *questions)
    before = site.series()
    again = site.ask([picture_part()], *questions, return_timing=True)
    grown = site.growth(before)
    assert grown["media_decodes_total"] == grown["encoded_items_total"] == 0
    num_options = 13 + 100 + len(COLOURS) + 4 + 2
    assert again["usage"]["computed_tokens"] < 2 * len(questions) + num_options
    assert again["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 36
    assert again["mmserve"]["cache"]["image"] == {"hit": 36}
    for one, other in zip(again["answers"], first["answers"], strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-4)


def test_a_conversation_is_a_state(site: Site) -> None:
    """The question is about what was said before."""
    content = [picture_part(), {"type": "text", "text": "Where is the small star"}]
    state = [{"role": "user", "content": content}, {"role": "assistant", "content": "left"}]
    shapes = ["circle", "square", "star", "cross"]
    question = {"type": "choice", "question": "What shape is it?", "choices": shapes}
    (answer,) = site.ask(state, question)["answers"]
    assert answer["answer"] == "star"


def test_refusals_tell_what_is_at_fault(site: Site) -> None:
    """The state's picture, or the one question that does not fit."""
    yes_no = {"type": "yes_no", "question": "Is there a star?"}
    long = {"type": "yes_no", "question": "star " * 3000}
    body = {"state": [image_part(b"no picture")], "questions": [yes_no] * 3}
    response = site.http.post(PATH, json=body)
    assert response.status_code == 400
    assert "image 1" in response.json()["error"]["message"]
    response = site.http.post(PATH, json={"state": "A table.", "questions": [yes_no, long]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "questions[1]"
